"""Measured times of whole rounds, and measured acceptance, for the choice of gamma."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from framework.core.draft import Readout
from framework.gamma_policies.gamma_policy import LARGEST, Costs, GammaPolicy, is_cost_aware

UNKNOWN_ALPHA = 0.5  # before any node is tested; it weighs as much as one tested node


@dataclass(frozen=True)
class RoundProfile:
    """Times of rounds by gamma, and acceptance by depth, of one pair in one setting.

    The time of a round covers all that depends on gamma: drafting, the target pass, verification and commit.

    Attributes:
        round_ms: milliseconds of a round by gamma, 0 among them, in ascending order.
        restart_ms: additional milliseconds of the first draft after rounds without one, in which the drafter reads the
            tokens committed meanwhile.
        acceptance: share of the rows that accept a node at depth 1, 2, ..., among those that accepted all nodes above.
        found: share of the rounds with gamma > 0 in which the drafter found something to draft; only such rounds count
            in round_ms and acceptance.
        miss_ms: milliseconds of a round in which it found nothing; None: those of a round without a draft.
    """

    round_ms: Mapping[int, float]
    restart_ms: float
    acceptance: Sequence[float]
    found: float = 1.0
    miss_ms: float | None = None

    @classmethod
    def of_costs(cls, costs: Costs) -> Self:
        """Profile of rounds that take the sum of their parts, with an unknown acceptance."""
        times = {gamma: costs.of_round(gamma) for gamma in range(len(costs.target_times))}
        return cls(round_ms=times, restart_ms=0.0, acceptance=(UNKNOWN_ALPHA,))

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """
        Raises:
            ValueError: the content is not that of `to_json`.
        """
        try:
            round_ms = {int(gamma): float(ms) for gamma, ms in content["round_ms"].items()}
            acceptance = [float(alpha) for alpha in content["acceptance"]]
            restart_ms, found = float(content["restart_ms"]), float(content.get("found", 1))
            miss_ms = None if content.get("miss_ms") is None else float(content["miss_ms"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no profile of rounds ({type(error).__name__}: {error})") from error
        sound = (
            0 in round_ms
            and all(0 <= gamma <= LARGEST and 0 < ms < inf for gamma, ms in round_ms.items())
            and 0 <= restart_ms < inf
            and 0 <= found <= 1
            and (miss_ms is None or 0 < miss_ms < inf)
            and acceptance
            and all(0 <= alpha <= 1 for alpha in acceptance)
        )
        if not sound:
            raise ValueError("a profile of rounds with values out of range")
        return cls(dict(sorted(round_ms.items())), restart_ms, acceptance, found, miss_ms)

    def to_json(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        return {
            "round_ms": {str(gamma): ms for gamma, ms in self.round_ms.items()},
            "restart_ms": self.restart_ms,
            "acceptance": list(self.acceptance),
            "found": self.found,
            "miss_ms": self.miss_ms,
        }

    @property
    def times(self) -> dict[int, float]:
        """Time of a round by gamma, in rounds without a draft."""
        return {gamma: ms / self.round_ms[0] for gamma, ms in self.round_ms.items()}

    @property
    def restart_time(self) -> float:
        """`restart_ms` in rounds without a draft."""
        return self.restart_ms / self.round_ms[0]

    @property
    def miss_time(self) -> float:
        """`miss_ms` in rounds without a draft."""
        return 1.0 if self.miss_ms is None else self.miss_ms / self.round_ms[0]


class Profiled(GammaPolicy, Protocol):
    """Optional: a policy that decides by a measured profile of rounds."""

    gammas: Sequence[int]
    """Every gamma that the policy may choose, ascending, 0 first."""

    awaits_profile: bool
    """Whether experiments provide the profile, rather than an option."""

    @property
    def usable(self) -> Sequence[int]:
        """Those of the gammas that it may choose with the profile in use."""
        ...

    @property
    def profile(self) -> RoundProfile | None:
        """The profile in use; None: none was given yet."""
        ...

    def use_profile(self, profile: RoundProfile) -> None:
        """Use a profile; called between generations, by experiments that measure or store profiles."""
        ...


def is_profiled(policy: GammaPolicy) -> TypeGuard[Profiled]:
    """Whether the policy is a Profiled one."""
    return hasattr(policy, "use_profile")


def give_costs(policy: GammaPolicy, costs: Costs) -> None:
    """Pass costs of the parts of a round to a policy that decides by costs or by a profile; others need none."""
    if is_cost_aware(policy):
        policy.use_costs(costs)
    if is_profiled(policy):
        policy.use_profile(RoundProfile.of_costs(costs))


def _outcomes(gamma: int, readout: Readout, depths: NDArray[np.int_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Accepted nodes and tested ones of a round of this gamma, by row and depth from 0, both [B, depths]."""
    accepted = np.array(readout.accepted)[:, None]
    most = np.minimum(np.array(readout.max_depth), gamma)[:, None]
    tested = np.array(readout.active, dtype=bool)[:, None] & (depths < np.minimum(accepted + 1, most))
    return tested & (depths < accepted), tested


