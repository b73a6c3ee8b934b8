"""What beam search keeps: the best texts under way, the best finished ones, and whether anything better can come."""

from collections.abc import Sequence
from dataclasses import dataclass

Continuation = tuple[int, float]
"""A token and the log-probability of it, in nats."""


@dataclass(frozen=True)
class Hypothesis:
    """A text that beam search keeps.

    Attributes:
        tokens: behind the prompt; an end-of-text token that finished it is among them.
        score: sum of their log-probabilities; once it is finished, over its length to the power of length_penalty.
        ended_by_eos: whether an end-of-text token finished it.
    """

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    ended_by_eos: bool = False


class Hypotheses:
    """The beam of one prompt, advanced by a token at a time; the rule is that of Hugging Face's `generate`.

    Of all continuations of the texts under way the best are looked at. Those among the first num_beams that end are
    finished texts, of which the best num_beams are kept; the first num_beams that do not end are under way from then
    on. It is over once there are num_beams finished texts and the best one under way, as long as it is, would score no
    better than the worst of them; or at once when there are as many, with early_stopping.

    Attributes:
        running: texts under way, the best first, all of one length; none at the end of the budget.
        finished: finished texts, the best first.
        is_over: whether nothing is to be added any more.
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
            num_beams: texts under way, >= 1.
            eos_ids: tokens that end a text.
            most_tokens: budget of a text, >= 1; one that has spent it is finished.
            length_penalty: what a finished text's length is raised to before its score is divided by it.
            early_stopping: whether num_beams finished texts are enough.
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
        """Continuations that `advance` looks at: enough that num_beams of them do not end."""
        return self.num_beams * max(2, 1 + len(self._eos_ids))

    @property
    def num_tokens(self) -> int:
        """Length of the texts under way."""
        return len(self.running[0].tokens)

    def ends(self, token: int) -> bool:
        """Whether a text ends with this token."""
        return token in self._eos_ids

    def advance(self, continuations: Sequence[Sequence[Continuation]]) -> list[tuple[int, int]]:
        """Go on by a token.

        Args:
            continuations: of every text under way at least its best num_looked_at, as far as there are so many.

        Returns:
            of every text now under way which one it continues, and by which token.
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
