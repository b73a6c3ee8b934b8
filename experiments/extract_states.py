"""Store the states of a training once: `python -m experiments.extract_states drafter=eagle3`; resumes a killed run."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("extract_states")
    raise SystemExit

import shlex
import shutil
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.config.builders import build_target, build_with_target
from experiments.config.cli_errors import one_line_errors, status
from experiments.config.command import command
from experiments.config.progress import Steps
from experiments.measurement.ranks import started_together
from experiments.reporting.publish import relative
from experiments.train import check_lengths, check_training
from experiments.trainer.texts import read_text
from experiments.trainer.training_data import Windows
from framework.core.option_error import OptionError
from framework.core.validation import check_whole
from framework.training.stored_states import DTYPES, INDEX, StatesIndex, read_index
from framework.training.target_states import TargetStates, reads_states

OWN = ("folder", "dtype", "batch", "windows_per_shard", "drafter")  # not passed on to train as they are


def extract(cfg: DictConfig, drafter: str, folder: Path) -> StatesIndex:
    """Write the states of all windows of the config's text to a folder; shards that are there are kept.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    if started_together():
        raise ValueError("extract_states was started as several processes; allowed: one, without torchrun")
    recipe, samples, factory = check_training(cfg, drafter, texts=("prompts",))
    if cfg.dtype not in DTYPES:
        raise OptionError("dtype", cfg.dtype, ", ".join(DTYPES))
    for key in ("batch", "windows_per_shard"):
        check_whole(key, cfg[key], least=1, most=10**9)
    with status("loading the target"):
        target = build_target(cfg)
    check_lengths(cfg, recipe, samples if cfg.data == "samples" else None, target)
    if target.model.text_start:
        raise OptionError("target", cfg.target.path, "a target without an encoder, whose texts are windows")
    trainable = build_with_target(factory, cfg.training.trainable, target)
    if not reads_states(trainable):
        raise OptionError("training", drafter, "dart, eagle, eagle3, medusa", "whose training needs more than states")
    text = read_text(cfg, target, samples, window=recipe.window, folder=folder / "samples", stride=recipe.window)
    assert isinstance(text, Windows)
    index = StatesIndex(
        target=target.fingerprint,
        text=text.fingerprint(),
        window=recipe.window,
        windows=len(text),
        layers=trainable.states.layers,
        dtype=cfg.dtype,
        windows_per_shard=cfg.windows_per_shard,
    )
    check_folder(folder, index)
    states = TargetStates(target, trainable.states.layers)
    check_space(folder, index, *states(text.at([0]).to(target.device)))
    index.write(folder)
    write_shards(folder, index, text, states, batch=cfg.batch, device=target.device)
    return index


def check_folder(folder: Path, index: StatesIndex) -> None:
    """
    Raises:
        OptionError, OSError: the folder holds other states, or a damaged index.
    """
    if not (folder / INDEX).exists():
        return
    found = read_index(folder)
    for key in StatesIndex.__dataclass_fields__:
        if getattr(found, key) != getattr(index, key):
            problem = f"which holds states with {key} {getattr(found, key)}, not {getattr(index, key)}"
            raise OptionError("folder", str(folder), "a new or empty folder, or one of the same settings", problem)


def check_space(folder: Path, index: StatesIndex, states: torch.Tensor, features: torch.Tensor | None) -> None:
    """Print the size of the missing shards, given the states of one window.

    Raises:
        OptionError: the disk has less space.
    """
    missing = index.missing(folder)
    windows = sum(len(index.shards[shard]) for shard in missing)
    needed = index.num_bytes(states, features, windows)
    free = shutil.disk_usage(
        next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    ).free
    size = f"{needed / 1e9:.3g} GB"
    print(f"{windows} windows of {index.window} tokens, {size} in {len(missing)} files", flush=True)
    if needed > free:
        problem = f"where {free / 1e9:.3g} GB are free, and the states take {size}"
        raise OptionError("folder", str(folder), "a disk with more space, or a shorter text", problem)


def write_shards(
    folder: Path, index: StatesIndex, text: Windows, states: TargetStates, *, batch: int, device: torch.device
) -> None:
    """Compute and write the missing shards."""
    missing = index.missing(folder)
    with Steps(len(index.shards), "storing states", completed=len(index.shards) - len(missing)) as steps:
        for shard in missing:
            tokens = text.at(index.shards[shard])
            kept = [
                [part.to("cpu", DTYPES[index.dtype]) for part in states(some.to(device)) if part is not None]
                for some in tokens.split(batch)
            ]
            output, *features = (torch.cat(parts) for parts in zip(*kept, strict=True))
            index.write_shard(folder, shard, tokens, output, features[0] if features else None)
            steps.update("storing states", advance=1)


@command("extract_states")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="the same command resumes with the next shard"):
        choices, folder = HydraConfig.get().runtime.choices, Path(HydraConfig.get().runtime.output_dir)
        extract(cfg, choices["training"] or choices["drafter"], folder)
        kept = [each for each in HydraConfig.get().overrides.task if each.split("=")[0] not in OWN]
        again = [*kept, f"drafter={choices['drafter']}", f"states={relative(folder)}"]
        print(f"Next: python -m experiments.train {shlex.join(again)}")
