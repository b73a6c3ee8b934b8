"""Choose the sub-layers that layer_skip passes over: `python -m experiments.search_layers`.

A killed search goes on where it stopped, with the same command.
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hydra
import optuna
import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.assemble import build, build_prompts, build_sampling, build_target, check_basics, register_resolvers
from experiments.entry_point import one_line_errors, status
from experiments.layer_comparison import FOUND, compare, decode_held_out, in_words, rivals_of
from experiments.layer_objectives import Attainable, Judgement, Measured, Objective, StepCosts, measure_costs
from experiments.layer_pictures import draw_search
from experiments.layer_search import Search, bits_of, exhaust, judgement_of, run_search, uniform_sets
from experiments.provenance import provenance
from experiments.studies import Budget, Direction
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.layer_set import LayerSet, save_layer_set
from framework.sampling import Sampling
from framework.skipped_model import SubLayers
from framework.target import Target

DIRECTIONS: dict[str, Direction] = {"attainable": "maximize", "measured": "minimize"}
FEW_LAYERS = 7  # all 4 ** 7 sets take minutes
# What judgements depend on: a search in a folder is gone on with only if these are the same.
MADE_OF = ("objective", "cost", "gamma", "sampling", "prompts", "rounds", "max_new_tokens", "repeats", "seed")

register_resolvers()


@hydra.main(version_base="1.3", config_path="../conf", config_name="search_layers")
def main(cfg: DictConfig) -> None:
    with one_line_errors():
        search_layers(cfg)


def search_layers(cfg: DictConfig) -> Path:
    """Search, compare what was found with uniform skipping, write the result and a picture.

    Returns:
        the file that the drafter loads.
    """
    start = time.perf_counter()
    budget, policy, sampling = _check(cfg), build(cfg.gamma), build_sampling(cfg)
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    with status("loading the target"):
        target = build_target(cfg)
        held_in, held_out = _token_ids(cfg, target, "prompts"), _token_ids(cfg, target, "held_out")
    num_layers, folder = SubLayers(target.model.model).num_layers, Path(cfg.folder)
    made_of = {key: _plain(cfg[key]) for key in MADE_OF} | {"target": target.fingerprint}
    search = Search(folder, num_layers, direction=DIRECTIONS[cfg.objective], made_of=made_of, seed=cfg.seed)
    print("timing the parts of a draft step", flush=True)
    with status("timing the parts of a draft step"):
        costs = StepCosts.from_json(
            search.remembered(
                "costs",
                lambda: asdict(measure_costs(target, held_in, sampling, max_gamma=policy.max_gamma, by=cfg.cost)),
            )
        )
    print(f"reading {len(held_in)} prompts, and what the target makes of them", flush=True)
    with status("reading the prompts"):
        objective = _objective(cfg, target, held_in, sampling, policy, costs)
    print(f"judging sets; earlier runs judged {len(search.trials)}", flush=True)
    run_search(search, objective, budget)
    optimum = None
    if cfg.exhaustive is True or (
        cfg.exhaustive == "auto" and cfg.objective == "attainable" and num_layers <= FEW_LAYERS
    ):
        optimum = search.remembered("optimum", lambda: _optimum(objective, num_layers))

    found, best = LayerSet.from_bits(bits_of(search.best)), judgement_of(search.best)
    sets = {FOUND: found} | rivals_of(found, costs)
    print(f"comparing on {len(held_out)} held-out prompts", flush=True)
    with status("decoding held-out prompts"):
        # Decoding begins the target's cache anew, so all are judged before.
        judge = Attainable(target, held_in, sampling, costs, rounds=cfg.rounds, seed=cfg.seed).judge
        sets["uniform, the best of any cost"] = max(uniform_sets(num_layers), key=lambda each: judge(each).value)
        gammas = {each: judge(each).gamma for each in sets.values()}
        decoded = {
            each: decode_held_out(
                target, each, gamma, held_out, sampling, costs, max_new_tokens=cfg.max_new_tokens, seed=cfg.seed
            )
            for each, gamma in gammas.items()
        }
    compared = compare({name: decoded[each] for name, each in sets.items()})
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
    _tell(search, found, best, compared, optimum, result, picture)
    print(
        f"{(time.perf_counter() - start) / 60:.1f} minutes in all. With more trials or minutes the same command goes "
        "on: it reads and compares anew, and judges no set twice"
    )
    return result


def _check(cfg: DictConfig) -> Budget:
    """Everything that can be wrong without a model.

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
    of_prompts = [f"{group}.{knob}" for group in ("prompts", "held_out") for knob in ("count", "first_tokens")]
    check_basics(cfg, numbers, or_null=of_prompts)
    if cfg.exhaustive is True and cfg.objective == "measured":
        raise ValueError("exhaustive is true; allowed: auto, false with objective=measured, whose noise would choose")
    policy: GammaPolicy = build(cfg.gamma)
    if not 1 <= policy.max_gamma * cfg.rounds <= cfg.max_new_tokens:
        raise ValueError(
            f"rounds is {cfg.rounds} and the largest gamma {policy.max_gamma}; allowed: a gamma >= 1, and a product of "
            f"both up to max_new_tokens, {cfg.max_new_tokens}"
        )
    return Budget(cfg.trials, cfg.minutes)


def _token_ids(cfg: DictConfig, target: Target, group: str) -> list[list[int]]:
    """The prompts of a config group."""
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
    if cfg.objective == "attainable":
        return Attainable(target, prompts, sampling, costs, rounds=cfg.rounds, seed=cfg.seed)
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


def _optimum(objective: Objective, num_layers: int) -> dict[str, Any]:
    layer_set, judgement = exhaust(objective, num_layers)
    return {"skip_attention": layer_set.skip_attention, "skip_mlp": layer_set.skip_mlp} | asdict(judgement)


def _tell(
    search: Search,
    found: LayerSet,
    best: Judgement,
    compared: dict[str, dict[str, Any]],
    optimum: dict[str, Any] | None,
    result: Path,
    picture: Path,
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"\n{len(search.trials)} sets judged in {search.seconds / 60:.1f} minutes. The best one skips")
    console.print(f"attention {list(found.skip_attention)}\nMLP       {list(found.skip_mlp)}", markup=False)
    if optimum is not None:
        console.print(
            f"Its value is {best.value:.4f}; the best of all {4**found.num_layers - 1}: {optimum['value']:.4f}"
        )
    console.print("\nOn held-out prompts, beside uniform skipping:")
    for line in in_words(compared):
        console.print(line)
    console.print(f"\nPicture: {picture}\nResult: {result}")
    console.print(f"Next: python -m experiments.measure drafter=layer_skip drafter.layers={result}")


if __name__ == "__main__":
    main()
