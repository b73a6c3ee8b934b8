"""Hypotheses of beam search: running ones, finished ones, and the stopping rule."""

from collections.abc import Sequence
from dataclasses import dataclass

Continuation = tuple[int, float]
"""A token and its log-probability in nats."""


@dataclass(frozen=True)
class Hypothesis:
    """A candidate continuation of the prompt.

    Attributes:
        tokens: tokens after the prompt, including an end-of-text token that finished it.
        score: sum of their log-probabilities, in nats; of a finished hypothesis, divided by length ** length_penalty.
        ended_by_eos: whether an end-of-text token finished it.
    """

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    ended_by_eos: bool = False


class Hypotheses:
    """The beam of one prompt, advanced one token at a time by the rule of Hugging Face's `generate`.

    Each step ranks the continuations of all running hypotheses. Those among the best num_beams that end become
    finished hypotheses, and the best num_beams of all finished ones are kept. The best num_beams that do not end become
    the running hypotheses. The search is over once num_beams hypotheses are finished and the best running one, scored
    at its current length, is no better than the worst of them. With early_stopping it is over once num_beams are
    finished.

    Attributes:
        running: running hypotheses, best first, all of one length; empty at the end of the budget.
        finished: finished hypotheses, best first.
        is_over: whether the search has ended.
    """

    def __init__(
        self,
        *,
        num_beams: int,
        eos_ids: Sequence[int],
        most_tokens: int,
        length_penalty: float,
        early_stopping: bool,
    ):
        """
        Args:
            num_beams: number of running hypotheses, >= 1.
            eos_ids: tokens that end a hypothesis.
            most_tokens: token budget of a hypothesis, >= 1; at that length it is finished.
            length_penalty: exponent of the length that divides a finished hypothesis's score.
            early_stopping: whether num_beams finished hypotheses end the search.
        """
        self.num_beams = num_beams
        self.running = [Hypothesis()]
        self.finished: list[Hypothesis] = []
        self.is_over = False
        self._eos_ids = frozenset(eos_ids)
        self._most_tokens = most_tokens
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping

    @property
    def num_looked_at(self) -> int:
        """Number of continuations that `advance` ranks: enough that num_beams of them do not end."""
        return self.num_beams * max(2, 1 + len(self._eos_ids))

    @property
    def num_tokens(self) -> int:
        """Length of the running hypotheses, in tokens."""
        return len(self.running[0].tokens)

    def ends(self, token: int) -> bool:
        """Whether this token ends a hypothesis."""
        return token in self._eos_ids

    def advance(self, continuations: Sequence[Sequence[Continuation]]) -> list[tuple[int, int]]:
        """Extend the hypotheses by one token.

        Args:
            continuations: per running hypothesis, at least its best num_looked_at continuations, or all if there are
                fewer.

        Returns:
            per new running hypothesis, the index of the previous one it extends, and its new token.
        """
        ranked = sorted(
            (
                (text.score + log_prob, number, token)
                for number, (text, its) in enumerate(zip(self.running, continuations, strict=True))
                for token, log_prob in its
            ),
            key=lambda each: -each[0],
        )[: self.num_looked_at]
        length = self.num_tokens + 1
        is_last = length == self._most_tokens
        ending = [each for each in ranked[: self.num_beams] if is_last or self.ends(each[2])]
        going_on = [] if is_last else [each for each in ranked if not self.ends(each[2])][: self.num_beams]
        self.finished += [
            Hypothesis((*self.running[number].tokens, token), score / length**self._length_penalty, self.ends(token))
            for score, number, token in ending
        ]
        self.finished = sorted(self.finished, key=lambda text: -text.score)[: self.num_beams]
        self.running = [Hypothesis((*self.running[number].tokens, token), score) for score, number, token in going_on]
        self.is_over = not self.running or self._is_enough(length)
        return [(number, token) for _, number, token in going_on]

    def _is_enough(self, length: int) -> bool:
        if len(self.finished) < self.num_beams:
            return False
        best_possible = self.running[0].score / length**self._length_penalty
        return self._early_stopping or best_possible <= self.finished[-1].score
