"""Decoding of a ragged batch of texts into growing completions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from experiments.measurement.plan import Batch
from experiments.measurement.round_timing import provide_profile
from experiments.reporting.completion import Completion, Token
from framework.core.draft import Outcome
from framework.core.drafter import preserve_learned_state
from framework.core.option_error import OptionError, options_under
from framework.core.validation import check_whole
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.metrics.producer import Producer, producers
from framework.metrics.stopwatch import Stopwatch
from framework.prompts.chat import chat_tokens
from framework.prompts.detokenizer import Detokenizer

PROMPT = "a text, or a list of texts"


@dataclass(frozen=True)
class TextDecoder:
    """Engine for texts.

    Attributes:
        engine: the decoding engine.
        stopping: stopping criteria.
        seed: default seed.
        chat: whether a text becomes a user's turn.
        system: system message of a chat; None: the template's own.
        options: options of drafter and verifier as JSON values, which identify a stored profile of rounds.
    """

    engine: Engine
    stopping: Stopping
    seed: int
    chat: bool
    system: str | None
    options: Any = None

    def stream(
        self,
        texts: Sequence[str],
        *,
        max_new_tokens: int | None = None,
        seed: int | None = None,
        detailed: bool = False,
    ) -> Iterator[list[Completion]]:
        """Decode texts in one batch; yield the growing completions after prefill and after every round.

        The same `Completion` objects are yielded each time. Each has the counts of its own row, and the time of the
        batch until that row ended. A drafter's learning is undone at the end, so that equal seeds give equal texts.

        Args:
            texts: one per row; for an encoder-decoder model, sources.
            max_new_tokens: maximum number of new tokens; None: that of `stopping`.
            seed: text i has seed + i; None: the default seed.
            detailed: whether the tallies sum overlaps.

        Raises:
            ValueError: a text cannot be decoded, or an option is out of range.
            RuntimeError: another generation of this target began between two rounds.
        """
        stopping = self.stopping if max_new_tokens is None else replace(self.stopping, max_new_tokens=max_new_tokens)
        first = self.seed if seed is None else seed
        check_whole("seed", first, least=0)
        if not isinstance(texts, list | tuple):
            raise OptionError("prompt", texts, PROMPT)
        tokenizer, prompts = self.engine.target.tokenizer, [self._tokens_of(text) for text in texts]
        seeds = [first + row for row in range(len(texts))]
        rows = [
            _Row(Completion(text, self.engine.new_tally(detailed=detailed)), Detokenizer(tokenizer)) for text in texts
        ]
        batch = Batch(number=0, rows=list(range(len(texts))), prompts=prompts, seeds=seeds)
        provide_profile(self.engine, [batch], stopping=stopping, options=self.options)
        stopwatch = Stopwatch(self.engine.target.device)
        with preserve_learned_state(self.engine.drafter):
            with torch.no_grad():
                decoding = self.engine.begin(
                    prompts,
                    stopping=stopping,
                    seeds=seeds,
                    detailed=detailed,
                    stopwatch=stopwatch,
                    on_round=partial(_observe_distributions, rows) if detailed else None,
                )
            made: list[list[Producer]] = [["plain"] for _ in texts]
            while True:
                finisher, seconds = decoding.finisher, stopwatch.seconds()
                new = zip(rows, finisher.new_tokens, made, finisher.finish_reasons, strict=True)
                for row, tokens, by, reason in new:
                    row.extend(tokens, by, reason, seconds)
                yield [row.completion for row in rows]
                if not finisher.most_remaining:
                    return
                with torch.no_grad():
                    readout = self.engine.round(decoding)
                made = [producers(readout, number) for number in range(len(rows))]
                for number, row in enumerate(rows):
                    if readout.active[number]:
                        row.completion.tally.observe(readout.of_row(number))

    def _tokens_of(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise OptionError("prompt", text, PROMPT)
        tokenizer = self.engine.target.tokenizer
        if self.chat:
            with options_under("prompts"):
                return chat_tokens(tokenizer, [text], system=self.system, max_prompt_tokens=None)
        return tokenizer(text, verbose=False)["input_ids"]


@dataclass(frozen=True)
class _Row:
    """A completion and the detokenizer of its row."""

    completion: Completion
    detokenizer: Detokenizer

    def extend(self, tokens: list[int], by: list[Producer], finish_reason: str, seconds: dict[str, float]) -> None:
        """Append the row's new tokens to the completion, unless it has ended."""
        completion = self.completion
        if completion.finish_reason:
            return
        new = tokens[len(completion.tokens) :]
        pieces = [self.detokenizer.append(token) for token in new]
        if finish_reason:
            pieces[-1] += self.detokenizer.rest()
        completion.tokens += map(Token, new, pieces, by)
        completion.finish_reason, completion.seconds = finish_reason, seconds


def _observe_distributions(rows: Sequence[_Row], outcome: Outcome) -> None:
    """Update the detailed sums of every active row by its own part of an outcome."""
    numbers = torch.arange(len(rows), device=outcome.active.device)
    for number in outcome.active.nonzero().flatten().tolist():
        rows[number].completion.tally.observe_distributions(replace(outcome, active=numbers == number))
