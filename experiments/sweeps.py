"""A sweep's folder: whose it is, which of its points have a record, and what a run that was killed left there."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from omegaconf import DictConfig

from experiments.knobs import check_kind
from framework.tracker import ERROR_FILE, PROMPTS_FILE, RECORD_FILE, write_json

SWEEP_FILE = "sweep.json"
LOCK_FILE = "sweep.lock"
# Launchers of which no two points share cores: one point at a time, or machines that Slurm shares out.
ONE_AT_A_TIME = ("BasicLauncher", "SlurmLauncher")
COMPARES_ONLY = "teacher_forced"  # the verifier that keeps no draft


@dataclass(frozen=True)
class Sweep:
    """The points that a command asks for.

    Attributes:
        overrides: of every point, by the name of its folder.
        digest: of every point's whole configuration; another sweep has another one.
    """

    overrides: Mapping[str, list[str]]
    digest: str

    @classmethod
    def of(cls, overrides: Mapping[str, list[str]], configurations: Mapping[str, str]) -> "Sweep":
        text = json.dumps(configurations, sort_keys=True)
        return cls(overrides=overrides, digest=hashlib.sha256(text.encode()).hexdigest())

    def without_record(self, folder: Path) -> list[str]:
        """Points that have yet to be measured there."""
        return [name for name in self.overrides if not has_record(folder / name)]


def has_record(point: Path) -> bool:
    return any(point.glob(f"*/{RECORD_FILE}"))


def claim(planned: Path, sweep: Sweep, *, is_chosen: bool) -> tuple[Path, FileLock]:
    """Find the folder to measure in: where this very sweep was left unfinished, or else the planned one.

    Args:
        planned: where to measure if nothing is unfinished; what is, lies beside it.
        is_chosen: whether the user named the folder; then there is no looking for another.

    Returns:
        the folder, and the lock on it, which is held: until it is released, or this process ends, no other gets it.

    Raises:
        ValueError: another sweep has the planned folder, or another process works there.
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
    """Folders in which the same sweep was begun and lacks records, the newest first."""
    files = sorted(parent.glob(f"*/{SWEEP_FILE}"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files:
        if _digest_in(file.parent) == sweep.digest and sweep.without_record(file.parent):
            yield file.parent


def _digest_in(folder: Path) -> str | None:
    file = folder / SWEEP_FILE
    return json.loads(file.read_text(encoding="utf-8"))["digest"] if file.exists() else None


def _locked(folder: Path) -> FileLock | None:
    """A lock that the system itself releases when the process dies; None if another process holds it."""
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def set_aside(point: Path) -> None:
    """Make room for a point to be measured again; prompts and errors of earlier attempts stay, under other names."""
    for file in [*point.rglob(PROMPTS_FILE), *point.rglob(ERROR_FILE)]:
        attempts = len(list(file.parent.glob(f"{file.stem}.attempt*")))
        file.rename(file.with_name(f"{file.stem}.attempt{attempts + 1}{file.suffix}"))


def error_of(point: Path) -> str:
    """In a line, why a point has no record."""
    for file in point.rglob(ERROR_FILE):
        return json.loads(file.read_text(encoding="utf-8"))["error"].splitlines()[0]
    return "was not measured"


def check_cores(launcher: DictConfig, points: Sequence[DictConfig]) -> None:
    """See that no times are falsified by points that run at the same time.

    Args:
        launcher: Hydra's node for it.
        points: every point's configuration, Hydra's part included.

    Raises:
        ValueError: the launcher lets points share cores, or a GPU, and some of them are about times.
    """
    for point in points:
        check_kind("share_cores", point.share_cores, [bool])
    name = launcher["_target_"].split(".")[-1]
    alone = len(points) == 1 or name in ONE_AT_A_TIME or launcher.get("n_jobs") == 1
    only_compared = all(point.share_cores or point.hydra.runtime.choices.verifier == COMPARES_ONLY for point in points)
    if not alone and not only_compared:
        raise ValueError(
            f"share_cores is false, and {name} measures points at once on the same cores or GPU, which falsifies their "
            f"times; set hydra/launcher=basic to measure one by one, verifier={COMPARES_ONLY} to learn alpha only, or "
            "share_cores=true if the times are not used"
        )
