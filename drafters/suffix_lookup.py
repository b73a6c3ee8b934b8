"""Copy what followed the longest suffix known, from the text, from earlier outputs, or from a corpus (suffix decoding).

Oliaro et al. (2024) and He et al. (2023); B rows, N <= gamma nodes.
"""

import itertools
import math
from typing import Any

from torch import Tensor

from framework.draft import Draft, Law, Outcome, Shape
from framework.ngram_tables import tokenised_documents
from framework.prompts.prompt_source import PromptSource
from framework.sampling import Sampling
from framework.sequences import Sequences, catch_up
from framework.suffix_automaton import Match, SuffixAutomaton
from framework.target import Target
from framework.whole_numbers import check_whole

NOTHING: Match = (0, 0)


class SuffixLookup:
    """Finds the longest suffix of a row's text that is known, of whatever length, and proposes what followed it.

    Known is the row's own text with its prompt, what earlier generations of this drafter put out, and a corpus; the
    longest match wins, and among equals the first of these. Of several places the oldest is copied from. A copy from
    the text itself goes on with what it copied, as in LZ77 (Ziv and Lempel, 1977); others end with their document.
    The longer the match, the more is drafted. A committed token costs a few dictionary accesses, however much is known.

    A prompt is never helped by what it gave before: decoded again with the same seed, its drafts would depend on the
    random numbers that are to judge them, and the output would not follow the target's law any more. For that reason
    prompts whose outputs are remembered must have seeds of their own, as those of a run do.
    """

    law = Law.ONE_HOT
    shape = Shape.CHAIN
    on_host = True

    def __init__(
        self, target: Target, *, min_match: int, factor: float | None, history: int, corpus: PromptSource | None
    ):
        """
        Args:
            target: gives the tokenizer for the corpus.
            min_match: shortest suffix that is copied after, in tokens.
            factor: a match of m tokens drafts at most factor * m, rounded up; None as many as gamma says.
            history: so many of the latest outputs are remembered, and up to twice as many; 0 remembers none. Above
                temperature 0 the tokens then depend on what was decoded before; their law does not.
            corpus: texts to copy from as well; about 0.5 kB of memory a token.

        Raises:
            ValueError: a setting outside its range; the message names the yaml key.
        """
        for key, value, least in (("min_match", min_match, 1), ("history", history, 0)):
            check_whole(f"drafter.{key}", value, least=least)
        if factor is not None and (not isinstance(factor, int | float) or not 0 < factor < math.inf):
            raise ValueError(f"drafter.factor is {factor!r}; allowed: a number > 0, or null for no limit")
        self._min_match = min_match
        self._factor = factor
        self._corpus = SuffixAutomaton()
        for document in [] if corpus is None else tokenised_documents(corpus, target):
            _take_in(self._corpus, document.tolist())
        self._history, self.remembers = _History(history), history > 0
        self._texts: list[_Text] = []

    def num_uniforms(self, gamma: int) -> int:
        """None: its tokens are found, not drawn."""
        return 0

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        prompts = [
            (tuple(source), tuple(text[:length]))
            for source, text, length in zip(
                sequences.sources, sequences.texts, sequences.prompt_lengths.tolist(), strict=True
            )
        ]
        history = self._history.without(prompts)
        self._history.expect(prompts, sequences.texts)
        self._texts = [_Text(list(source), [history, self._corpus]) for source, _ in prompts]
        catch_up(self._texts, sequences)

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Copy at most gamma tokens in the rows where there is something to copy; others have none that is valid."""
        catch_up(self._texts, sequences)
        return Draft.copied([self._copy(text, gamma) for text in self._texts], sequences.tokens.device)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass

    def learnt(self) -> dict[str, Any]:
        return {"history": self._history.copy()}

    def relearn(self, learnt: dict[str, Any]) -> None:
        self._history = learnt["history"].copy()

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


class _Text:
    """One row's tokens, behind those of its source, and where they stand in what else is known."""

    def __init__(self, source: list[int], others: list[SuffixAutomaton]):
        self.own = SuffixAutomaton()
        self._others = others
        self._matches = [NOTHING for _ in others]
        _take_in(self.own, source)
        self._num_source = len(source)

    def __len__(self) -> int:
        """Tokens of the text."""
        return len(self.own) - self._num_source

    def append(self, token: int) -> None:
        self.own.append(token)
        self._matches = [other.follow(match, token) for other, match in zip(self._others, self._matches, strict=True)]

    def longest_match(self) -> tuple[SuffixAutomaton, int, int]:
        """Who knows the longest suffix that something follows, the place of what follows it, and its length."""
        known = [(self.own, self.own.earlier()), *zip(self._others, self._matches, strict=True)]
        found = [(automaton, *automaton.continued(match)) for automaton, match in known]
        return max(found, key=lambda match: match[2])  # of equals the first


Prompt = tuple[tuple[int, ...], tuple[int, ...]]  # source and text


class _History:
    """What prompts gave, the latest ones last."""

    def __init__(self, most: int):
        self._most = most
        self._outputs: dict[Prompt, list[int]] = {}
        self._expected: list[tuple[Prompt, list[int]]] = []
        self._automaton, self._held = SuffixAutomaton(), dict[Prompt, list[int]]()

    def copy(self) -> "_History":
        other = _History(self._most)
        other._outputs = dict(self._outputs)
        other._expected = [(prompt, list(text)) for prompt, text in self._expected]
        return other

    def expect(self, prompts: list[Prompt], texts: list[list[int]]) -> None:
        """Remember these texts, which grow, once the next generation begins."""
        self._expected = list(zip(prompts, texts, strict=True)) if self._most else []

    def without(self, prompts: list[Prompt]) -> SuffixAutomaton:
        """All outputs but those of some prompts; as long as these are new ones it only grows."""
        for prompt, text in self._expected:
            self._outputs.pop(prompt, None)
            self._outputs[prompt] = text[len(prompt[1]) :]
        # Dropping one makes all others be read again: so rarely that an output is read twice at most.
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
