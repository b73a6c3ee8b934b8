"""Train a drafter for a target: `python -m experiments.train drafter=medusa`. The same command resumes a killed run."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("train")
    raise SystemExit

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from experiments.config.builders import build, build_target, build_with_target, check_basics, yamls
from experiments.config.cli_errors import is_point_of_sweep, one_line_errors, status
from experiments.config.command import command
from experiments.measurement.ranks import Ranks, joined
from experiments.reporting.publish import mirror_training, relative
from experiments.results.provenance import provenance
from experiments.tracking.tracker import TrainingTracker
from experiments.tracking.wandb_sending import command_for_unsent
from experiments.trainer.decoding_figures import DecodingFigures
from experiments.trainer.pairs import Pairs
from experiments.trainer.texts import read_held_out, read_text
from experiments.trainer.trainer import Recipe, Trainer
from experiments.trainer.training_data import Samples, Windows
from experiments.trainer.trainings import PROVENANCE_FILE, print_trainings, read_trainings, write_trainings
from framework.core.option_error import OptionError, options_under
from framework.core.validation import check_whole
from framework.models.target import Target
from framework.training.stored_states import StoredStates
from framework.training.target_states import reads_states
from framework.training.trainable import Trainable, counts_tokens, trains_target

CHECKPOINT = "checkpoint.pt"
DATA = ("texts", "conversations", "samples")
INSTEAD = {
    "layer_skip": " (python -m experiments.search_layers finds its layers)",
    "peagle": " (drafter=dart trains a layer that it drafts with)",
    "eagle_tree": " (it drafts with a layer that drafter=eagle3 or drafter=eagle trains)",
    "transformer_tree": " (it drafts with the model that drafter=small_transformer trains)",
}


def train(cfg: DictConfig, drafter: str, folder: Path, ranks: Ranks) -> dict[str, Any] | None:
    """Train the trainable of conf/training on the config's text; write weights and provenance to a folder.

    Args:
        cfg: config of the command.
        drafter: name of the training's yaml.
        folder: folder of the result and the checkpoint, shared by all ranks.
        ranks: processes that share every batch.

    Returns:
        The provenance; None on ranks other than 0, which write nothing.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    recipe, samples, factory = check_before_loading(cfg, drafter)
    check_folder(folder)
    if recipe.batch % ranks.size:
        raise OptionError("training.batch", recipe.batch, f"a multiple of the {ranks.size} processes")
    states = None if cfg.states is None else Path(str(cfg.states)).expanduser()
    stored = None if states is None else StoredStates(states)
    with status("loading the target"):
        target = build_target(cfg)
    # Check lengths and the checkpoint's settings before hours of sampling.
    check_lengths(cfg, recipe, samples, target)
    torch.manual_seed(cfg.seed)
    trainable = build_with_target(factory, cfg.training.trainable, target)
    check_window(trainable, recipe, target)
    if stored:
        use_states(stored, trainable, target, recipe, drafter)
    made_of = _made_of(cfg, samples, target) | {"states": stored and stored.index.dtype}
    trainer = Trainer(trainable, recipe, file=folder / CHECKPOINT, made_of=made_of, ranks=ranks)
    cache = (states or Path(cfg.folder)) / "samples"
    stride = recipe.window if stored else 1
    text = read_text(cfg, target, samples, window=recipe.window, folder=cache, stride=stride, ranks=ranks)
    trainer.agree({"text": text.fingerprint()})
    ranks.check_same("the training's text, or the step of its checkpoint,", (text.fingerprint(), trainer.step))
    if stored:
        stored.check_text(text.fingerprint())
    if counts_tokens(trainable) and isinstance(text, Windows) and not trainer.step:
        trainable.use_counts(text.counts(target.vocabulary_size).to(target.device))
    held_out = read_held_out(cfg, target, samples, window=recipe.window, folder=cache, ranks=ranks)
    tested = held_out.sample_evenly(cfg.held_out_windows).to(target.device)
    figures = DecodingFigures(cfg, target)
    trainer.run(lambda step: text.drawn(recipe.batch, seed=cfg.seed, step=step).to(target.device), tested, figures)
    if not ranks.is_writer:
        return None
    trainable.save(folder, tested)
    measures = {"tokens": tested.numel(), "fingerprint": held_out.fingerprint()} | trainable.evaluate(tested)
    measures |= figures(trainable, tested)
    made, made_for = provenance(target.device), trainable.trained_target() if trains_target(trainable) else target
    facts = {
        "command": made["command"],
        "versions": made["versions"],
        "drafter": drafter,
        "target_fingerprint": made_for.fingerprint,
        "trained_from": target.fingerprint if trains_target(trainable) else None,  # the target that a copy began as
    } | _facts(cfg, trainer, text, measures)
    (folder / PROVENANCE_FILE).write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def check_drafter(cfg: DictConfig, drafter: str, trained: str | None) -> None:
    """
    Raises:
        ValueError: the drafter cannot load the weights of the training.
    """
    those = cfg.training.get("drafters") if "training" in cfg else None
    if those is not None and drafter not in those:
        problem = f"which does not load what training={trained} trains"
        raise ValueError(f"drafter is {drafter!r}, {problem}; allowed: {', '.join(those)}, or another training=")


def check_folder(folder: Path) -> None:
    """
    Raises:
        FileExistsError: the folder holds a trained drafter whose training cannot be resumed.
    """
    if (folder / CHECKPOINT).exists():
        return
    if found := [*folder.glob("*.safetensors"), *folder.glob(PROVENANCE_FILE)]:
        allowed = f"a new or empty folder, or one with the {CHECKPOINT} of a training to resume"
        raise FileExistsError(f"folder is {str(folder)!r}, which holds {found[0].name}; allowed: {allowed}")


