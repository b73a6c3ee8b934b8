"""Objectives for sets of skipped sub-layers: measured time, or the speedup predicted from alpha and cost."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from drafters.layer_skip import LayerSkip
from experiments.measurement.timing import Timed, time_parts, timed
from framework.core.draft import Draft, SamplingScheme
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.drafting.layer_set import LayerSet
from framework.drafting.layer_skip_model import SubLayers
from framework.gamma_policies.fixed import Fixed
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.metrics import theory
from framework.models.target import Target
from framework.verifiers.speculative_sampling import SpeculativeSampling

COST_REPEATS = 100


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of one layer set.

    Attributes:
        value: the optimised quantity.
        alpha: acceptance rate.
        c: time of a draft step in one-row target passes.
        gamma: draft depth at which `value` and `alpha` hold.
    """

    value: float
    alpha: float
    c: float
    gamma: int


class Objective(Protocol):
    """Objective over layer sets; `direction` is "maximize" or "minimize"."""

    direction: str

    def evaluate(self, layer_set: LayerSet) -> Evaluation: ...


@dataclass(frozen=True)
class StepCosts:
    """Additive cost of a draft step: c = rest + attention * kept attentions + mlp * kept MLPs.

    All costs are in one-row target passes.

    Attributes:
        rest: fixed cost of a step: embedding, output layer, sampling, and the loop.
        attention: cost of one attention, its norm included.
        mlp: cost of one MLP, its norm included.
        target_times: times of target passes over 1, 2, ..., gamma + 1 tokens.
    """

    rest: float
    attention: float
    mlp: float
    target_times: tuple[float, ...]

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "StepCosts":
        """Restore from the JSON form of `asdict`."""
        return cls(**values | {"target_times": tuple(values["target_times"])})

    def c(self, layer_set: LayerSet) -> float:
        kept_attentions = layer_set.num_layers - len(layer_set.skip_attention)
        kept_mlps = layer_set.num_layers - len(layer_set.skip_mlp)
        return self.rest + self.attention * kept_attentions + self.mlp * kept_mlps

    def zero_overhead(self, alphas: Sequence[float], c: float) -> tuple[float, int]:
        """Return the best zero-overhead speedup and its gamma: max over gamma >= 1 of Eq. 1 / (gamma * c + v(gamma)).

        Args:
            alphas: mean overlap over the first 1, 2, ... nodes of a draft; one entry per gamma.
            c: cost of a draft step in one-row target passes.
        """
        speeds = [
            theory.zero_overhead_speedup(theory.expected_tokens(alpha, gamma), gamma * c, self.target_times[gamma])
            for gamma, alpha in enumerate(alphas, start=1)
        ]
        best = max(speeds)
        return best, 1 + speeds.index(best)


