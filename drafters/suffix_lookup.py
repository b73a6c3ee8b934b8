"""Suffix decoding: copy the continuation of the longest known suffix (Oliaro et al., 2024; He et al., 2023).

B rows, N <= gamma nodes.
"""

import itertools
import math
from typing import Any

from torch import Tensor

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.option_error import OptionError
from framework.core.sampling import Sampling
from framework.core.sequences import FollowsText, Sequences, catch_up, put
from framework.core.validation import check_whole
from framework.drafting.ngram_tables import tokenised_documents
from framework.drafting.suffix_automaton import Match, SuffixAutomaton
from framework.models.target import Target
from framework.prompts.prompt_source import PromptSource

NOTHING: Match = (0, 0)


class SuffixLookup:
    """Finds the longest known suffix of a row's text, of any length, and copies its continuation.

    Suffixes are looked up in the row's own text with its prompt, in outputs of earlier generations of this drafter, and
    in a corpus. The longest match wins; of equal matches, the first in this order. Of several occurrences, the oldest
    is copied. A copy from the row's own text continues with its own tokens, as in LZ77 (Ziv and Lempel, 1977); other
    copies end with their document. Longer matches give longer drafts. A committed token costs a few dictionary
    accesses, whatever the amount of known text.

    Earlier outputs of a prompt are never used for the same prompt. If it were decoded again with the same seed, its
    drafts would depend on the random numbers that verify them, and the output would no longer follow the target's
    distribution. For the same reason, prompts with remembered outputs must each have their own seed, as in a run.
    """

    scheme = SamplingScheme.ONE_HOT
    shape = Shape.CHAIN
    on_host = True

    def __init__(
        self, target: Target, *, min_match: int, factor: float | None, history: int, corpus: PromptSource | None
    ):
        """
        Args:
            target: provides the tokenizer of the corpus.
            min_match: shortest match that is used, in tokens.
            factor: drafted tokens per matched token: a match of m tokens drafts at most ceil(factor * m); None: gamma.
            history: number of latest outputs that are remembered at least; up to twice as many are kept. 0: none. Above
                temperature 0 the output tokens then depend on earlier generations; their distribution does not.
            corpus: further texts to copy from, at about 0.5 kB of memory per token; None: no corpus.

        Raises:
            ValueError: an option out of range; the message names the yaml key.
        """
        for key, value, least in (("min_match", min_match, 1), ("history", history, 0)):
            check_whole(key, value, least=least)
        if factor is not None and (not isinstance(factor, int | float) or not 0 < factor < math.inf):
            raise OptionError("factor", factor, "a number > 0, or null for no limit")
        self._min_match = min_match
        self._factor = factor
        self._corpus = SuffixAutomaton()
        for document in [] if corpus is None else tokenised_documents(corpus, target):
            _take_in(self._corpus, document.tolist())
        self._history, self.remembers = _History(history), history > 0
        self._others = [SuffixAutomaton(), self._corpus]  # the history without these prompts, and the corpus
        self._texts: list[_Text] = []
        self._prompts: list[Prompt] = []

    def num_uniforms(self, gamma: int) -> int:
        """Zero: tokens are copied, not drawn."""
        return 0

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        prompts = [
            (tuple(source), tuple(text[:length]))
            for source, text, length in zip(
                sequences.sources, sequences.texts, sequences.prompt_lengths.tolist(), strict=True
            )
        ]
        self._prompts, self._others = prompts, [self._history.without(prompts), self._corpus]
        self._texts = self._begun(sequences)

    @property
    def refillable(self) -> bool:
        """Whether nothing is remembered: an output must not be copied to a prompt that is decoded beside its own."""
        return not self.remembers

    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        put(self._texts, rows, self._begun(sequences))

    def _begun(self, sequences: Sequences) -> list["_Text"]:
        texts = [_Text(source, self._others) for source in sequences.sources]
        catch_up(texts, sequences)
        return texts

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Copy at most gamma tokens in rows with a match; other rows have no valid node."""
        return Draft.from_lists(self.look_up(sequences, gamma), sequences.tokens.device)

    def look_up(self, sequences: Sequences, gamma: int) -> list[list[int]]:
        catch_up(self._texts, sequences)
        return [self._copy(text, gamma) for text in self._texts]

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass

    def learn(self, sequences: Sequences) -> None:
        """Remember the outputs of this batch, which may still grow, for later batches."""
        self._history.remember(self._prompts, sequences.texts)

    def state_dict(self) -> dict[str, Any]:
        return {"history": self._history.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._history = state["history"].copy()

    def _copy(self, text: "_Text", gamma: int) -> list[int]:
        automaton, place, length = text.longest_match()
        if length < self._min_match:
            return []
        most = gamma if self._factor is None else min(gamma, math.ceil(self._factor * length))
        end = automaton.end_of(place)
        copy = automaton.tokens[place : min(place + most, end)]
        grows = automaton is text.own and end == len(automaton)
        return list(itertools.islice(itertools.cycle(copy), most)) if grows else copy


def _take_in(automaton: SuffixAutomaton, document: list[int]) -> None:
    for token in document:
        automaton.append(token)
    automaton.close_document()


class _Text(FollowsText):
    """One row's tokens, after those of its source, with their matches in the other automata."""

    def __init__(self, source: list[int], others: list[SuffixAutomaton]):
        self.own = SuffixAutomaton()
        self._others = others
        self._matches = [NOTHING for _ in others]
        _take_in(self.own, source)
        self._num_source = len(source)

    def __len__(self) -> int:
        """Number of tokens of the text, without the source."""
        return len(self.own) - self._num_source

    def append(self, token: int) -> None:
        self.own.append(token)
        self._matches = [other.follow(match, token) for other, match in zip(self._others, self._matches, strict=True)]

    def longest_match(self) -> tuple[SuffixAutomaton, int, int]:
        """Automaton of the longest suffix with a continuation, position of that continuation, length of the suffix."""
        known = [(self.own, self.own.earlier()), *zip(self._others, self._matches, strict=True)]
        found = [(automaton, *automaton.continued(match)) for automaton, match in known]
        return max(found, key=lambda match: match[2])  # the first of equal lengths


