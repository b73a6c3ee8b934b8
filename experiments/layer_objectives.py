"""How good a set of skipped sub-layers is: by the clock, or by what its acceptance and cost promise."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from drafters.layer_skip import LayerSkip
from experiments.timing import Timed, time_parts, timed
from framework import theory
from framework.autoregressive import Autoregressive
from framework.engine import Engine
from framework.gamma_policies.fixed import Fixed
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.layer_set import LayerSet
from framework.sampling import Sampling
from framework.skipped_model import SubLayers
from framework.stopping import Stopping
from framework.target import Target
from framework.verifiers.speculative_sampling import SpeculativeSampling

COST_REPEATS = 100


@dataclass(frozen=True)
class Judgement:
    """What is known of one set.

    Attributes:
        value: what the search optimises.
        alpha: how often its tokens are accepted.
        c: a draft step in one-row target passes.
        gamma: the depth of draft that `value` stands for.
    """

    value: float
    alpha: float
    c: float
    gamma: int


class Objective(Protocol):
    """Judges sets; `direction` is "maximize" or "minimize"."""

    direction: str

    def judge(self, layer_set: LayerSet) -> Judgement: ...


@dataclass(frozen=True)
class StepCosts:
    """A draft step as the sum of what was kept, in one-row target passes: c = rest + attention * kept + mlp * kept.

    Attributes:
        rest: what every step costs: embedding, output layer, the draw, and the loop around it.
        attention, mlp: a sub-layer, its norm included.
        target_times: target passes over 1, 2, ..., gamma + 1 rows.
    """

    rest: float
    attention: float
    mlp: float
    target_times: tuple[float, ...]

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "StepCosts":
        """What `asdict` and JSON made of one."""
        return cls(**values | {"target_times": tuple(values["target_times"])})

    def c(self, layer_set: LayerSet) -> float:
        kept_attentions = layer_set.num_layers - len(layer_set.skip_attention)
        kept_mlps = layer_set.num_layers - len(layer_set.skip_mlp)
        return self.rest + self.attention * kept_attentions + self.mlp * kept_mlps

    def attainable(self, alphas: Sequence[float], c: float) -> tuple[float, int]:
        """The best speedup of a loop of no cost, and its gamma >= 1: max over gamma of Eq. 1 / (gamma * c + v(gamma)).

        Args:
            alphas: mean overlap over the first 1, 2, ... nodes of a draft; one for every gamma there is.
        """
        speeds = [
            theory.attainable_speedup(theory.expected_tokens(alpha, gamma), gamma * c, self.target_times[gamma])
            for gamma, alpha in enumerate(alphas, start=1)
        ]
        best = max(speeds)
        return best, 1 + speeds.index(best)


def engine_for(target: Target, layer_set: LayerSet, gamma_policy: GammaPolicy, sampling: Sampling) -> Engine:
    """The real loop with this set skipped."""
    drafter = LayerSkip(
        target,
        layers=None,
        skip_attention=list(layer_set.skip_attention),
        skip_mlp=list(layer_set.skip_mlp),
        exit_after=None,
    )
    return Engine(
        target=target, drafter=drafter, verifier=SpeculativeSampling(), gamma_policy=gamma_policy, sampling=sampling
    )


def measure_costs(
    target: Target, prompts: list[list[int]], sampling: Sampling, *, max_gamma: int, by: str
) -> StepCosts:
    """Solve for the costs of a step's parts from three sets: nothing skipped, all attention, all MLPs.

    Args:
        by: "time" runs them; "operations" counts arithmetic, with every target pass as one (Theorem 3.8).
    """
    num_layers = SubLayers(target.model.model).num_layers
    everything = tuple(range(num_layers))
    sets = [LayerSet(num_layers, attention, mlp) for attention, mlp in (((), ()), (everything, ()), ((), everything))]
    parts = [
        time_parts(
            engine_for(target, each, Fixed(gamma=max_gamma), sampling),
            prompts[:1],
            seeds=[0],
            repeats=COST_REPEATS if by == "time" else 1,
        )
        for each in sets
    ]
    whole, no_attention, no_mlp = (each.c if by == "time" else each.operations for each in parts)
    # A sub-layer that seems to cost less than nothing is noise, and so is a pass that takes longer than a wider one.
    attention, mlp = (max(0.0, whole - less) / num_layers for less in (no_attention, no_mlp))
    rest = max(0.0, whole - num_layers * (attention + mlp))
    if by == "operations":
        return StepCosts(rest, attention, mlp, (1.0,) * (max_gamma + 1))
    rows = [min(times) for times in zip(*(each.costs.target_times for each in parts), strict=True)]
    return StepCosts(rest, attention, mlp, tuple(accumulate(reversed(rows), min))[::-1])


class Attainable:
    """What alpha and c promise, without decoding: alpha is the overlap of the laws on the target's own text.

    Every row is one round: the target has read a prefix, and the set's draft step is given the tokens that the target
    went on with. It goes by the target's keys and values up to pending and by its own from there on, as in the loop.
    """

    direction = "maximize"

    def __init__(
        self,
        target: Target,
        prompts: list[list[int]],
        sampling: Sampling,
        costs: StepCosts,
        *,
        rounds: int,
        seed: int,
    ):
        """
        Args:
            prompts: token ids, none empty.
            costs: of the parts of a step; its target_times say how deep drafts may be.
            rounds: rows per prompt, one after another in its continuation.
            seed: of the continuations that are drawn.
        """
        self._sub_layers = SubLayers(target.model.model)
        self._target, self._sampling, self._costs = target.model, sampling, costs
        self._gamma = len(costs.target_times) - 1
        rows = self._rows(target, prompts, rounds, seed)
        # Pending and all nodes but the last are read; what lies before pending is the prefix.
        self._start = torch.tensor([len(row) - self._gamma for row in rows], device=target.device)
        self._visible = max(map(len, rows))
        tokens = torch.zeros(len(rows), self._visible, dtype=torch.int64)
        for index, row in enumerate(rows):
            tokens[index, : len(row)] = torch.tensor(row)
        tokens = tokens.to(target.device)
        at = self._start.unsqueeze(1) + torch.arange(self._gamma, device=target.device)
        self._read = tokens.gather(1, at)
        self._target.begin(len(rows), self._visible)
        self._target.forward(tokens, None, visible=self._visible, keep=self._start)
        self._p = sampling.probs(self._target.forward(self._read, self._start, visible=self._visible))

    def _rows(self, target: Target, prompts: list[list[int]], rounds: int, seed: int) -> list[list[int]]:
        """Every prompt with its continuation, cut at the ends of its rounds."""
        stopping = Stopping(max_new_tokens=rounds * self._gamma)
        seeds = [seed + index for index in range(len(prompts))]
        plain = Autoregressive(target=target, sampling=self._sampling).generate(prompts, stopping=stopping, seeds=seeds)
        return [
            prompt + new[: number * self._gamma]
            for prompt, new in zip(prompts, plain.tokens, strict=True)
            for number in range(1, rounds + 1)
        ]

    @torch.no_grad()
    def overlaps(self, layer_set: LayerSet) -> Tensor:
        """[rows, gamma]: the sum of min(p, q) over the vocabulary, at every node of every round."""
        model = self._target.sharing_cache(self._sub_layers.without(layer_set))
        # It writes its own keys and values from pending on, and every set does so before it reads them.
        q = self._sampling.probs(model.forward(self._read, self._start, visible=self._visible))
        return torch.minimum(self._p, q).sum(2)

    def judge(self, layer_set: LayerSet) -> Judgement:
        by_depth = self.overlaps(layer_set).double().mean(0)
        # Sums of float32 laws may exceed one by a rounding error.
        alphas = (by_depth.cumsum(0) / torch.arange(1, self._gamma + 1, device=by_depth.device)).clamp(max=1).tolist()
        c = self._costs.c(layer_set)
        value, gamma = self._costs.attainable(alphas, c)
        return Judgement(value=value, alpha=alphas[gamma - 1], c=c, gamma=gamma)


class Measured:
    """Milliseconds per token of the real loop: reading prompts excluded, median of the repeats."""

    direction = "minimize"

    def __init__(
        self,
        target: Target,
        prompts: list[list[int]],
        sampling: Sampling,
        costs: StepCosts,
        *,
        gamma_policy: GammaPolicy,
        max_new_tokens: int,
        repeats: int,
        seed: int,
    ):
        """
        Args:
            gamma_policy: how deep drafts go.
            costs: only say where a set lies in the picture; what is optimised is measured.
        """
        self._target, self._prompts, self._sampling, self._costs = target, prompts, sampling, costs
        self._gamma_policy = gamma_policy
        self._stopping = Stopping(max_new_tokens=max_new_tokens)
        self._repeats, self._seed = repeats, seed

    def judge(self, layer_set: LayerSet) -> Judgement:
        engine = engine_for(self._target, layer_set, self._gamma_policy, self._sampling)
        tally, medians = engine.new_tally(detailed=False), []
        self._run(engine, 0)  # warms up
        for row in range(len(self._prompts)):
            runs = [self._run(engine, row) for _ in range(self._repeats)]
            assert runs[0].generation.tally is not None
            tally.add(runs[0].generation.tally)
            medians.append((statistics.median(run.decode_seconds for run in runs), runs[0].num_decoded))
        value = 1000 * sum(seconds for seconds, _ in medians) / sum(tokens for _, tokens in medians)
        alpha = tally.metrics()["alpha/empirical"] or 0.0
        return Judgement(value=value, alpha=alpha, c=self._costs.c(layer_set), gamma=self._gamma_policy.max_gamma)

    def _run(self, engine: Engine, row: int) -> Timed:
        return timed(engine, [self._prompts[row]], self._stopping, [self._seed + row], self._target.device)
