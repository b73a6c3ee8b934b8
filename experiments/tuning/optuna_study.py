"""Optuna study in a folder; a killed search resumes with the same command."""

import json
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from experiments.config.renamed_options import with_current_options
from framework.core.validation import check_whole

DATABASE = "search.sqlite"
Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True)
class Budget:
    """Budget of a search, earlier runs in its folder included.

    Attributes:
        trials: number of evaluated trials; None: no limit.
        minutes: time spent on choosing and evaluating them; None: no limit.

    Raises:
        ValueError: a value is out of range, or both are None.
    """

    trials: int | None
    minutes: float | None

    def __post_init__(self) -> None:
        trials, minutes = self.trials, self.minutes
        check_whole("trials", trials, least=1, or_null=True)
        if minutes is not None and not (isinstance(minutes, int | float) and minutes > 0):
            raise ValueError(f"minutes is {minutes!r}; allowed: a number > 0, or null")
        if trials is None and minutes is None:
            raise ValueError("trials and minutes are both null, and the search would never end; give one a number")

    def share_spent(self, trials: int, seconds: float) -> float:
        """Spent share of the budget; 1 or more: exhausted."""
        shares = [trials / self.trials] if self.trials is not None else []
        return max([*shares, *([seconds / 60 / self.minutes] if self.minutes is not None else [])])


def open_study(folder: Path, name: str, *, direction: Direction, made_of: dict[str, Any]) -> optuna.Study:
    """Create a study in a folder, or resume the one stored there.

    Args:
        made_of: JSON-serialisable settings that the evaluations depend on.

    Raises:
        OSError: the file in the folder is damaged.
        ValueError: the folder holds a search with other settings.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    check_database(folder / DATABASE)
    study = optuna.create_study(
        study_name=name,
        storage=f"sqlite:///{(folder / DATABASE).absolute()}",
        direction=direction,
        load_if_exists=True,
    )
    made_of = json.loads(json.dumps(made_of))
    before = with_current_options(remembered(study, "made_of", lambda: made_of))
    if differing := sorted(name for name in made_of | before if made_of.get(name) != before.get(name)):
        raise ValueError(
            f"folder is {str(folder)!r}, which holds a search with another {', '.join(differing)}; set folder to "
            "another one, or delete it to start over"
        )
    return study


def remembered(study: optuna.Study, name: str, make: Callable[[], Any]) -> Any:
    """Return a JSON-serialisable value that is computed once for all runs of a study."""
    if name not in study.user_attrs:
        study.set_user_attr(name, make())
    return study.user_attrs[name]


def fail_unfinished(study: optuna.Study) -> list[FrozenTrial]:
    """Mark the trials that a killed run left unfinished as failed, and return them."""
    left = study.get_trials(states=(TrialState.RUNNING,))
    for trial in left:
        study.tell(trial.number, state=TrialState.FAIL)
    return left


def check_database(file: Path) -> None:
    """
    Raises:
        OSError: the file exists and is not an intact database.
    """
    if not file.exists():
        return
    try:
        with closing(sqlite3.connect(file)) as database:
            (found,) = database.execute("PRAGMA quick_check").fetchone()
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        reason = found.splitlines()[-1]
        raise OSError(f"{file} holds no search ({reason}); delete it to start over, or set folder to another one")


def gaussian_process(seed: int, *, deterministic: bool) -> optuna.samplers.BaseSampler:
    """Build a sampler that chooses the next trial by a Gaussian process over the finished ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.GPSampler(seed=seed, deterministic_objective=deterministic)
