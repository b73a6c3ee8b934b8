"""Sweep folders: the sweep they belong to, points without a record, and leftovers of killed runs."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from omegaconf import DictConfig

from experiments.config.option_checks import check_kind
from experiments.results.record import RECORD_FILE
from experiments.tracking.tracker import ERROR_FILE, PROMPTS_FILE, write_json

SWEEP_FILE = "sweep.json"
LOCK_FILE = "sweep.lock"
# Launchers whose points never share cores: they run one at a time, or on resources allocated by Slurm.
ONE_AT_A_TIME = ("BasicLauncher", "SlurmLauncher")
COMPARES_ONLY = "teacher_forced"  # the verifier that accepts no draft and measures alpha only


@dataclass(frozen=True)
class Sweep:
    """The points of a command.

    Attributes:
        overrides: Hydra overrides of every point, by the name of its folder.
        digest: SHA-256 of the whole configurations of all points; it identifies the sweep.
    """

    overrides: Mapping[str, list[str]]
    digest: str

    @classmethod
    def of(cls, overrides: Mapping[str, list[str]], configurations: Mapping[str, str]) -> "Sweep":
        text = json.dumps(configurations, sort_keys=True)
        return cls(overrides=overrides, digest=hashlib.sha256(text.encode()).hexdigest())

    def without_record(self, folder: Path) -> list[str]:
        """Names of the points that have no record in the folder."""
        return [name for name in self.overrides if not has_record(folder / name)]

    def progress(self, folder: Path) -> str:
        """Number of points that have a record in the folder, in words."""
        done = len(self.overrides) - len(self.without_record(folder))
        return f"{done} of {len(self.overrides)} points have a record"


def has_record(point: Path) -> bool:
    return any(point.glob(f"*/{RECORD_FILE}"))


def claim(planned: Path, sweep: Sweep, *, is_chosen: bool) -> tuple[Path, FileLock]:
    """Lock the folder to measure in: an unfinished one of the same sweep, else the planned one.

    Args:
        planned: folder to use if no sibling of it holds this sweep unfinished.
        is_chosen: whether the user set the folder; if so, no sibling is used.

    Returns:
        the folder, and its lock, held until it is released or this process ends.

    Raises:
        ValueError: the planned folder holds another sweep, or another process is measuring there.
    """
    for folder in [] if is_chosen else _unfinished(planned.parent, sweep):
        if lock := _locked(folder):
            return folder, lock
    planned.mkdir(parents=True, exist_ok=True)
    lock = _locked(planned)
    if lock is None:
        raise ValueError(
            f"hydra.sweep.dir is {str(planned)!r}, where another process is measuring; wait for it, or set another "
            "folder"
        )
    if _digest_in(planned) != sweep.digest:
        if (planned / SWEEP_FILE).exists() or any(has_record(planned / name) for name in sweep.overrides):
            lock.release()
            raise ValueError(
                f"hydra.sweep.dir is {str(planned)!r}, which holds another sweep, or one made with other settings; set "
                "another folder, or delete it"
            )
        points = {name: list(overrides) for name, overrides in sweep.overrides.items()}
        write_json(planned / SWEEP_FILE, {"digest": sweep.digest, "points": points})
    return planned, lock


def _unfinished(parent: Path, sweep: Sweep) -> Iterator[Path]:
    """Folders of the same sweep that lack records, newest first."""
    files = sorted(parent.glob(f"*/{SWEEP_FILE}"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files:
        if _digest_in(file.parent) == sweep.digest and sweep.without_record(file.parent):
            yield file.parent


def _digest_in(folder: Path) -> str | None:
    file = folder / SWEEP_FILE
    return json.loads(file.read_text(encoding="utf-8"))["digest"] if file.exists() else None


def _locked(folder: Path) -> FileLock | None:
    """Lock the folder until release or process death; None if another process holds the lock."""
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def set_aside(point: Path) -> None:
    """Rename prompts and errors of earlier attempts, so that the point can be measured again."""
    for file in [*point.rglob(PROMPTS_FILE), *point.rglob(ERROR_FILE)]:
        attempts = len(list(file.parent.glob(f"{file.stem}.attempt*")))
        file.rename(file.with_name(f"{file.stem}.attempt{attempts + 1}{file.suffix}"))


def error_of(point: Path) -> str:
    """The reason why a point has no record, in one line."""
    for file in point.rglob(ERROR_FILE):
        return json.loads(file.read_text(encoding="utf-8"))["error"].splitlines()[0].removesuffix(": ")
    return "was not measured"


def check_cores(launcher: DictConfig, points: Sequence[DictConfig]) -> None:
    """Check that points running concurrently do not distort each other's times.

    Args:
        launcher: config of the Hydra launcher.
        points: configurations of all points, with Hydra's own part.

    Raises:
        ValueError: the launcher lets points share cores or a GPU, and some of them measure times.
    """
    for point in points:
        check_kind("share_cores", point.share_cores, [bool])
    name = launcher["_target_"].split(".")[-1]
    alone = len(points) == 1 or name in ONE_AT_A_TIME or launcher.get("n_jobs") == 1
    only_compared = all(point.share_cores or point.hydra.runtime.choices.verifier == COMPARES_ONLY for point in points)
    if not alone and not only_compared:
        raise ValueError(
            f"share_cores is false, and {name} measures points concurrently on the same cores or GPU, which distorts "
            f"their times; set hydra/launcher=basic to measure one by one, verifier={COMPARES_ONLY} to measure only "
            "alpha, or share_cores=true if the times are not used"
        )
