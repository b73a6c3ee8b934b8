"""Measure one point, or many with -m: `python -m experiments.measure drafter=ngram gamma.gamma=4`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import clear_frames

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.assemble import build_sampling, build_subject, build_tracker, prepare, register_resolvers
from experiments.entry_point import is_point_of_sweep, one_line_errors
from experiments.kept import Kept, kept_by_process
from experiments.knobs import check_kind
from experiments.measurement import measure
from experiments.publish import mirror, print_report
from experiments.ranks import Ranks, check_devices, joined
from experiments.records import Record
from experiments.sweeps import COMPARES_ONLY
from framework.tracker import ERROR_FILE, JsonlTracker, describe, write_json

register_resolvers()


@hydra.main(version_base="1.3", config_path="../conf", config_name="measure")
def main(cfg: DictConfig) -> None:
    register_resolvers()  # a launcher's processes find this function, not its module
    folder = Path(HydraConfig.get().runtime.output_dir)
    if not is_point_of_sweep():
        with one_line_errors():
            check_ranks(cfg)
            print_report(measure_point(cfg, folder, Kept(), ranks=joined()), folder)
        return
    kept = kept_by_process()
    with one_line_errors(interrupted=None), error_on_disk(cfg, folder, kept):
        check_ranks(cfg)
        for record in measure_point(cfg, folder, kept, ranks=joined()):
            print_briefly(record)


def check_ranks(cfg: DictConfig) -> None:
    """
    Raises:
        ValueError: ranks are beside each other where times count.
    """
    check_kind("share_cores", cfg.share_cores, [bool])
    only_compared = HydraConfig.get().runtime.choices["verifier"] == COMPARES_ONLY
    several = bool(cfg.target.get("device_map"))
    check_devices(cfg.device, several=several, share_cores=cfg.share_cores or only_compared)


def measure_point(
    cfg: DictConfig, folder: Path, kept: Kept, files: JsonlTracker | None = None, ranks: Ranks | None = None
) -> list[Record]:
    """Measure what a config describes.

    Args:
        kept: what was loaded for earlier points.
        files: writes the point's files, where somebody else wants to hear of its prompts, too.
        ranks: the processes that measure it together; None is this one.

    Returns:
        the one record, which is in the folder and with the tracker by then; nothing on other ranks than 0.

    Raises:
        ValueError, OSError: the message names the yaml key. What else a part raises passes through.
    """
    choices = HydraConfig.get().runtime.choices
    sampling, tracker = build_sampling(cfg), build_tracker(cfg, kept)
    name, study = choices["drafter"], choices.get("study") or HydraConfig.get().job.name
    target, plan, drafters = prepare(cfg, {name: cfg.drafter}, kept)
    subject = build_subject(
        cfg, name, drafters[name], target, sampling, study=study, folder=folder, compiled=plan.compiled, kept=kept
    )
    subject.tracker = files or subject.tracker
    records = measure([subject], target, sampling, plan, kept, ranks)
    subject.raise_error()
    mirror(records, tracker, folder=folder)
    return records


@contextmanager
def error_on_disk(cfg: DictConfig, folder: Path, kept: Kept) -> Iterator[None]:
    """Leave an error.json of whatever is raised, be it before there is a point, and nothing else: others go on."""
    try:
        yield
    except Exception as error:
        # A constructor's own message says what was given, what is allowed and which key to change.
        told = (error.__cause__ or error) if isinstance(error, InstantiationException) else error
        if joined().number == 0 and not list(folder.rglob(ERROR_FILE)):
            known = {"name": folder.name, "study": None, "point": {}, "config": OmegaConf.to_container(cfg)}
            write_json(folder / ERROR_FILE, known | describe(told))
        reason = describe(told)["error"].splitlines()[0]
        Console(stderr=True).print(f"failed: {reason}", style="red", markup=False, soft_wrap=True)
        # Nothing that broke is used again, and what lacked memory holds none.
        kept.forget()
        clear_frames(error.__traceback__)
        raise


def print_briefly(record: Record) -> None:
    """A point's line; the table comes when the sweep ends."""
    metrics = record["metrics"]
    figures = {"τ": metrics.get("tau"), "α": metrics.get("alpha/empirical"), "speedup": metrics.get("speedup/measured")}
    told = ", ".join(f"{name} {value:.2f}" for name, value in figures.items() if value is not None)
    print(f"{record['name']}: {told}", flush=True)


if __name__ == "__main__":
    main()