def engine_for(target: Target, layer_set: LayerSet, gamma_policy: GammaPolicy, sampling: Sampling) -> Engine:
    """Build an engine whose drafter is the target without the skipped sub-layers."""
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
    """Solve for the costs of a step's parts from three layer sets: skip nothing, all attentions, all MLPs.

    Args:
        by: "time" measures times; "operations" counts arithmetic operations, with every target pass costing 1
            (Theorem 3.8).
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
    # Negative costs of a sub-layer are noise, and so are passes slower than wider ones.
    attention, mlp = (max(0.0, whole - less) / num_layers for less in (no_attention, no_mlp))
    rest = max(0.0, whole - num_layers * (attention + mlp))
    if by == "operations":
        return StepCosts(rest, attention, mlp, (1.0,) * (max_gamma + 1))
    rows = [min(times) for times in zip(*(each.costs.target_times for each in parts), strict=True)]
    return StepCosts(rest, attention, mlp, tuple(accumulate(reversed(rows), min))[::-1])


class ZeroOverhead:
    """Zero-overhead speedup predicted from alpha and c.

    Alpha is the overlap sum min(p, q) on the target's own output.

    Every row is one round: a prefix in the target's KV cache, followed by the tokens that the target generated after
    it. The skipped model reads these tokens. As in decoding, it uses the target's keys and values before pending and
    its own from pending on.
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
            costs: costs of the parts of a step; the length of target_times sets the largest gamma.
            rounds: rows per prompt, at consecutive stretches of gamma tokens in its continuation.
            seed: seed of the first prompt's continuation; prompt i uses seed + i.
        """
        self._sub_layers = SubLayers(target.model.model)
        self._target, self._sampling, self._costs = target.model, sampling, costs
        self._gamma = len(costs.target_times) - 1
        stopping = Stopping(max_new_tokens=rounds * self._gamma)
        rows, prompt_lengths = self._rows(target, prompts, stopping, seed)
        # Pending and all nodes but the last are read; the tokens before pending are the prefix.
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
        logits = self._target.forward(self._read, self._start, visible=self._visible).logits
        # Tokens up to pending count as committed, later ones as a draft.
        pending = [row[: len(row) - self._gamma + 1] for row in rows]
        sequences = Sequences.from_prompts(pending, width=self._visible, device=target.device)
        sequences.prompt_lengths = torch.tensor(prompt_lengths, device=target.device)
        max_lengths = sequences.prompt_lengths + stopping.max_new_tokens
        draft, eos = Draft.chain(self._read[:, 1:], SamplingScheme.ONE_HOT), self._read.new_empty(0)
        logits = target.processors.of_round(logits, sequences, draft, eos=eos, max_lengths=max_lengths)
        self._p = sampling.probs(logits)

    def _rows(
        self, target: Target, prompts: list[list[int]], stopping: Stopping, seed: int
    ) -> tuple[list[list[int]], list[int]]:
        """Return the rows, one per round (prompt and continuation up to the round's end), and their prompt lengths."""
        seeds = [seed + index for index in range(len(prompts))]
        plain = Autoregressive(target=target, sampling=self._sampling).generate(prompts, stopping=stopping, seeds=seeds)
        rounds = range(1, stopping.max_new_tokens // self._gamma + 1)
        both = [(prompt, new[: number * self._gamma]) for prompt, new in zip(prompts, plain.tokens, strict=True)
                for number in rounds]  # fmt: skip
        return [prompt + new for prompt, new in both], [len(prompt) for prompt, _ in both]

    @torch.no_grad()
    def overlaps(self, layer_set: LayerSet) -> Tensor:
        """[rows, gamma]: the sum of min(p, q) over the vocabulary, at every node of every round."""
        model = self._target.sharing_cache(self._sub_layers.without(layer_set))
        # Every set overwrites the keys and values from pending on before it reads them.
        q = self._sampling.probs(model.forward(self._read, self._start, visible=self._visible).logits)
        return torch.minimum(self._p, q).sum(2)

    def evaluate(self, layer_set: LayerSet) -> Evaluation:
        by_depth = self.overlaps(layer_set).double().mean(0)
        # Sums of float32 distributions may exceed 1 by rounding.
        alphas = (by_depth.cumsum(0) / torch.arange(1, self._gamma + 1, device=by_depth.device)).clamp(max=1).tolist()
        c = self._costs.c(layer_set)
        value, gamma = self._costs.zero_overhead(alphas, c)
        return Evaluation(value=value, alpha=alphas[gamma - 1], c=c, gamma=gamma)


class Measured:
    """Measured milliseconds per token of the engine: prefill excluded, median over repeats."""

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
            gamma_policy: chooses the draft depth.
            costs: used only for the reported c, not for the optimised value.
        """
        self._target, self._prompts, self._sampling, self._costs = target, prompts, sampling, costs
        self._gamma_policy = gamma_policy
        self._stopping = Stopping(max_new_tokens=max_new_tokens)
        self._repeats, self._seed = repeats, seed

    def evaluate(self, layer_set: LayerSet) -> Evaluation:
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
        return Evaluation(value=value, alpha=alpha, c=self._costs.c(layer_set), gamma=self._gamma_policy.max_gamma)

    def _run(self, engine: Engine, row: int) -> Timed:
        return timed(engine, [self._prompts[row]], self._stopping, [self._seed + row], self._target.device)
