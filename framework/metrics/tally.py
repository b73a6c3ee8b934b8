"""Raw counts of rounds. Ratios are derived last, so that the tallies of several runs add up."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

from framework.core.draft import Outcome, Readout, SamplingScheme, Shape
from framework.metrics import theory
from framework.metrics.optimal_transport import optimum_after_pending

SETTINGS = ("max_gamma", "max_nodes", "shape", "detailed", "token_rule")  # all other fields are counts


@dataclass
class Tally:
    """Counts over rounds, prefill excluded.

    A node is *tested* if it is accepted or the first one rejected; alpha is over tested nodes only. If nodes have
    siblings, a level of the draft is tested, and accepted if one of its nodes is. Nothing is tested after the end of a
    branch.

    Attributes:
        max_gamma: largest depth of a draft.
        max_nodes: largest number of nodes of a draft; None: max_gamma, as for chains.
        shape: shape of the drafts.
        rounds_by_depth: number of rounds by (offered depth, accepted depth). If acceptance reaches the end of a branch,
            the accepted depth also counts as the offered one.
        passes_by_nodes: number of target passes by number of nodes read, pending not counted.
        passes_by_gamma: number of target passes by the gamma that the policy chose.
        committed: committed tokens, the replaced or bonus token of every round included.
        detailed: whether the sums below are computed; they need every distribution in full, so timed runs omit them.
        token_rule: whether nodes are accepted with probability min(1, p / q), so that overlap predicts acceptance.
        overlap: sum of beta = sum_x min(p, q) over tested nodes of chains; in trees it does not predict acceptance.
        overlap_tested: number of nodes in this sum.
        overlap_variance: sum of beta (1 - beta) over them.
        optimum: sum over rounds of the largest probability that any exact rule accepts a node at depth 1; independent
            siblings only, where it costs one sort.
        optimum_tested: number of rounds in this sum.
        expected: sum over rounds of the accepted nodes expected from the stop probabilities.
        expected_variance: sum over rounds of the variance of accepted nodes under the stop probabilities.
    """

    max_gamma: int
    max_nodes: int | None = None
    shape: Shape = Shape.CHAIN
    detailed: bool = False
    token_rule: bool = True
    rounds_by_depth: Counter[tuple[int, int]] = field(default_factory=Counter, init=False)
    passes_by_nodes: Counter[int] = field(default_factory=Counter, init=False)
    passes_by_gamma: Counter[int] = field(default_factory=Counter, init=False)
    committed: int = 0
    overlap: float = 0
    overlap_tested: int = 0
    overlap_variance: float = 0
    optimum: float = 0
    optimum_tested: int = 0
    expected: float = 0
    expected_variance: float = 0

    def emptied(self) -> "Tally":
        """An empty tally with the same settings."""
        return Tally(**{name: getattr(self, name) for name in SETTINGS})

    def observe(self, readout: Readout, *, gamma: int | None = None) -> None:
        """Count one round of the active rows.

        Args:
            gamma: the round's gamma; None: unknown, and not counted.
        """
        if gamma is not None:
            self.passes_by_gamma[gamma] += 1
        if not readout.num_nodes:
            self.rounds_by_depth[0, 0] += sum(readout.active)
        else:
            rows = zip(readout.active, readout.offered, readout.accepted, readout.rejected, strict=True)
            for active, offered, accepted, rejected in rows:
                if active:
                    self.rounds_by_depth[offered if rejected else accepted, accepted] += 1
        self.passes_by_nodes[readout.num_nodes] += 1
        self.committed += sum(readout.committed)

    def observe_distributions(self, outcome: Outcome) -> None:
        """Update the sums of a detailed tally."""
        if not outcome.draft.num_nodes:
            return
        active = outcome.active
        if self.shape is Shape.CHAIN:
            self._observe_overlap(outcome)
        elif outcome.draft.scheme is SamplingScheme.IID:
            self._observe_optimum(outcome)
        depth = outcome.draft.tree.depth[active].double()
        assert outcome.stop_probs is not None, "rounds of the loop have stop_probs"
        probs = outcome.stop_probs.double()[active]
        mean = (probs * depth).sum(1)
        self.expected += mean.sum().item()
        self.expected_variance += ((probs * depth**2).sum(1) - mean**2).sum().item()

    def _observe_overlap(self, outcome: Outcome) -> None:
        draft = outcome.draft
        index = torch.arange(draft.num_nodes, device=draft.tokens.device)
        tested = draft.valid & (index <= outcome.num_accepted.unsqueeze(1)) & outcome.active.unsqueeze(1)
        assert outcome.target is not None, "rounds of the loop have the target's logits"
        p = outcome.target.all_probs[:, :-1].double()
        beta = torch.minimum(p, draft.dense_probs(p.shape[2]).double()).sum(2)[tested]
        self.overlap += beta.sum().item()
        self.overlap_tested += len(beta)
        self.overlap_variance += (beta * (1 - beta)).sum().item()

    def _observe_optimum(self, outcome: Outcome) -> None:
        assert outcome.target is not None, "rounds of the loop have the target's logits"
        tested = outcome.active & (outcome.draft.offered_depth > 0)
        self.optimum += optimum_after_pending(outcome.target, outcome.draft)[tested].sum().item()
        self.optimum_tested += int(tested.sum())

    def add(self, other: "Tally") -> None:
        """Add the counts of another tally with the same settings.

        Raises:
            ValueError: a setting differs.
        """
        ours, theirs = ({name: getattr(tally, name) for name in SETTINGS} for tally in (self, other))
        if ours != theirs:
            raise ValueError(
                f"a tally of {theirs} cannot be added to one of {ours}; their runs differ in gamma= or verifier="
            )
        for counted in fields(self):
            if counted.name not in SETTINGS:
                setattr(self, counted.name, getattr(self, counted.name) + getattr(other, counted.name))

    @classmethod
    def total(cls, tallies: Iterable["Tally"]) -> "Tally":
        """Sum of one or more tallies.

        Raises:
            ValueError: a setting differs.
        """
        first, *others = tallies
        total = first.emptied()
        for each in (first, *others):
            total.add(each)
        return total

    @property
    def accepted(self) -> np.ndarray:
        """[max_gamma + 1, max_gamma + 1]: `rounds_by_depth` by offered depth (first axis) and accepted depth."""
        return _table(self.rounds_by_depth, (self.max_gamma + 1, self.max_gamma + 1))

    @property
    def passes(self) -> np.ndarray:
        """[max_nodes + 1]: `passes_by_nodes`."""
        most = self.max_gamma if self.max_nodes is None else self.max_nodes
        return _table(self.passes_by_nodes, (most + 1,))

    @property
    def gammas(self) -> np.ndarray:
        """[max_gamma + 1]: `passes_by_gamma`."""
        return _table(self.passes_by_gamma, (self.max_gamma + 1,))

    @property
    def num_passes(self) -> float:
        """Target passes, each counted once for the whole batch."""
        return float(self.passes_by_nodes.total())

    @property
    def num_drafted(self) -> float:
        """Nodes read in all target passes, pending not counted."""
        return float(sum(nodes * number for nodes, number in self.passes_by_nodes.items()))

    @property
    def num_rounds(self) -> float:
        """Rounds, counted per row: target passes in which a row was active."""
        return float(self.rounds_by_depth.total())

    @property
    def accepted_by_position(self) -> list[float]:
        """Nodes accepted at depth 1, 2, ..."""
        by_accepted = self.accepted.sum(0).tolist()
        return [sum(by_accepted[position:]) for position in range(1, self.max_gamma + 1)]

    @property
    def tested_by_position(self) -> list[float]:
        """Nodes tested at depth 1, 2, ...: offered, with an accepted node at every smaller depth."""
        table = self.accepted.tolist()
        return [
            sum(sum(row[position - 1 :]) for offered, row in enumerate(table) if offered >= position)
            for position in range(1, self.max_gamma + 1)
        ]

    def counts(self) -> dict[str, object]:
        """All counts, as plain numbers."""
        return {
            "rounds": self.num_rounds,
            "committed": self.committed,
            "rounds_by_offered_and_accepted": self.accepted.tolist(),
            "passes_by_nodes": self.passes.tolist(),
            "passes_by_gamma": self.gammas.tolist(),
            "accepted": sum(self.accepted_by_position),
            "tested": sum(self.tested_by_position),
            "overlap": self.overlap,
            "overlap_tested": self.overlap_tested,
            "overlap_variance": self.overlap_variance,
            "optimum": self.optimum,
            "optimum_tested": self.optimum_tested,
            "expected": self.expected,
            "expected_variance": self.expected_variance,
        }

    def metrics(self) -> dict[str, Any]:
        """alpha, tau and their checks; None where nothing was tested.

        `alpha/check` is whether the accepted nodes agree with the sums expected from the distributions, within four
        standard deviations plus three times the largest single term. False means a bug: a correct run fails with a
        probability of at most 1 in 8,000.
        """
        tested, accepted = sum(self.tested_by_position), sum(self.accepted_by_position)
        metrics: dict[str, Any] = {
            "tau": ratio(self.committed, self.num_rounds),
            "alpha/empirical": ratio(accepted, tested),
            "gamma/chosen": ratio(float(self.gammas @ np.arange(len(self.gammas))), float(self.gammas.sum())),
            "undrafted": ratio(float(self.passes[0]), self.num_passes),
        }
        for position, (kept, tried) in enumerate(
            zip(self.accepted_by_position, self.tested_by_position, strict=True), start=1
        ):
            metrics[f"alpha/position/{position}"] = ratio(kept, tried)
        if self.detailed:
            metrics["alpha/overlap"] = ratio(self.overlap, self.overlap_tested)
            if self.optimum_tested:
                metrics["alpha/optimal"] = self.optimum / self.optimum_tested
            alpha = metrics["alpha/overlap" if self.token_rule else "alpha/empirical"]
            metrics["tau/eq1"] = self._expected_by_eq1(alpha) if self.shape is Shape.CHAIN else None
            promises = [(self.expected, self.expected_variance, self.max_gamma)]
            if self.token_rule:
                promises.append((self.overlap, self.overlap_variance, 1))
            # Sums of few rare events are not normal: by the four standard deviations alone, without the three steps, a
            # drafter that is nearly always right would be flagged in 1 run of 20.
            metrics["alpha/check"] = all(
                abs(accepted - mean) <= 4 * math.sqrt(max(variance, 0)) + 3 * largest_step
                for mean, variance, largest_step in promises
            )
        return metrics

    def _expected_by_eq1(self, alpha: float | None) -> float | None:
        """Tokens per round by Eq. 1 for this alpha, averaged over the offered drafts.

        The offered depth varies with the gamma policy, with drafters that find fewer tokens, and near a row's end.
        """
        if alpha is None:
            return None
        alpha = min(alpha, 1.0)  # a mean of float32 sums may exceed 1 by rounding
        offered = self.accepted.sum(1).tolist()
        total = sum(count * theory.expected_tokens(alpha, nodes) for nodes, count in enumerate(offered))
        return ratio(total, self.num_rounds)


def _table(counter: Mapping[Any, int], shape: tuple[int, ...]) -> np.ndarray:
    """The counts at their places in an array.

    Raises:
        IndexError: a place lies outside the array.
    """
    table = np.zeros(shape)
    for place, number in counter.items():
        table[place] = number
    return table


def ratio(numerator: float, denominator: float) -> float | None:
    """The quotient; None for a denominator of 0."""
    return numerator / denominator if denominator else None