def check_lengths(cfg: DictConfig, recipe: Recipe, samples: Samples | None, target: Target) -> None:
    """
    Args:
        samples: settings of text to be generated; None: none is.

    Raises:
        ValueError: a window or a text to be generated exceeds the target's context.
    """
    context = target.model.context
    if recipe.window > context:
        raise ValueError(f"training.window is {recipe.window}; allowed: at most the target's context, {context}")
    if samples:
        samples.check_lengths(context=context, window=recipe.window if cfg.data == "samples" else None)


def check_window(trainable: Trainable, recipe: Recipe, target: Target) -> None:
    """
    Raises:
        ValueError: a window is too short or too long for the trainable.
    """
    sides = [2] if target.model.text_start else []
    with options_under("training"):
        trainable.loss(torch.zeros(1, *sides, recipe.window, dtype=torch.int64, device=target.device))


def use_states(stored: StoredStates, trainable: Trainable, target: Target, recipe: Recipe, drafter: str) -> None:
    """Let a trainable read stored states.

    Raises:
        ValueError: it does not read states, or those of another target, other layers or other windows.
    """
    if not reads_states(trainable):
        raise OptionError("states", str(stored.folder), f"null for {drafter}, whose training needs more than states")
    stored.check(target=target.fingerprint, layers=trainable.states.layers, window=recipe.window)
    trainable.states.read_from(stored)


def _made_of(cfg: DictConfig, samples: Samples, target: Target) -> dict[str, Any]:
    """Settings that the result depends on, without the text's fingerprint, which is known later."""
    return {
        "target": target.fingerprint,
        "seed": cfg.seed,
        "trainable": OmegaConf.to_container(cfg.training.trainable),
        "data": cfg.data,
    } | ({"samples": asdict(samples)} if cfg.data == "samples" else {})


def _facts(cfg: DictConfig, trainer: Trainer, text: Windows | Pairs, held_out: dict[str, Any]) -> dict[str, Any]:
    """Facts of a finished training: text, steps, time, config and held-out measures."""
    return {
        "text": {"tokens": text.num_tokens, "fingerprint": text.fingerprint()},
        "steps": trainer.step,
        "tokens": trainer.step * trainer.recipe.batch * trainer.recipe.window,
        "seconds": round(trainer.seconds),
        "held_out": held_out,
        "history": trainer.history,
        "config": OmegaConf.to_container(cfg),  # unresolved, so that paths do not depend on this machine
    }


def check_before_loading(cfg: DictConfig, drafter: str) -> tuple[Recipe, Samples, Callable[..., Trainable]]:
    """Run all checks that need no model; return the recipe, the samples and the trainable's factory.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    check_whole("held_out_windows", cfg.held_out_windows, least=1, most=10_000)
    check_whole("decoding_prompts", cfg.decoding_prompts, least=0, most=10_000)
    return check_training(cfg, drafter, texts=("prompts", "held_out"))


def check_training(
    cfg: DictConfig, drafter: str, *, texts: tuple[str, ...]
) -> tuple[Recipe, Samples, Callable[..., Trainable]]:
    """Check the options of a training and of its texts, under these keys, as `check_before_loading` does."""
    if "training" not in cfg:
        drafters = [name for name in yamls("training") if name in yamls("drafter")]
        others = [f"training={name}" for name in yamls("training") if name not in drafters]
        raise ValueError(
            f"drafter is {drafter!r}, which is not trained{INSTEAD.get(drafter, '')}; allowed: {', '.join(drafters)}, "
            f"or {', '.join(others)}"
        )
    if cfg.data not in DATA:
        raise ValueError(f"data is {cfg.data!r}; allowed: {', '.join(DATA)}")
    of_prompts = [f"{group}.{option}" for group in texts for option in ("count", "max_prompt_tokens")]
    check_basics(cfg, {"seed": 0}, or_null=of_prompts)
    for key in texts:
        build(cfg[key].source)
    recipe = Recipe(**{str(key): cfg.training[key] for key in Recipe.__dataclass_fields__})
    return recipe, build(cfg.samples), build(cfg.training.trainable)


@command("train")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="the same command resumes from the last checkpoint"):
        choices, folder = HydraConfig.get().runtime.choices, Path(HydraConfig.get().runtime.output_dir)
        trained, ranks = choices["training"], joined()
        check_drafter(cfg, choices["drafter"], trained)
        tracker: TrainingTracker = build(cfg.tracker)
        with ranks.printing():
            facts = train(cfg, trained, folder, ranks)
        if facts is None:
            return
        mirror_training(folder, facts, tracker, study=choices.get("study") or "train")
        write_trainings(Path(HydraConfig.get().sweep.dir) if is_point_of_sweep() else folder)
        print_trainings(read_trainings(folder))
        if sends := command_for_unsent(folder):
            print(f"To send the offline W&B run: {sends}")
        target = [each for each in HydraConfig.get().overrides.task if each.startswith("target")]
        group = cfg.training.loaded_by.split(".")[0]  # the config group whose yaml loads the trained weights
        loads = [f"{group}={choices.get(group, trained)}", f"{cfg.training.loaded_by}={relative(folder)}"]
        loads += [f"target.path={relative(folder)}"] if facts["trained_from"] else []
        print(" ".join(["Next: python -m experiments.measure", *target, *loads]))