class AcceptanceByDepth:
    """Running shares of the rows that accept a node at each depth, among those that accepted all nodes above.

    A row that was offered no node where the round's gamma allowed one counts as a rejection: the round's time was
    spent. Rounds in which no row was offered a node are not counted.
    """

    def __init__(self, deepest: int):
        """
        Args:
            deepest: number of depths.
        """
        self.accepted = [0.0] * deepest
        self.tested = [0.0] * deepest

    def observe(self, gamma: int, readout: Readout) -> None:
        """Count one round of this gamma."""
        if readout.num_nodes:
            accepted, tested = _outcomes(gamma, readout, np.arange(len(self.tested)))
            self.accepted = (self.accepted + accepted.sum(0)).tolist()
            self.tested = (self.tested + tested.sum(0)).tolist()

    def measured(self) -> list[float]:
        """Rate of every depth, drawn towards the rate of the depth above where few rows were tested."""
        rates, above = [], UNKNOWN_ALPHA
        for accepted, tested in zip(self.accepted, self.tested, strict=True):
            above = (above + accepted) / (1 + tested)
            rates.append(above)
        return rates


class AcceptanceByRow:
    """Acceptance by depth of each row, with the acceptance of all other rows, ended ones included, as its prior.

    Rows that end first accept more than the others, so a mean over all rows overestimates the rest.
    """

    def __init__(self, deepest: int, *, forgetting: float):
        """
        Args:
            deepest: number of depths.
            forgetting: decay of a draft's weight with every later one.
        """
        self._depths, self._forgetting = np.arange(deepest), forgetting
        self._ended = np.zeros((2, deepest))  # accepted and tested in rows that have begun anew
        self._counts = np.zeros((2, 0, deepest))  # of every row
        self.active: list[int] = []

    def observe(self, gamma: int, readout: Readout) -> None:
        """Note which rows decode, and count what they accepted if something was drafted."""
        self.active = [row for row, active in enumerate(readout.active) if active]
        if not readout.num_nodes:
            return
        if new := len(readout.active) - self._counts.shape[1]:
            self._counts = np.pad(self._counts, ((0, 0), (0, new), (0, 0)))
        self._ended *= self._forgetting
        self._counts *= self._forgetting
        self._counts += _outcomes(gamma, readout, self._depths)

    def begin_rows(self, rows: Sequence[int]) -> None:
        """Move the outcomes of these rows to the prior of all rows; they decode from now on."""
        self.active = sorted({*self.active, *rows})
        if self._counts.size:
            self._ended += self._counts[:, rows].sum(1)
            self._counts[:, rows] = 0

    def rates(self, prior: Sequence[float], weight: float) -> list[list[float]]:
        """Rate of every depth for each row that decodes; before the first draft, one list for all.

        Args:
            prior: rates by depth before any round, at least one; the last entry serves deeper ones.
            weight: weight of `prior`, and of the other rows' rates, in tested rows, > 0.
        """
        priors = np.array(prior)[np.minimum(self._depths, len(prior) - 1)]
        own = self._counts[:, self.active] if self._counts.size else np.zeros((2, 1, len(self._depths)))
        accepted, tested = (self._ended + self._counts.sum(1))[:, None] - own  # of the others
        others = (weight * priors + accepted) / (weight + tested)
        rates: list[list[float]] = ((weight * others + own[0]) / (weight + own[1])).tolist()
        return rates
