"""Search for the sub-layers that layer_skip skips: `python -m experiments.search_layers`.

The same command resumes a killed search.
"""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("search_layers")
    raise SystemExit

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.config.builders import (
    build,
    build_prompts,
    build_sampling,
    build_target,
    check_basics,
)
from experiments.config.cli_errors import one_line_errors, status
from experiments.config.command import command
from experiments.reporting.plots.layer_pictures import draw_search
from experiments.results.provenance import provenance
from experiments.tuning.layer_comparison import FOUND, compare, decode_held_out, in_words, rivals_of
from experiments.tuning.layer_objectives import Evaluation, Measured, Objective, StepCosts, ZeroOverhead, measure_costs
from experiments.tuning.layer_search import Search, bits_of, evaluation_of, exhaust, run_search, uniform_sets
from experiments.tuning.optuna_study import Budget, Direction
from framework.core.sampling import Sampling
from framework.drafting.layer_set import LayerSet, save_layer_set
from framework.drafting.layer_skip_model import SubLayers
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.models.target import Target

DIRECTIONS: dict[str, Direction] = {"zero_overhead": "maximize", "measured": "minimize"}
FEW_LAYERS = 7  # evaluating all 4 ** 7 sets takes minutes
# Config keys that evaluations depend on; a search can be resumed only with equal values.
MADE_OF = ("objective", "cost", "gamma", "sampling", "prompts", "rounds", "max_new_tokens", "repeats", "seed")


@command("search_layers")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="the same command resumes the search"):
        search_layers(cfg)


def search_layers(cfg: DictConfig) -> Path:
    """Search, compare the best set with uniform skipping, and write the result and a plot.

    Returns:
        The file that the drafter loads.
    """
    start = time.perf_counter()
    budget, policy, sampling = _check(cfg), build(cfg.gamma), build_sampling(cfg)
    with status("loading the target"):
        target = build_target(cfg)
        held_in, held_out = _token_ids(cfg, target, "prompts"), _token_ids(cfg, target, "held_out")
    num_layers, folder = SubLayers(target.model.model).num_layers, Path(cfg.folder)
    made_of = {key: _plain(cfg[key]) for key in MADE_OF} | {"target": target.fingerprint}
    search = Search(folder, num_layers, direction=DIRECTIONS[cfg.objective], made_of=made_of, seed=cfg.seed)
    costs = _costs(cfg, search, target, held_in, sampling, policy)
    print(f"reading {len(held_in)} prompts and the target's continuations", flush=True)
    with status("reading the prompts"):
        objective = _objective(cfg, target, held_in, sampling, policy, costs)
    print(f"evaluating sets; earlier runs evaluated {len(search.trials)}", flush=True)
    run_search(search, objective, budget)
    optimum = _optimum(search, objective, num_layers) if _is_exhaustive(cfg, num_layers) else None

    found, best = LayerSet.from_bits(bits_of(search.best)), evaluation_of(search.best)
    print(f"comparing on {len(held_out)} held-out prompts", flush=True)
    with status("decoding held-out prompts"):
        compared = _compared(cfg, target, found, held_in, held_out, sampling, costs)
    facts = {
        "found": {"objective": cfg.objective} | asdict(best),
        "trials": len(search.trials),
        "minutes": round(search.seconds / 60, 1),
        "costs": {"by": cfg.cost} | asdict(costs),
        "held_out": compared,
        "optimum": optimum,
        "made_of": made_of,
        "optuna": optuna.__version__,
        "provenance": provenance(target.device),
    }
    result = folder / "layers.yaml"
    save_layer_set(result, found, fingerprint=target.fingerprint, facts=facts)
    uniform = [each.bits for each in uniform_sets(num_layers)]
    picture = draw_search(search.trials, uniform, costs, cfg.objective, folder / "search.png")
    _report(search, found, best, compared, optimum, result, picture)
    print(
        f"{(time.perf_counter() - start) / 60:.1f} minutes in total. With more trials or minutes, the same command "
        "resumes the search: it reads and compares again but evaluates no set twice"
    )
    return result


def _costs(
    cfg: DictConfig,
    search: Search,
    target: Target,
    prompts: list[list[int]],
    sampling: Sampling,
    policy: GammaPolicy,
) -> StepCosts:
    """Costs of the parts of a draft step, timed once per search."""
    print("timing the parts of a draft step", flush=True)
    with status("timing the parts of a draft step"):
        return StepCosts.from_json(
            search.remembered(
                "costs",
                lambda: asdict(measure_costs(target, prompts, sampling, max_gamma=policy.max_gamma, by=cfg.cost)),
            )
        )


def _is_exhaustive(cfg: DictConfig, num_layers: int) -> bool:
    """Whether to evaluate every set, to compare the best one found with the optimum."""
    is_small = cfg.objective == "zero_overhead" and num_layers <= FEW_LAYERS
    return cfg.exhaustive is True or (cfg.exhaustive == "auto" and is_small)


