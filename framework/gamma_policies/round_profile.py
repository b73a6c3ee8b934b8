"""Measured times of whole rounds, and measured acceptance, for the choice of gamma."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, Self, TypeGuard

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
            for row, active in enumerate(readout.active):
                if active:
                    self.count(gamma, readout, row)

    def count(self, gamma: int, readout: Readout, row: int) -> None:
        """Count one row of a round."""
        accepted = readout.accepted[row]
        for depth in range(min(accepted + 1, gamma, readout.max_depth[row])):
            self.accepted[depth] += depth < accepted
            self.tested[depth] += 1

    def scale(self, factor: float) -> None:
        """Multiply the weight of all that was counted."""
        self.accepted = [factor * count for count in self.accepted]
        self.tested = [factor * count for count in self.tested]

    def without(self, part: "AcceptanceByDepth") -> "AcceptanceByDepth":
        """The counts that remain if a part of them is taken away."""
        rest = AcceptanceByDepth(len(self.tested))
        rest.accepted = [count - less for count, less in zip(self.accepted, part.accepted, strict=True)]
        rest.tested = [count - less for count, less in zip(self.tested, part.tested, strict=True)]
        return rest

    def rates(self, prior: Sequence[float], weight: float) -> list[float]:
        """Rate of every depth; the prior weighs as much as `weight` tested rows, and its last entry serves deeper ones.

        Args:
            prior: at least one rate.
            weight: weight of the prior, > 0.
        """
        priors = [prior[min(depth, len(prior) - 1)] for depth in range(len(self.tested))]
        return [
            (weight * alpha + accepted) / (weight + tested)
            for alpha, accepted, tested in zip(priors, self.accepted, self.tested, strict=True)
        ]

    def measured(self) -> list[float]:
        """Rate of every depth, drawn towards the rate of the depth above where few rows were tested."""
        rates, above = [], UNKNOWN_ALPHA
        for accepted, tested in zip(self.accepted, self.tested, strict=True):
            above = (above + accepted) / (1 + tested)
            rates.append(above)
        return rates


class AcceptanceByRow:
    """Acceptance by depth of every row that decodes; that of all others, also of ended ones, is its prior.

    Rows that end first accept more than those that remain, so a mean over all that was seen would promise too much.
    """

    def __init__(self, deepest: int, *, forgetting: float):
        """
        Args:
            deepest: number of depths.
            forgetting: decay of a round's weight with every later one that drafts.
        """
        self._deepest, self._forgetting = deepest, forgetting
        self._total = AcceptanceByDepth(deepest)  # of all rows, also of those that ended
        self._of_row: dict[int, AcceptanceByDepth] = {}
        self.active: list[int] = []

    def observe(self, gamma: int, readout: Readout) -> None:
        """Note which rows decode, and count what they accepted if something was drafted."""
        self.active = [row for row, active in enumerate(readout.active) if active]
        if not readout.num_nodes:
            return
        for counts in (self._total, *self._of_row.values()):
            counts.scale(self._forgetting)
        for row in self.active:
            for counts in (self._total, self._of_row.setdefault(row, AcceptanceByDepth(self._deepest))):
                counts.count(gamma, readout, row)

    def begin_rows(self, rows: Sequence[int]) -> None:
        """Forget whose the outcomes of these rows were; they remain in the prior of all."""
        for row in rows:
            self._of_row.pop(row, None)

    def rates(self, prior: Sequence[float], weight: float) -> list[list[float]]:
        """Rate of every depth for each row that decodes; before the first round, one list for all.

        Args:
            prior: rates by depth before any round, at least one.
            weight: weight of `prior`, and of the other rows' rates, in tested rows, > 0.
        """
        if not self.active:
            return [self._total.rates(prior, weight)]
        found = []
        for row in self.active:
            own = self._of_row.get(row, AcceptanceByDepth(self._deepest))
            found.append(own.rates(self._total.without(own).rates(prior, weight), weight))
        return found
