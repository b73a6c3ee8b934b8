"""Threshold on a score of drafted tokens that adapts to every row's acceptance (Zhang et al., 2024)."""

import torch
from torch import Tensor

from framework.core.draft import DraftedNode, Readout
from framework.core.validation import check_number
from framework.gamma_policies.gamma_policy import check_gamma


class AdaptiveThreshold:
    """Ends a row's draft after a token whose score is below the row's threshold; subclasses define the score.

    After every verification of d offered nodes, a of them accepted, a row's acceptance and threshold become

        acceptance  <-  b1 * acceptance + (1 - b1) * a / d
        threshold   <-  b2 * threshold + (1 - b2) * moved

    where `moved` is threshold + eps if acceptance is below alpha_target; otherwise it is the threshold itself if
    d = max_gamma, and threshold - eps if not. The token below the threshold is still offered, which is exact.

    Every row has its own threshold, so that its tokens do not depend on its batch. Each node costs one synchronisation
    with the device. Every generation starts with an acceptance of 0, so that the threshold rises first. As published,
    the threshold is not clipped to [0, 1]: it takes as long to return as it took to leave. Drafters that draft all
    nodes in one step are not stopped.
    """

    def __init__(
        self, *, max_gamma: int, threshold: float, alpha_target: float | None, b1: float, b2: float, eps: float
    ):
        """
        Args:
            max_gamma: longest draft; the paper's K_max.
            threshold: in [0, 1], threshold of a generation's first round.
            alpha_target: in [0, 1], share of accepted nodes that the threshold is to reach; None: it never moves.
            b1: in [0, 1), weight of the previous acceptance.
            b2: in [0, 1), weight of the previous threshold.
            eps: in [0, 1], step before damping by b2; the threshold moves by eps * (1 - b2) per round.

        Raises:
            ValueError: a setting outside its range; the message names the yaml key.
        """
        check_gamma("max_gamma", max_gamma, least=1)
        check_number("threshold", threshold, lambda value: 0 <= value <= 1, "a number in [0, 1]")
        if alpha_target is not None:
            check_number("alpha_target", alpha_target, lambda value: 0 <= value <= 1, "a number in [0, 1]")
        check_number("b1", b1, lambda value: 0 <= value < 1, "a number in [0, 1)")
        check_number("b2", b2, lambda value: 0 <= value < 1, "a number in [0, 1)")
        check_number("eps", eps, lambda value: 0 <= value <= 1, "a number in [0, 1]")
        self.max_gamma = max_gamma
        self.initial = threshold
        self.alpha_target = alpha_target
        self.b1, self.b2, self.eps = b1, b2, eps
        self.begin()

    def begin(self) -> None:
        self.threshold: list[float] = []  # per row; empty before the first round, where all rows have the initial one
        self.acceptance: list[float] = []

    def begin_rows(self, rows: list[int]) -> None:
        if self.threshold:  # otherwise all rows have the initial one
            for row in rows:
                self.threshold[row], self.acceptance[row] = self.initial, 0.0
            self._on_device = torch.tensor(self.threshold, dtype=torch.float64)

    def should_continue(self, node: DraftedNode) -> Tensor:
        if not self.threshold:  # all rows have the initial one
            return self.score(node) >= self.initial
        self._on_device = self._on_device.to(node.probs.device)
        return self.score(node) >= self._on_device

    def score(self, node: DraftedNode) -> Tensor:
        """[B] float32: likelihood of acceptance of the next token, compared with the threshold."""
        raise NotImplementedError

    def next_gamma(self) -> int:
        return self.max_gamma

    def observe(self, readout: Readout) -> None:
        if self.alpha_target is None:
            return
        num_rows = len(readout.active)
        before = zip(
            self.threshold or [self.initial] * num_rows,
            self.acceptance or [0.0] * num_rows,
            readout.active,
            readout.offered,
            readout.accepted,
            strict=True,
        )
        moved = [self._moved(*row) for row in before]
        self.threshold, self.acceptance = map(list, zip(*moved, strict=True))
        self._on_device = torch.tensor(self.threshold, dtype=torch.float64)

    def _moved(
        self, threshold: float, acceptance: float, active: int, offered: int, accepted: int
    ) -> tuple[float, float]:
        """Threshold and acceptance of one row after a round."""
        if not active or not offered or self.alpha_target is None:
            return threshold, acceptance
        acceptance = self.b1 * acceptance + (1 - self.b1) * accepted / offered
        move = self.eps if acceptance < self.alpha_target else 0.0 if offered == self.max_gamma else -self.eps
        return self.b2 * threshold + (1 - self.b2) * (threshold + move), acceptance
