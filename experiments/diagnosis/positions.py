"""Accuracy of a drafter at every position of the target's greedy text, and differences between two settings.

The positions of one prompt depend on each other, so intervals treat prompts as units (a cluster-robust t interval).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from framework.core.draft import Draft, Outcome
from framework.core.drafter import Drafter
from framework.core.sampling import Sampling
from framework.core.sequences import Prompt
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.target import Target
from framework.verifiers.teacher_forced import TeacherForced

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A difference with its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


@dataclass(frozen=True)
class Text:
    """One prompt's continuation, with a draft after each token but the last ones, whose drafts would be cut.

    Attributes:
        tokens: the target's tokens.
        first: whether the first drafted token is the target's.
        accepted: number of tokens up to the first wrong one; in a tree, on the best path.
    """

    tokens: list[int]
    first: list[bool]
    accepted: list[int]


@dataclass(frozen=True)
class Positions:
    """The texts of all prompts."""

    texts: list[Text]

    @property
    def number(self) -> int:
        return sum(len(text.first) for text in self.texts)

    @property
    def accuracy(self) -> float:
        """Share of positions at which the first drafted token is the target's."""
        return sum(sum(text.first) for text in self.texts) / self.number

    @property
    def accepted(self) -> float:
        """Mean number of accepted tokens per draft."""
        return sum(sum(text.accepted) for text in self.texts) / self.number

    @property
    def most_common(self) -> float:
        """Share of positions with the most common next token: the accuracy of a drafter that ignores the text."""
        return sum(map(sum, self._are_most_common())) / self.number

    def above_chance(self) -> Interval:
        """Difference of the accuracy from `most_common`."""
        pairs = zip(self.texts, self._are_most_common(), strict=True)
        return _interval([_differences(text.first, common) for text, common in pairs], comparisons=1)

    def ahead_of(self, other: "Positions", *, comparisons: int) -> Interval:
        """Paired difference of the accepted tokens per draft, at the positions that both have.

        Args:
            other: the same prompts with another setting.
            comparisons: number of intervals that hold together with probability LEVEL (Bonferroni).
        """
        values = []
        for own, their in zip(self.texts, other.texts, strict=True):
            shared = max(0, _common(own.tokens, their.tokens) - 1)
            values.append(_differences(own.accepted[:shared], their.accepted[:shared]))
        return _interval(values, comparisons=comparisons)

    def _are_most_common(self) -> list[list[bool]]:
        following = [text.tokens[1 : len(text.first) + 1] for text in self.texts]
        token = Counter(token for text in following for token in text).most_common(1)[0][0]
        return [[each == token for each in text] for text in following]

    def apart_from(self, other: "Positions") -> Interval:
        """Difference of the accuracies on different texts."""
        parts = [[list(map(float, text.first)) for text in each.texts] for each in (self, other)]
        (ours, error), (theirs, other_error) = map(_mean_and_error, parts)
        return _around(ours - theirs, math.hypot(error, other_error), min(map(len, parts)) - 1, 1)


def measure(
    drafter: Drafter, target: Target, prompts: Sequence[Prompt], *, stopping: Stopping, gamma: int, batch_size: int
) -> Positions:
    """Draft at every position of the target's greedy continuations, by the engine's loop with teacher forcing.

    Raises:
        ValueError: fewer than two continuations are long enough.
    """
    engine = Engine(
        target=target,
        drafter=drafter,
        verifier=TeacherForced(),
        gamma_policy=Fixed(gamma=gamma),
        sampling=Sampling(temperature=0),
    )
    texts = []
    for start in range(0, len(prompts), batch_size):
        batch = prompts[start : start + batch_size]
        drafts: list[list[Draft]] = [[] for _ in batch]

        def keep(outcome: Outcome, drafts: list[list[Draft]] = drafts) -> None:
            draft = outcome.draft.to(torch.device("cpu"))
            for row in outcome.num_committed.nonzero().squeeze(1).tolist():
                drafts[row].append(draft.rows(torch.tensor([row])))

        done = engine.generate(batch, stopping=stopping, seeds=[0] * len(batch), on_round=keep)
        texts += [_text(tokens, each, gamma) for tokens, each in zip(done.tokens, drafts, strict=True)]
    long = sum(bool(text.first) for text in texts)
    if long < 2:
        raise ValueError(
            f"{long} of {len(texts)} prompts have a continuation of more than max_gamma = {gamma} tokens; allowed: at "
            "least 2; see prompts.count, max_new_tokens and stop_at_eos"
        )
    return Positions(texts)


def _text(tokens: list[int], drafts: list[Draft], gamma: int) -> Text:
    whole = max(0, len(tokens) - gamma)
    compared = [agreement(draft, tokens[place + 1 :]) for place, draft in enumerate(drafts[:whole])]
    return Text(tokens, [first for first, _ in compared], [accepted for _, accepted in compared])


def agreement(draft: Draft, following: list[int]) -> tuple[bool, int]:
    """Whether the first node of a draft [1, N] is the next token, and the length of the longest right path."""
    depths: list[int] = []
    reached: list[bool] = []
    nodes = zip(draft.tokens[0].tolist(), draft.parent[0].tolist(), draft.valid[0].tolist(), strict=True)
    for token, parent, valid in nodes:
        depths.append(0 if parent < 0 else depths[parent] + 1)
        is_open = valid and (parent < 0 or reached[parent]) and depths[-1] < len(following)
        reached.append(is_open and following[depths[-1]] == token)
    longest = max((depth + 1 for depth, right in zip(depths, reached, strict=True) if right), default=0)
    return bool(reached and reached[0]), longest


def _common(first: list[int], second: list[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(first), len(second)))


def _mean_and_error(values: list[list[float]]) -> tuple[float, float]:
    """Mean over all positions, and its standard error with the prompts as units."""
    number = sum(map(len, values))
    mean = sum(map(sum, values)) / number
    squares = sum((sum(each) - mean * len(each)) ** 2 for each in values)
    return mean, math.sqrt(squares * len(values) / (len(values) - 1)) / number


def _differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [float(own - their) for own, their in zip(ours, theirs, strict=False)]


def _interval(values: list[list[float]], *, comparisons: int) -> Interval:
    mean, error = _mean_and_error(values)
    return _around(mean, error, len(values) - 1, comparisons)


def _around(mean: float, error: float, degrees: int, comparisons: int) -> Interval:
    from scipy.stats import t  # a slow import

    half = float(t.ppf(1 - (1 - LEVEL) / 2 / comparisons, degrees)) * error
    return Interval(mean, mean - half, mean + half)
