"""Comparison of a layer set with uniform skipping of equal cost, decoded by the engine on held-out prompts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.tuning.layer_objectives import StepCosts, engine_for
from framework.core.sampling import Sampling
from framework.decoding.stopping import Stopping
from framework.drafting.layer_set import LayerSet
from framework.gamma_policies.fixed import Fixed
from framework.metrics.tally import Tally
from framework.models.target import Target

FOUND = "found"


def rivals_of(found: LayerSet, costs: StepCosts) -> dict[str, LayerSet]:
    """Uniform sets to compare with: equal numbers of attentions and MLPs, and whole layers of the nearest cost."""
    num_layers = found.num_layers
    same = LayerSet.uniform(num_layers, attention=len(found.skip_attention), mlp=len(found.skip_mlp))
    whole = [LayerSet.uniform(num_layers, attention=count, mlp=count) for count in range(num_layers)]
    nearest = min(whole, key=lambda each: abs(costs.c(each) - costs.c(found)))
    return {"uniform, as many of each": same, "uniform, whole layers": nearest}


@dataclass(frozen=True)
class HeldOut:
    """Results of a layer set on held-out prompts, decoded by the engine.

    Attributes:
        c: time of a draft step in one-row target passes.
        gamma: nodes per draft.
        tau: tokens per target pass.
        zero_overhead: zero-overhead speedup, tau / (gamma * c + v(gamma)).
        by_prompt: zero-overhead speedup of each prompt, for paired comparisons.
    """

    layer_set: LayerSet
    c: float
    gamma: int
    tau: float
    zero_overhead: float
    by_prompt: tuple[float, ...]


def decode_held_out(
    target: Target,
    layer_set: LayerSet,
    gamma: int,
    prompts: list[list[int]],
    sampling: Sampling,
    costs: StepCosts,
    *,
    max_new_tokens: int,
    seed: int,
) -> HeldOut:
    """Decode held-out prompts and count committed tokens; nothing is timed, so machine load has no effect."""
    engine = engine_for(target, layer_set, Fixed(gamma=gamma), sampling)
    c = costs.c(layer_set)
    per_round = gamma * c + costs.target_times[gamma]
    alone = list(engine.each_alone(prompts, stopping=Stopping(max_new_tokens), seed=seed))
    tau = Tally.total(alone).metrics()["tau"]
    return HeldOut(
        layer_set=layer_set,
        c=c,
        gamma=gamma,
        tau=tau,
        zero_overhead=tau / per_round,
        by_prompt=tuple(each.metrics()["tau"] / per_round for each in alone),
    )


def compare(decoded: Mapping[str, HeldOut]) -> dict[str, dict[str, Any]]:
    """Results of every set, ready for JSON, with the found set's lead: mean over prompts and standard error."""
    rows = {}
    for name, each in decoded.items():
        ahead = np.subtract(decoded[FOUND].by_prompt, each.by_prompt)
        error = float(ahead.std(ddof=1) / np.sqrt(len(ahead))) if len(ahead) > 1 else None
        rows[name] = {
            "skip_attention": list(each.layer_set.skip_attention),
            "skip_mlp": list(each.layer_set.skip_mlp),
            "c": round(each.c, 4),
            "gamma": each.gamma,
            "tau": round(each.tau, 4),
            "zero_overhead": round(each.zero_overhead, 4),
            "found_ahead_by": round(float(ahead.mean()), 4),
            "standard_error": None if error is None else round(error, 4),
        }
    return rows


def in_words(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield one line per set.

    A rival is beaten if the found set leads by more than two standard errors.
    """
    found = rows[FOUND]
    for name, row in rows.items():
        numbers = (
            f"c {row['c']:.3f}  gamma {row['gamma']}  tau {row['tau']:.3f}  zero-overhead {row['zero_overhead']:.3f}"
        )
        line = f"{name:31}{numbers}"
        if name != FOUND and all(row[key] == found[key] for key in ("skip_attention", "skip_mlp")):
            line = f"{name:31}the same set"
        elif name != FOUND:
            ahead, error = row["found_ahead_by"], row["standard_error"]
            beaten = error is not None and ahead > 2 * error
            line += f"  {'beaten' if beaten else 'not beaten'}, by {ahead:+.3f}"
            line += "" if error is None else f" ± {error:.3f}"
        yield line
    if found["zero_overhead"] < 1:
        yield "The zero-overhead speedup is below 1: skipping layers does not pay here; plain decoding is faster."
