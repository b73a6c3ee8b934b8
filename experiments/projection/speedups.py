"""Projected speedups of speculative decoding: tau / (d + v) with d and v from the roofline."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.projection.acceptance import Acceptance
from experiments.projection.model_size import ModelSize
from experiments.projection.roofline import Roofline
from framework.metrics.theory import speedup, zero_overhead_speedup

MOST_ROWS = 4096  # largest batch that is looked at


@dataclass(frozen=True)
class Decoding:
    """A target and the source of its drafts on one GPU or CPU.

    Attributes:
        roofline: times of passes.
        target: sizes of the target.
        draft_model: sizes of the draft model; None: drafting takes no time, as in prompt lookup.
        acceptance: accepted nodes.
        gammas: numbers of drafted tokens to choose from; 0 is plain decoding.
    """

    roofline: Roofline
    target: ModelSize
    draft_model: ModelSize | None
    acceptance: Acceptance
    gammas: Sequence[int]

    def project(self, *, batch: int, context: int) -> "Projection":
        """The best projection over the gammas, the smallest gamma on ties."""
        most = self.acceptance.most
        known = [gamma for gamma in self.gammas if most is None or gamma <= most]
        return max((self.at_gamma(gamma, batch=batch, context=context) for gamma in known), key=lambda it: it.speedup)

    def at_gamma(self, gamma: int, *, batch: int, context: int) -> "Projection":
        """The projection for one gamma."""
        plain = self.roofline.pass_time(self.target, batch=batch, tokens=1, context=context)
        shares, one = self.acceptance.offered(gamma), plain.seconds
        v = sum(share * self._verifying(nodes, batch, context) for nodes, share in shares.items()) / one
        c = self._drafting(batch, context) / one if gamma else 0.0
        d = c * sum(share * nodes for nodes, share in shares.items())
        tau = self.acceptance.tau(gamma)
        return Projection(
            decoding=self,
            batch=batch,
            context=context,
            gamma=gamma,
            one_row_ms=1000 * one,
            bound=plain.bound,
            attention_share=plain.attention_share,
            tau=tau,
            c=c,
            d=d,
            v=v,
            theorem=speedup(self.acceptance.alpha, gamma, c),
            speedup=zero_overhead_speedup(tau, d, v),
        )

    def break_even_batch(self, context: int) -> int | None:
        """Smallest batch in which no draft pays; None: drafts pay up to MOST_ROWS.

        It is found by doubling, then by bisection.
        """

        def pays(batch: int) -> bool:
            return any(
                self.at_gamma(gamma, batch=batch, context=context).speedup > 1 for gamma in self._drafting_gammas
            )

        if not pays(1):
            return 1
        low, high = 1, 2
        while pays(high):
            if high >= MOST_ROWS:
                return None
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if pays(middle) else (low, middle)
        return high

    def needed_gigabytes(self, *, batch: int, context: int) -> float:
        """Memory of all weights, keys and values."""
        models = [self.target, *([self.draft_model] if self.draft_model else [])]
        weights = sum(self.roofline.weight_bytes(model.parameters) for model in models)
        return (weights + sum(self.roofline.kv_bytes(each, batch=batch, context=context) for each in models)) / 1e9

    def largest_batch(self, context: int) -> int:
        """Largest batch whose weights, keys and values fit into memory; 0: the weights do not."""
        without, with_one = (self.needed_gigabytes(batch=batch, context=context) for batch in (0, 1))
        room = self.roofline.hardware.gigabytes - without
        return max(0, int(room / (with_one - without)))

    @property
    def _drafting_gammas(self) -> list[int]:
        most = self.acceptance.most
        return [gamma for gamma in self.gammas if gamma and (most is None or gamma <= most)]

    def _verifying(self, nodes: int, batch: int, context: int) -> float:
        """Seconds of a target pass over pending and the nodes; without nodes, no draft model shares the cache."""
        beside = self._read_bytes(self.draft_model, batch, context) if nodes and self.draft_model else 0.0
        return self.roofline.pass_time(
            self.target, batch=batch, tokens=1 + nodes, context=context, beside=beside
        ).seconds

    def _drafting(self, batch: int, context: int) -> float:
        """Seconds of a draft step."""
        if self.draft_model is None:
            return 0.0
        beside = self._read_bytes(self.target, batch, context)
        return self.roofline.pass_time(self.draft_model, batch=batch, tokens=1, context=context, beside=beside).seconds

    def _read_bytes(self, model: ModelSize, batch: int, context: int) -> float:
        return self.roofline.weight_bytes(model.read) + self.roofline.kv_bytes(model, batch=batch, context=context)


@dataclass(frozen=True)
class Projection:
    """A projected speedup over plain decoding in the same batch.

    Attributes:
        decoding: models, hardware and acceptance.
        batch: rows.
        context: tokens per row before the pass.
        gamma: drafted tokens per round.
        one_row_ms: milliseconds of a target pass over one token per row.
        bound: the largest cause of that time.
        attention_share: share of attention in that time.
        tau: tokens per round and row.
        c: time of a draft step in such passes.
        d: drafting time of a round in such passes.
        v: time of the round's target pass in such passes.
        theorem: Theorem 3.8, where v is 1.
        speedup: tau / (d + v).
    """

    decoding: Decoding
    batch: int
    context: int
    gamma: int
    one_row_ms: float
    bound: str
    attention_share: float
    tau: float
    c: float
    d: float
    v: float
    theorem: float
    speedup: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all rows per second."""
        return 1000 * self.batch * self.speedup / self.one_row_ms

    @property
    def fits(self) -> bool:
        """Whether weights, keys and values fit into memory."""
        needed = self.decoding.needed_gigabytes(batch=self.batch, context=self.context)
        return needed <= self.decoding.roofline.hardware.gigabytes
