"""The GammaPolicy contract (framework/gamma_policies/gamma_policy.py), executable."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import cached_property
from itertools import product
from unittest.mock import patch

import torch

from framework.conformance.report import Breach, Check, Report, require, run_checks
from framework.conformance.test_doubles import PATTERNS, Pattern, no_global_randomness
from framework.core.draft import DraftedNode, Readout
from framework.gamma_policies.gamma_policy import LARGEST, Costs, GammaPolicy
from framework.gamma_policies.round_profile import give_costs

NUM_ROWS = 4
ROUNDS = 40
DEEPEST = 32  # decisions per round
SUPPORT = 50  # tokens of a drafted node's distribution
DRAFT_COSTS = (0.0, 0.1, 2.0)  # cheap, usual, and dearer than decoding
CLOCKS = tuple(
    f"{clock}{unit}" for clock in ("time", "perf_counter", "monotonic", "process_time") for unit in ("", "_ns")
)


def check_gamma_policy(factory: Callable[[], GammaPolicy]) -> Report:
    """Check a gamma policy against its contract, on simulated outcomes.

    Args:
        factory: constructor of the policy; called several times.

    Returns:
        the report; `report.require()` raises Breach if a rule is broken.
    """
    checks = _GammaPolicyChecks(factory)
    return run_checks(type(checks.policy).__name__, list(checks.all()))


class _GammaPolicyChecks:
    """One gamma policy, with a method per rule; each raises Breach or returns an optional remark."""

    def __init__(self, factory: Callable[[], GammaPolicy]):
        self.factory = factory
        self.policy = factory()

    def all(self) -> Iterator[Check]:
        """Rules that apply to the policy, those that others rely on first."""
        yield Check(
            "max_gamma, should_continue, begin, next_gamma and observe are there", self.declares, essential=True
        )
        yield Check("gamma is a whole number from 0 to max_gamma in every round", self.bounds, essential=True)
        yield Check("the same outcomes give the same gammas", self.determined)
        yield Check("begin forgets earlier generations", self.begin_forgets)
        yield Check("no clock is read", self.no_clock)
        yield Check("observe only reads the outcome", self.only_reads)
        if getattr(self.policy, "should_continue", None) is not None:
            yield Check("should_continue gives [B] bool", self.decisions)
            yield Check("should_continue decides for every row as for the row alone", self.rows_alone)

    def declares(self) -> str:
        most = getattr(self.policy, "max_gamma", None)
        require(
            isinstance(most, int) and not isinstance(most, bool) and 0 <= most <= LARGEST,
            f"max_gamma is {most!r}; set it to a whole number from 0 to {LARGEST}",
        )
        for name in ("begin", "next_gamma", "observe"):
            require(callable(getattr(self.policy, name, None)), f"{name} is not there; add the method")
        require(
            hasattr(self.policy, "should_continue"), "should_continue is not there; set it to None, or add the method"
        )
        rule = self.policy.should_continue
        require(rule is None or callable(rule), f"should_continue is {rule!r}; None or a method is required")
        return f"max_gamma {most}, " + ("drafts are never ended early" if rule is None else "drafts may end early")

    def bounds(self) -> str:
        found: set[int] = set()
        most = self.policy.max_gamma
        for pattern, c in product(PATTERNS, DRAFT_COSTS):
            for number, gamma in enumerate(self._gammas(self.policy, pattern, c=c), start=1):
                require(
                    isinstance(gamma, int) and not isinstance(gamma, bool) and 0 <= gamma <= most,
                    f"next_gamma gives {gamma!r} in round {number} (accepted: {pattern}); a whole number from 0 to "
                    f"max_gamma, which is {most}, is required: buffers are sized for max_gamma",
                )
                found.add(gamma)
        require(
            self.policy.max_gamma == most, f"max_gamma changed from {most} to {self.policy.max_gamma}; keep it constant"
        )
        return "gammas " + ", ".join(map(str, sorted(found)))

    @cached_property
    def expected(self) -> dict[str, list[int]]:
        """Gammas of a policy that has seen no other generation, for every pattern."""
        return {pattern: self._gammas(self.factory(), pattern) for pattern in PATTERNS}

    def determined(self) -> None:
        other, advice = self.factory(), "decide from the outcomes, or draw with a generator that begin seeds"
        for pattern, expected in self.expected.items():
            with no_global_randomness("the policy", advice):
                gammas = self._gammas(other, pattern)
            _require_same(gammas, expected, f"with the outcomes of another policy of this class (accepted: {pattern})")

    def begin_forgets(self) -> None:
        for earlier, (pattern, expected) in product(PATTERNS, self.expected.items()):
            self._gammas(self.policy, earlier)
            gammas = self._gammas(self.policy, pattern)
            _require_same(gammas, expected, f"after a generation (accepted: {earlier}); begin must forget it")

    def no_clock(self) -> None:
        with clocks_forbidden(self.policy):
            for pattern in PATTERNS:
                self._gammas(self.policy, pattern)
                if self.policy.should_continue is not None and self.policy.max_gamma > 1:
                    self._decisions(self.policy, pattern, rows=range(NUM_ROWS))

    def only_reads(self) -> None:
        _give_costs(self.policy, DRAFT_COSTS[1])
        self.policy.begin()
        for number in range(ROUNDS):
            readout = simulated(self.policy.next_gamma(), PATTERNS["one"], number)
            before = deepcopy(readout)
            self.policy.observe(readout)
            require(readout == before, "observe changed the Readout, which tallies read as well; copy its lists first")

    def decisions(self) -> str:
        if self.policy.max_gamma < 2:
            return "drafts of one token are never ended early, so this shows nothing"
        found = torch.stack(self._decisions(self.policy, "one", rows=range(NUM_ROWS)))
        return f"{found.float().mean():.0%} of decisions are to continue"

    def rows_alone(self) -> None:
        if self.policy.max_gamma < 2:
            return
        for pattern in PATTERNS:
            together = self._decisions(self.policy, pattern, rows=range(NUM_ROWS))
            for row in range(NUM_ROWS):
                alone = self._decisions(self.policy, pattern, rows=[row])
                for number, (both, one) in enumerate(zip(together, alone, strict=True)):
                    require(
                        both[row].item() == one.item(),
                        f"row {row} gets {both[row].item()} in a batch and {one.item()} alone, in decision {number}; "
                        "decide from the row's own node and outcomes, so that its tokens do not depend on its batch",
                    )

    # Simulated generations

    def _gammas(self, policy: GammaPolicy, pattern: str, *, c: float = DRAFT_COSTS[1]) -> list[int]:
        """Gammas of a generation with dictated acceptance."""
        _give_costs(policy, c)
        policy.begin()
        gammas = []
        for number in range(ROUNDS):
            gammas.append(policy.next_gamma())
            policy.observe(simulated(gammas[-1], PATTERNS[pattern], number))
        return gammas

    def _decisions(self, policy: GammaPolicy, pattern: str, *, rows: Sequence[int]) -> list[torch.Tensor]:
        """Decisions of some rounds after every node but the last, each [R] bool.

        All drafts are max_gamma deep: the gammas that the policy chooses may differ between a row alone and its batch.
        """
        _give_costs(policy, DRAFT_COSTS[1])
        policy.begin()
        found, gamma = [], policy.max_gamma
        for number in range(ROUNDS // 4):
            policy.next_gamma()
            for node in drafted_nodes(gamma, number, rows):
                assert policy.should_continue is not None
                found.append(decision := policy.should_continue(node))
                require(
                    isinstance(decision, torch.Tensor)
                    and decision.dtype == torch.bool
                    and decision.shape == node.entry.shape,
                    f"should_continue gives {decision!r} for {len(rows)} rows; a [B] bool tensor is required",
                )
            policy.observe(simulated(gamma, PATTERNS[pattern], number, rows=rows))
        return found


def simulated(gamma: int, pattern: Pattern, number: int, *, rows: Sequence[int] = range(NUM_ROWS)) -> Readout:
    """The Readout of round `number` after a draft of depth gamma with dictated acceptance.

    Row 1 has an ever smaller token budget, and row 2 ends after some rounds.
    """
    all_rows = range(NUM_ROWS)
    active = [int(row != 2 or number < ROUNDS // 8) for row in all_rows]
    max_depth = [max(0, ROUNDS // 4 - number) if row == 1 else LARGEST for row in all_rows]
    offered = [min(gamma, most) * on for most, on in zip(max_depth, active, strict=True)]
    accepted = pattern(number, torch.tensor(offered)).tolist()
    found = zip(active, offered, accepted, max_depth, strict=True)
    kept = [
        (on, depth, right, int(right < depth), (right + 1) * on, most)
        for row, (on, depth, right, most) in enumerate(found)
        if row in rows
    ]
    return Readout(gamma, *(list(column) for column in zip(*kept, strict=True)))


def drafted_nodes(gamma: int, number: int, rows: Sequence[int]) -> Iterator[DraftedNode]:
    """Drafted nodes of round `number`, all but the last; those of a row do not depend on the other rows."""
    random = torch.Generator().manual_seed(number)
    for depth in range(1, min(gamma, DEEPEST)):
        sharpness = 8 * torch.rand(NUM_ROWS, 1, generator=random)
        probs = (sharpness * torch.randn(NUM_ROWS, SUPPORT, generator=random)).softmax(1)
        entry = probs.multinomial(1, generator=random).squeeze(1)
        yield DraftedNode(probs=probs[list(rows)], entry=entry[list(rows)], depth=depth)


@contextmanager
def clocks_forbidden(part: object) -> Iterator[None]:
    """
    Raises:
        Breach: the body reads a clock in this thread, from `time` or by a name in the module of the part's class.
    """
    module, thread = vars(sys.modules[type(part).__module__]), threading.get_ident()

    def forbidden(name: str, clock: Callable[[], float]) -> Callable[[], float]:
        def read() -> float:
            if threading.get_ident() == thread:
                raise Breach(
                    f"it reads time.{name}; decide from outcomes, and take measurements in use_costs or use_profile"
                )
            return clock()

        return read

    with ExitStack() as patches:
        for name in CLOCKS:
            clock = getattr(time, name)
            patches.enter_context(patch.object(time, name, forbidden(name, clock)))
            imported = {given: forbidden(name, clock) for given, value in module.items() if value is clock}
            patches.enter_context(patch.dict(module, imported))
        yield


def _give_costs(policy: GammaPolicy, c: float) -> None:
    """Pass costs to a policy that uses them: longer target passes take slightly longer."""
    give_costs(policy, Costs(c=c, target_times=tuple(1 + 0.05 * more for more in range(policy.max_gamma + 1))))


def _require_same(got: list[int], expected: list[int], where: str) -> None:
    for number, (gamma, other) in enumerate(zip(got, expected, strict=True), start=1):
        require(gamma == other, f"next_gamma gives {gamma} instead of {other} in round {number}, {where}")
