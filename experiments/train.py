"""Train a drafter for a target: `python -m experiments.train drafter=medusa`. Killed, the same command goes on."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from experiments.assemble import build, build_prompts, build_target, check_basics, register_resolvers, yamls
from experiments.entry_point import is_point_of_sweep, one_line_errors, status
from experiments.fitting import Fitting, Recipe
from experiments.pairs import Pairs, read_pairs
from experiments.provenance import provenance
from experiments.publish import mirror_training, relative
from experiments.training_data import Samples, Windows, stream_of_samples, stream_of_texts
from experiments.trainings import PROVENANCE_FILE, print_trainings, read_trainings, write_trainings
from framework.target import Target
from framework.tracker import TrainingTracker
from framework.trainable import Trainable
from framework.whole_numbers import check_whole

register_resolvers()

DATA = ("texts", "samples")
INSTEAD = {
    "layer_skip": " (python -m experiments.search_layers finds its layers)",
    "eagle_tree": " (it drafts with the layer that drafter=eagle trains)",
    "transformer_tree": " (it drafts with the model that drafter=small_transformer trains)",
}


def train(cfg: DictConfig, drafter: str, folder: Path) -> dict[str, Any]:
    """Fit what conf/training describes to the config's text, and write it to a folder with its provenance.

    Returns:
        the provenance.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    recipe, samples, factory = check_before_loading(cfg, drafter)
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    with status("loading the target"):
        target = build_target(cfg)
    # What does not fit, or does not suit the checkpoint, is said now, not after hours of sampling.
    context = target.model.context
    if recipe.window > context:
        raise ValueError(f"training.window is {recipe.window}; allowed: at most the target's context, {context}")
    is_sampled = cfg.data == "samples"
    samples.check_lengths(context=context, window=recipe.window if is_sampled else None)
    torch.manual_seed(cfg.seed)
    trainable = factory(target=target)
    sides = [2] if target.model.text_start else []
    trainable.loss(torch.zeros(1, *sides, recipe.window, dtype=torch.int64, device=target.device))
    made_of = {
        "target": target.fingerprint,
        "seed": cfg.seed,
        "trainable": OmegaConf.to_container(cfg.training.trainable),
        "data": cfg.data,
    } | ({"samples": asdict(samples)} if is_sampled else {})
    fitting = Fitting(trainable, recipe, file=folder / "checkpoint.pt", made_of=made_of)
    text = _text(cfg, target, samples, recipe)
    fitting.agree({"text": text.fingerprint()})
    held_out = _held_out(cfg, target, samples, recipe)
    tested = held_out.spread(cfg.held_out_windows).to(target.device)
    fitting.run(lambda step: text.drawn(recipe.batch, seed=cfg.seed, step=step).to(target.device), tested)
    trainable.save(folder, tested)
    made = provenance(target.device)
    facts = {
        "command": made["command"],
        "versions": made["versions"],
        "drafter": drafter,
        "target_fingerprint": target.fingerprint,
        "text": {"tokens": text.num_tokens, "fingerprint": text.fingerprint()},
        "steps": fitting.step,
        "tokens": fitting.step * recipe.batch * recipe.window,
        "seconds": round(fitting.seconds),
        "held_out": {"tokens": tested.numel(), "fingerprint": held_out.fingerprint()} | trainable.evaluate(tested),
        "history": fitting.history,
        "config": OmegaConf.to_container(cfg),  # paths as they were written, not where they led to on this machine
    }
    (folder / PROVENANCE_FILE).write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def check_before_loading(cfg: DictConfig, drafter: str) -> tuple[Recipe, Samples, Callable[..., Trainable]]:
    """Everything that can be wrong without a model, and what is built without one.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    if "training" not in cfg:
        raise ValueError(
            f"drafter is {drafter!r}, which is not trained{INSTEAD.get(drafter, '')}; allowed: "
            f"{', '.join(name for name in yamls('training') if name in yamls('drafter'))}, or training=stop_head"
        )
    if cfg.data not in DATA:
        raise ValueError(f"data is {cfg.data!r}; allowed: {', '.join(DATA)}")
    of_prompts = [f"{group}.{knob}" for group in ("prompts", "held_out") for knob in ("count", "first_tokens")]
    check_basics(cfg, {"seed": 0}, or_null=of_prompts)
    check_whole("held_out_windows", cfg.held_out_windows, least=1, most=10_000)
    for key in ("prompts", "held_out"):
        build(cfg[key].source)
    recipe = Recipe(**{str(key): cfg.training[key] for key in Recipe.__dataclass_fields__})
    return recipe, build(cfg.samples), build(cfg.training.trainable)


def _text(cfg: DictConfig, target: Target, samples: Samples, recipe: Recipe) -> Windows | Pairs:
    """All there is to train on."""
    if target.model.text_start:
        return _pairs(cfg, "prompts", target, recipe)
    if cfg.data == "texts":
        with status("reading prompts"):
            stream = stream_of_texts(build(cfg.prompts.source), target)
        return Windows(stream, recipe.window, text="prompts.source")
    stream = _sampled(cfg, "prompts", target, samples)
    return Windows(stream, recipe.window, text="what the target wrote (samples.count, samples.new_tokens)")


def _pairs(cfg: DictConfig, key: str, target: Target, recipe: Recipe) -> Pairs:
    """
    Raises:
        ValueError: the target is to write its own text, or texts have no references.
    """
    if cfg.data == "samples":
        raise ValueError(
            "data is 'samples'; allowed for a target with an encoder: texts, which are those with references"
        )
    with status(f"reading {key}"):
        texts = read_pairs(build(cfg[key].source), text=f"{key}.source")
        return Pairs(texts, target.tokenizer, start=target.model.text_start, longest=recipe.window)


def _held_out(cfg: DictConfig, target: Target, samples: Samples, recipe: Recipe) -> Windows | Pairs:
    """Just enough to evaluate on.

    Whatever is trained on, the target's own text is what a drafter meets, and what makes trainings comparable. Of a
    target with an encoder it is the references.
    """
    if target.model.text_start:
        return _pairs(cfg, "held_out", target, recipe)
    count = -(-cfg.held_out_windows * recipe.window // samples.new_tokens)
    share = -(-count // len(samples.temperatures))  # a batch has one temperature
    stream = _sampled(cfg, "held_out", target, replace(samples, count=count, batch=min(samples.batch, share)))
    return Windows(stream, recipe.window, text="what the target wrote of held_out.source (held_out_windows)")


def _sampled(cfg: DictConfig, key: str, target: Target, samples: Samples) -> np.ndarray:
    with status(f"reading {key}"):
        begun = _begun(cfg, key, target, samples)
    print(f"the target writes {samples.count} texts from {key}; those on the disk are not written again", flush=True)
    return stream_of_samples(begun, target, samples, folder=Path(cfg.folder) / "samples")


def _begun(cfg: DictConfig, key: str, target: Target, samples: Samples) -> list[list[int]]:
    """What the target is to continue."""
    if samples.prompt_tokens is None:
        node = OmegaConf.create({"prompts": cfg[key], "max_new_tokens": samples.new_tokens})
        return [list(prompt.tokens) for prompt in build_prompts(node, target).prompts]
    stream = stream_of_texts(build(cfg[key].source), target)
    windows = Windows(stream, samples.prompt_tokens, text=f"{key}.source", length="samples.prompt_tokens")
    return windows.drawn(samples.count, seed=cfg.seed, step=0).tolist()


@hydra.main(version_base="1.3", config_path="../conf", config_name="train")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="the same command goes on from the last checkpoint"):
        choices, folder = HydraConfig.get().runtime.choices, Path(HydraConfig.get().runtime.output_dir)
        trained = choices["training"]
        tracker: TrainingTracker = build(cfg.tracker)
        facts = train(cfg, trained, folder)
        mirror_training(folder, facts, tracker, study=choices.get("study") or "train")
        write_trainings(Path(HydraConfig.get().sweep.dir) if is_point_of_sweep() else folder)
        print_trainings(read_trainings(folder))
        target = [each for each in HydraConfig.get().overrides.task if each.startswith("target")]
        group = cfg.training.loaded_by.split(".")[0]  # of yaml files, one of which loads what was trained
        loads = [f"{group}={trained}", f"{cfg.training.loaded_by}={relative(folder)}"]
        print(" ".join(["Next: python -m experiments.measure", *target, *loads]))


if __name__ == "__main__":
    main()
