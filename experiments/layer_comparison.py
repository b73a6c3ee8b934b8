"""A set of sub-layers beside uniform skipping of the same cost, decoded by the real loop on prompts no search saw."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.layer_objectives import StepCosts, engine_for
from framework.gamma_policies.fixed import Fixed
from framework.layer_set import LayerSet
from framework.sampling import Sampling
from framework.stopping import Stopping
from framework.tally import Tally
from framework.target import Target

FOUND = "found"


def rivals_of(found: LayerSet, costs: StepCosts) -> dict[str, LayerSet]:
    """Uniform skipping of the same cost: as many attentions and MLPs, and whole layers of the nearest cost."""
    num_layers = found.num_layers
    same = LayerSet.uniform(num_layers, attention=len(found.skip_attention), mlp=len(found.skip_mlp))
    whole = [LayerSet.uniform(num_layers, attention=count, mlp=count) for count in range(num_layers)]
    nearest = min(whole, key=lambda each: abs(costs.c(each) - costs.c(found)))
    return {"uniform, as many of each": same, "uniform, whole layers": nearest}


@dataclass(frozen=True)
class HeldOut:
    """A set on prompts that no search has seen, decoded by the real loop.

    Attributes:
        c: a draft step in one-row target passes.
        gamma: nodes in every draft.
        tau: tokens per target pass.
        attainable: tau / (gamma * c + v(gamma)).
        by_prompt: attainable of every prompt alone, for paired comparisons.
    """

    layer_set: LayerSet
    c: float
    gamma: int
    tau: float
    attainable: float
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
    """Count what the real loop commits; nothing is timed, so that a busy machine changes nothing."""
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
        attainable=tau / per_round,
        by_prompt=tuple(each.metrics()["tau"] / per_round for each in alone),
    )


def compare(decoded: Mapping[str, HeldOut]) -> dict[str, dict[str, Any]]:
    """Every set's numbers, ready for JSON, and how far the found one is ahead: mean over prompts, standard error."""
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
            "attainable": round(each.attainable, 4),
            "found_ahead_by": round(float(ahead.mean()), 4),
            "standard_error": None if error is None else round(error, 4),
        }
    return rows


def in_words(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A line per set; a rival is beaten if the found set is ahead by more than two standard errors."""
    found = rows[FOUND]
    for name, row in rows.items():
        numbers = f"c {row['c']:.3f}  gamma {row['gamma']}  tau {row['tau']:.3f}  attainable {row['attainable']:.3f}"
        line = f"{name:31}{numbers}"
        if name != FOUND and all(row[key] == found[key] for key in ("skip_attention", "skip_mlp")):
            line = f"{name:31}the same set"
        elif name != FOUND:
            ahead, error = row["found_ahead_by"], row["standard_error"]
            beaten = error is not None and ahead > 2 * error
            line += f"  {'beaten' if beaten else 'not beaten'}, by {ahead:+.3f}"
            line += "" if error is None else f" ± {error:.3f}"
        yield line
    if found["attainable"] < 1:
        yield "An attainable speedup below 1: to skip layers does not pay here; plain decoding is faster."
