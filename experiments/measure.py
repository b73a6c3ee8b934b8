"""Measure one point, or many with -m: `python -m experiments.measure drafter=ngram gamma.gamma=4`."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("measure")
    raise SystemExit

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import clear_frames

from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.config.builders import build_candidate, build_sampling, build_tracker, prepare
from experiments.config.cli_errors import is_point_of_sweep, one_line_errors
from experiments.config.command import command
from experiments.config.option_checks import check_kind
from experiments.measurement.bench import measure
from experiments.measurement.ranks import Ranks, check_devices, joined, sharing_a_target
from experiments.measurement.resource_cache import ResourceCache, process_cache
from experiments.reporting.publish import mirror, print_report
from experiments.results.record import Record
from experiments.results.sweeps import COMPARES_ONLY
from experiments.tracking.tracker import ERROR_FILE, JsonlTracker, describe, write_json


@command("measure")
def main(cfg: DictConfig) -> None:
    folder = Path(HydraConfig.get().runtime.output_dir)
    if not is_point_of_sweep():
        with one_line_errors():
            check_ranks(cfg)
            print_report(measure_point(cfg, folder, ResourceCache(), ranks=ranks_of(cfg)), folder)
        return
    resources = process_cache()
    with one_line_errors(interrupted=None), error_on_disk(cfg, folder, resources):
        check_ranks(cfg)
        for record in measure_point(cfg, folder, resources, ranks=ranks_of(cfg)):
            print_briefly(record)


def ranks_of(cfg: DictConfig) -> Ranks:
    """The processes of a measurement, which share either its batches or its target."""
    return sharing_a_target() if cfg.target.get("tensor_parallel") else joined()


def check_ranks(cfg: DictConfig) -> None:
    """
    Raises:
        ValueError: ranks share cores or a GPU in a run that measures times.
    """
    check_kind("share_cores", cfg.share_cores, [bool])
    only_compared = HydraConfig.get().runtime.choices["verifier"] == COMPARES_ONLY
    several = bool(cfg.target.get("device_map"))
    check_devices(cfg.device, several=several, share_cores=cfg.share_cores or only_compared)


def measure_point(
    cfg: DictConfig,
    folder: Path,
    resources: ResourceCache,
    files: JsonlTracker | None = None,
    ranks: Ranks | None = None,
) -> list[Record]:
    """Measure the point described by a config.

    Args:
        resources: cache of objects loaded for earlier points.
        files: tracker that writes the point's files; None: the default one.
        ranks: processes that share the batches; None: this process only.

    Returns:
        A list of the one record, already written to the folder and the tracker; empty on ranks other than 0.

    Raises:
        ValueError, OSError: the message names the yaml key. Other exceptions of a part pass through.
    """
    choices = HydraConfig.get().runtime.choices
    sampling, tracker = build_sampling(cfg), build_tracker(cfg, resources)
    name, study = choices["drafter"], choices.get("study") or HydraConfig.get().job.name
    target, plan, drafters = prepare(cfg, {name: cfg.drafter}, resources)
    candidate = build_candidate(
        cfg,
        name,
        drafters[name],
        target,
        sampling,
        study=study,
        folder=folder,
        compiled=plan.compiled,
        resources=resources,
    )
    candidate.tracker = files or candidate.tracker
    records = measure([candidate], target, sampling, plan, resources, ranks)
    candidate.raise_error()
    mirror(records, tracker, folder=folder)
    return records


@contextmanager
def error_on_disk(cfg: DictConfig, folder: Path, resources: ResourceCache) -> Iterator[None]:
    """Write error.json for any exception in the block, also before a point exists, and free memory for other points."""
    try:
        yield
    except Exception as error:
        # The constructor's message states the given value, the allowed ones and the key.
        shown = (error.__cause__ or error) if isinstance(error, InstantiationException) else error
        if joined().number == 0 and not list(folder.rglob(ERROR_FILE)):
            known = {"name": folder.name, "study": None, "point": {}, "config": OmegaConf.to_container(cfg)}
            write_json(folder / ERROR_FILE, known | describe(shown))
        reason = describe(shown)["error"].splitlines()[0]
        Console(stderr=True).print(f"failed: {reason}", style="red", markup=False, soft_wrap=True)
        # Drop possibly broken objects, and free their memory after an out-of-memory error.
        resources.forget()
        clear_frames(error.__traceback__)
        raise


def print_briefly(record: Record) -> None:
    """Print one line per point; the table follows at the end of the sweep."""
    metrics = record.metrics
    figures = {"τ": metrics.get("tau"), "α": metrics.get("alpha/empirical"), "speedup": metrics.get("speedup/measured")}
    shown = ", ".join(f"{name} {value:.2f}" for name, value in figures.items() if value is not None)
    print(f"{record.name}: {shown}", flush=True)
