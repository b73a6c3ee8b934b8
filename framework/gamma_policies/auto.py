"""Gamma of the largest speed by measured round times, and no draft where plain decoding is faster."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Self

from framework.core.draft import Readout
from framework.core.option_error import OptionError, UnreadableError
from framework.core.validation import check_number
from framework.gamma_policies.gamma_policy import LARGEST
from framework.gamma_policies.round_profile import AcceptanceByRow, RoundProfile

ROUNDS_PER_SHADOW = 32  # shadow drafts of prompt lookup for 8 rows then take 0.3% of the time (AMD EPYC, two cores)


class Auto:
    """The gamma of the largest expected number of tokens per measured round time, among a few gammas and 0.

    The profile holds the time of a round for every gamma, the acceptance rate of every depth, and the share of the
    rounds in which the drafter finds something to draft. The rates are updated after every round, row by row; the
    profile's count as a prior, and a round's weight decays. The expected tokens are those of the rows that still
    decode. Drafting pays if the best gamma is faster than a round without a draft by `margin`; a round in which the
    drafter finds nothing takes time, too.

    While it does not, shadow drafts (`WithShadowDrafts`) test the rates, one in 32 rounds; after one that would have
    paid the next follows at once. If the loop makes none, or one token cannot pay, the cheapest draft that can pay
    tests them, and a budget limits what tests lose: every round without a draft adds `most_loss` of its time, up to the
    cost of a test that commits the target's own token only. By the profile's times, tests therefore cost at most
    `most_loss` of the rounds without a draft.

    One gamma is chosen for all rows. Every generation starts anew, so equal profiles and seeds give equal tokens.
    """

    should_continue = None

    def __init__(
        self,
        *,
        candidates: list[int],
        margin: float,
        most_loss: float,
        prior_weight: float,
        forgetting: float,
        profile: str | None,
    ):
        """
        Args:
            candidates: gammas to choose from, 0 among them. Compiled rounds need a graph for each.
            margin: least gain of drafting over plain decoding, >= 0.
            most_loss: share of the time without drafts that tests may cost, in [0, 1]; 0: no shadow drafts either.
            prior_weight: weight of the profile's acceptance rates in tested rows, and of its share of rounds with a
                draft in rounds, > 0.
            forgetting: in (0, 1], decay of a draft's weight with every later one, shadow drafts included; 1: no decay.
            profile: path of a profile to use, or of a record that holds one; None: the one that an experiment stored
                or measures.

        Raises:
            ValueError, OSError: a setting outside its range, or a file without a profile; the message names the key.
        """
        whole = isinstance(candidates, list) and all(type(each) is int and 0 <= each <= LARGEST for each in candidates)
        if not whole or 0 not in candidates or len(set(candidates)) < len(candidates):
            allowed = f"a list of different whole numbers up to {LARGEST} with 0, such as [0, 1, 2, 4, 8]"
            raise OptionError("candidates", candidates, allowed)
        check_number("margin", margin, lambda value: 0 <= value < math.inf, "a finite number >= 0")
        check_number("most_loss", most_loss, lambda value: 0 <= value <= 1, "a number in [0, 1]")
        check_number("prior_weight", prior_weight, lambda value: 0 < value < math.inf, "a finite number > 0")
        check_number("forgetting", forgetting, lambda value: 0 < value <= 1, "a number in (0, 1]")
        self.gammas = sorted(candidates)
        self.max_gamma = self.gammas[-1]
        self._margin, self._most_loss = margin, most_loss
        self._prior_weight, self._forgetting = prior_weight, forgetting
        self.awaits_profile = profile is None
        self._in_use: _Candidates | None = None
        if profile is not None:
            self._in_use = _Candidates.from_profile(_read(profile), self.gammas, margin)
        self.begin()

    def use_profile(self, profile: RoundProfile) -> None:
        """Choose among the candidates that a profile has times for, unless the option gives another profile."""
        if self.awaits_profile:
            self._in_use = _Candidates.from_profile(profile, self.gammas, self._margin)

    @property
    def _candidates(self) -> "_Candidates":
        """Candidates by the profile in use.

        Raises:
            ValueError: there is no profile.
        """
        if self._in_use is None:
            raise OptionError("gamma.profile", None, "a file with a profile", "and no rounds were measured")
        return self._in_use

    @property
    def profile(self) -> RoundProfile | None:
        """The profile in use; None: none was given yet."""
        return self._in_use.profile if self._in_use else None

    @property
    def usable(self) -> Sequence[int]:
        """The candidates that can pay by the profile in use, ascending, 0 first."""
        return self._candidates.usable

    @property
    def rates(self) -> list[list[float]]:
        """Estimated acceptance rate of every depth, for each row that decodes."""
        return self._acceptance.rates(self._candidates.profile.acceptance, self._prior_weight)

    def begin(self) -> None:
        self._acceptance = AcceptanceByRow(self.max_gamma, forgetting=self._forgetting)
        self._num_tried = self._num_found = 0.0  # rounds in which the drafter looked for a draft, and found one
        self._active: list[int] = []  # `Readout.active` of the latest round
        self._budget = 0.0  # for tests, in rounds without a draft
        self._num_unshadowed = 0  # rounds after that of the latest shadow draft, with and without a draft
        self._makes_shadows = False  # whether shadow drafts, which have one token, test the rates
        self._best: int | None = None
        self._gamma, self._pays, self._is_paused = 0, False, False

    def begin_rows(self, rows: list[int]) -> None:
        self._acceptance.begin_rows(rows)
        self._active, self._best = [], None

    def next_gamma(self) -> int:
        """
        Raises:
            ValueError: there is no profile.
        """
        if self._best is None:  # the rates have changed
            self._best = self._fastest()
        self._pays = self._best > 0
        if self._pays:
            self._gamma = self._best
        else:
            is_tested = not self._makes_shadows and self._budget >= self._candidates.lost_by_test
            self._gamma = self._candidates.test if is_tested else 0
        return self._gamma

    def allow_shadows(self) -> None:
        self._makes_shadows = self._most_loss > 0 and self._in_use is not None and self._in_use.test == 1

    @property
    def is_shadow_due(self) -> bool:
        return self._num_unshadowed >= ROUNDS_PER_SHADOW - 1 and self._makes_shadows and not self._pays

    @property
    def found(self) -> float:
        """Estimated share of the rounds with a gamma above 0 in which the drafter finds something to draft."""
        weight = self._prior_weight
        return (weight * self._candidates.profile.found + self._num_found) / (weight + self._num_tried)

    def _fastest(self) -> int:
        """The gamma of the largest speed by the current rates; 0 where no draft is faster by `margin`."""
        drafted = [list(accumulate(accumulate(rates, mul))) for rates in self.rates]  # tokens by row and gamma
        tokens = [1.0, *(1 + sum(by_row) / len(by_row) for by_row in zip(*drafted, strict=True))]
        candidates, found = self._candidates, self.found
        missed_time = (1 - found) * candidates.profile.miss_time
        speeds = {0: 1.0}
        for gamma in candidates.usable[1:]:
            speeds[gamma] = (found * tokens[gamma] + 1 - found) / (found * candidates.times[gamma] + missed_time)
        best = max(speeds, key=speeds.__getitem__)  # the smallest on ties
        return best if speeds[best] >= 1 + self._margin else 0

    def observe(self, readout: Readout) -> None:
        if self._gamma or readout.active != self._active:  # other rounds change no rate
            self._learn(self._gamma, readout)
        self._num_unshadowed += 1
        if not (self._pays or self._makes_shadows):
            self._budget = min(self._budget + self._gain(readout), self._candidates.lost_by_test)
        self._is_paused = not readout.num_nodes

    def observe_shadow(self, readout: Readout) -> None:
        num_active = sum(readout.active)
        would_pay = num_active > 0 and 1 + sum(readout.accepted) / num_active >= self._candidates.times[1]
        self._num_unshadowed = ROUNDS_PER_SHADOW - 1 if would_pay else 0
        self._learn(1, readout)

    def _learn(self, gamma: int, readout: Readout) -> None:
        """Update the rates by a draft of this gamma, and note which rows decode."""
        self._acceptance.observe(gamma, readout)
        if gamma and max(readout.max_depth) > 0:  # a row's last token needs no draft
            self._num_tried = self._forgetting * self._num_tried + 1
            self._num_found = self._forgetting * self._num_found + bool(readout.num_nodes)
        self._active, self._best = readout.active, None

    def _gain(self, readout: Readout) -> float:
        """Change of the budget for tests by a round, in rounds without a draft; negative for a test that loses."""
        if not self._gamma:
            return self._most_loss
        if not readout.num_nodes:
            return 1 - self._candidates.profile.miss_time
        num_active = sum(readout.active)
        return sum(readout.committed) / num_active - self._time_of_draft if num_active else 0.0

    @property
    def _time_of_draft(self) -> float:
        """Time of a round with the latest gamma, in rounds without a draft."""
        return self._candidates.times[self._gamma] + self._candidates.profile.restart_time * self._is_paused


@dataclass(frozen=True, kw_only=True)
class _Candidates:
    """Candidates for gamma, and times of their rounds by a profile.

    Attributes:
        profile: the profile.
        times: time of a round by candidate, in rounds without a draft.
        usable: 0, and the candidates that pay if all their tokens are accepted, ascending.
        test: the cheapest of them; 0: none pays.
        lost_by_test: time that a test loses, in rounds without a draft, if it follows rounds without a draft and
            commits the target's own token only.
    """

    profile: RoundProfile
    times: dict[int, float]
    usable: list[int]
    test: int
    lost_by_test: float

    @classmethod
    def from_profile(cls, profile: RoundProfile, candidates: Sequence[int], margin: float) -> Self:
        """Candidates that the profile has times for; a draft pays if it gains at least `margin`."""
        times = {gamma: profile.times[gamma] for gamma in candidates if gamma in profile.times}
        drafts = [gamma for gamma in times if gamma and gamma + 1 >= (1 + margin) * times[gamma]]
        test = min(drafts, key=times.__getitem__, default=0)
        lost = max(0.0, times[test] + profile.restart_time - 1) if drafts else 0.0
        return cls(profile=profile, times=times, usable=[0, *drafts], test=test, lost_by_test=lost)


def _read(path: str) -> RoundProfile:
    """
    Raises:
        OptionError, OSError: the file cannot be read, or holds no profile.
    """
    allowed = "a stored profile, or a record.json that has one"
    try:
        content = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        return RoundProfile.from_json(content.get("round_profile", content))
    except OSError as error:
        raise UnreadableError("profile", path, allowed, f"which cannot be read: {error.strerror}") from error
    except (ValueError, AttributeError) as error:
        raise OptionError("profile", path, allowed, f"{error}") from error