Prompt = tuple[tuple[int, ...], tuple[int, ...]]  # source and text


class _History:
    """Outputs by prompt, the latest last."""

    def __init__(self, most: int):
        self._most = most
        self._outputs: dict[Prompt, list[int]] = {}
        self._growing: list[tuple[Prompt, list[int]]] = []
        self._automaton, self._held = SuffixAutomaton(), dict[Prompt, list[int]]()

    def copy(self) -> "_History":
        other = _History(self._most)
        other._outputs = dict(self._outputs)
        other._growing = [(prompt, list(text)) for prompt, text in self._growing]
        return other

    def remember(self, prompts: list[Prompt], texts: list[list[int]]) -> None:
        """Register the growing texts of a generation; their outputs are read when the next one begins."""
        self._growing = list(zip(prompts, texts, strict=True))

    def without(self, prompts: list[Prompt]) -> SuffixAutomaton:
        """Automaton of the outputs of all other prompts; it is extended, not rebuilt, as long as these are new."""
        for prompt, text in self._growing:
            self._outputs.pop(prompt, None)
            self._outputs[prompt] = text[len(prompt[1]) :]
        self._growing = []
        # Dropping an output rebuilds the automaton, so outputs are dropped many at a time: each is added twice at most.
        if len(self._outputs) > 2 * self._most:
            self._outputs = dict(list(self._outputs.items())[-self._most :])
        wanted = {prompt: output for prompt, output in self._outputs.items() if prompt not in prompts}
        if any(wanted.get(prompt) is not output for prompt, output in self._held.items()):
            self._automaton, self._held = SuffixAutomaton(), {}
        for prompt, output in wanted.items():
            if prompt not in self._held:
                _take_in(self._automaton, output)
        self._held = wanted
        return self._automaton