def _compared(
    cfg: DictConfig,
    target: Target,
    found: LayerSet,
    held_in: list[list[int]],
    held_out: list[list[int]],
    sampling: Sampling,
    costs: StepCosts,
) -> dict[str, dict[str, Any]]:
    """Compare the set found with uniform ones on held-out prompts, by name."""
    sets = {FOUND: found} | rivals_of(found, costs)
    # Evaluate all sets first, since decoding overwrites the target's KV cache.
    evaluate = ZeroOverhead(target, held_in, sampling, costs, rounds=cfg.rounds, seed=cfg.seed).evaluate
    rivals = uniform_sets(found.num_layers)
    sets["uniform, the best of any cost"] = max(rivals, key=lambda each: evaluate(each).value)
    gammas = {each: evaluate(each).gamma for each in sets.values()}
    decoded = {
        each: decode_held_out(
            target, each, gamma, held_out, sampling, costs, max_new_tokens=cfg.max_new_tokens, seed=cfg.seed
        )
        for each, gamma in gammas.items()
    }
    return compare({name: decoded[each] for name, each in sets.items()})


def _check(cfg: DictConfig) -> Budget:
    """Run all checks that need no model.

    Raises:
        ValueError: the message names the yaml key.
    """
    for key, allowed in (
        ("objective", list(DIRECTIONS)),
        ("cost", ["time", "operations"]),
        ("exhaustive", ["auto", True, False]),
    ):
        if cfg[key] not in allowed:
            raise ValueError(f"{key} is {cfg[key]!r}; allowed: {', '.join(map(str, allowed))}")
    numbers = {"rounds": 1, "repeats": 1, "max_new_tokens": 1, "seed": 0}
    of_prompts = [f"{group}.{option}" for group in ("prompts", "held_out") for option in ("count", "max_prompt_tokens")]
    check_basics(cfg, numbers, or_null=of_prompts)
    if cfg.exhaustive is True and cfg.objective == "measured":
        raise ValueError(
            "exhaustive is true; allowed: auto, false with objective=measured, whose noise would decide the optimum"
        )
    policy: GammaPolicy = build(cfg.gamma)
    if not 1 <= policy.max_gamma * cfg.rounds <= cfg.max_new_tokens:
        raise ValueError(
            f"rounds is {cfg.rounds} and the largest gamma {policy.max_gamma}; allowed: a gamma >= 1, and a product of "
            f"both up to max_new_tokens, {cfg.max_new_tokens}"
        )
    return Budget(cfg.trials, cfg.minutes)


def _token_ids(cfg: DictConfig, target: Target, group: str) -> list[list[int]]:
    """Token ids of the prompts of a config group."""
    node = OmegaConf.create({"prompts": cfg[group], "max_new_tokens": cfg.max_new_tokens})
    return [list(prompt.tokens) for prompt in build_prompts(node, target).prompts]


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _objective(
    cfg: DictConfig,
    target: Target,
    prompts: list[list[int]],
    sampling: Sampling,
    policy: GammaPolicy,
    costs: StepCosts,
) -> Objective:
    if cfg.objective == "zero_overhead":
        return ZeroOverhead(target, prompts, sampling, costs, rounds=cfg.rounds, seed=cfg.seed)
    return Measured(
        target,
        prompts,
        sampling,
        costs,
        gamma_policy=policy,
        max_new_tokens=cfg.max_new_tokens,
        repeats=cfg.repeats,
        seed=cfg.seed,
    )


def _optimum(search: Search, objective: Objective, num_layers: int) -> dict[str, Any]:
    """The best of all sets, computed once per search."""

    def best() -> dict[str, Any]:
        layer_set, evaluation = exhaust(objective, num_layers)
        return {"skip_attention": layer_set.skip_attention, "skip_mlp": layer_set.skip_mlp} | asdict(evaluation)

    return search.remembered("optimum", best)


def _report(
    search: Search,
    found: LayerSet,
    best: Evaluation,
    compared: dict[str, dict[str, Any]],
    optimum: dict[str, Any] | None,
    result: Path,
    picture: Path,
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"\n{len(search.trials)} sets evaluated in {search.seconds / 60:.1f} minutes. The best one skips")
    console.print(f"attention {list(found.skip_attention)}\nMLP       {list(found.skip_mlp)}", markup=False)
    if optimum is not None:
        console.print(
            f"Its value is {best.value:.4f}; the best of all {4**found.num_layers - 1}: {optimum['value']:.4f}"
        )
    console.print("\nOn held-out prompts, compared with uniform skipping:")
    for line in in_words(compared):
        console.print(line)
    console.print(f"\nPicture: {picture}\nResult: {result}")
    console.print(f"Next: python -m experiments.measure drafter=layer_skip drafter.layers={result}")
