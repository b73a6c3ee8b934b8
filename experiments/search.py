"""Search for the fastest settings: `python -m experiments.search`. The same command resumes a killed search."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("search")
    raise SystemExit

import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hydra
import optuna
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console

from experiments.config.cli_errors import one_line_errors
from experiments.config.command import command
from experiments.config.override_checks import check_overrides
from experiments.measure import error_on_disk, measure_point
from experiments.measurement.resource_cache import ResourceCache
from experiments.reporting.publish import relative
from experiments.reporting.tables.text_table import Cells, markdown, shown
from experiments.tracking.tracker import JsonlTracker, write_json
from experiments.tuning.optuna_study import Budget, fail_unfinished, gaussian_process, open_study
from framework.core.validation import check_whole

STUDY = "speed"
METRIC, SECONDS = "speedup/measured", "seconds"
LEAST_PROMPTS = 3  # no trial is ended before this many prompts
OF_THE_SEARCH = ("search_space", "trials", "minutes", "startup_trials", "folder")  # not part of a point's config
MAY_GROW = ("trials", "minutes", "folder")  # may change when a search is resumed
ENDS = {TrialState.COMPLETE: "measured", TrialState.PRUNED: "ended early", TrialState.FAIL: "failed"}


@command("search")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="the same command resumes the search"):
        study = search(cfg)
        show(study, Path(cfg.folder))


def search(cfg: DictConfig) -> optuna.Study:
    """Measure points, chosen by a Gaussian process over the measured ones, until the budget is spent.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    budget, space = Budget(cfg.trials, cfg.minutes), check_space(cfg)
    check_whole("startup_trials", cfg.startup_trials, least=0, most=10**6)
    check_whole("seed", cfg.seed, least=0, most=2**31)
    folder, resources = Path(cfg.folder), ResourceCache()
    made_of = {str(key): value for key, value in _plain(cfg).items() if key not in MAY_GROW}
    study = open_study(folder, STUDY, direction="maximize", made_of=made_of)
    for trial in fail_unfinished(study):
        study.enqueue_trial(trial.params)
    ended = study.get_trials(deepcopy=False, states=tuple(ENDS))
    # The seed changes on every resumption; the same seed would propose the same points again.
    study.sampler = gaussian_process(cfg.seed + len(ended), deterministic=False)
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=cfg.startup_trials, n_warmup_steps=LEAST_PROMPTS)
    while (spent := _share_spent(budget, evaluated(study))) < 1:
        print(f"{spent:.0%} of the budget is spent", flush=True)
        measure_trial(cfg, study, study.ask(), space, resources)
    return study


def _share_spent(budget: Budget, trials: list[FrozenTrial]) -> float:
    return budget.share_spent(len(trials), sum(trial.user_attrs[SECONDS] for trial in trials))


def check_space(cfg: DictConfig) -> dict[str, Any]:
    """Return the search space by config key.

    Raises:
        ValueError: a value is neither a list nor a range, or the command line sets the key as well.
    """
    space: dict[str, Any] = _plain(cfg)["search_space"]
    set_by_hand = {override.split("=")[0].lstrip("+") for override in HydraConfig.get().overrides.task}
    for key, values in space.items():
        if not (_is_range(values) or (isinstance(values, list) and values)):
            raise ValueError(f"search_space.{key} is {values!r}; allowed: a list, or {{low: 1, high: 8, step: 1}}")
        if key in set_by_hand:
            raise ValueError(f"{key} is set, and search_space.{key} searches for it; leave out one of them")
    _check_values(space)
    return space


def _check_values(space: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: a group does not have a choice, or none of the choices has an option.
    """
    firsts = {key: values["low"] if _is_range(values) else values[0] for key, values in space.items()}
    lists = {key: values for key, values in space.items() if "." not in key and not _is_range(values)}
    groups = [in_words({key: value}) for key, values in lists.items() for value in values]
    options = [in_words({key: value}) for key, value in firsts.items() if key not in lists]
    try:
        for choice in groups:
            check_overrides("search", [choice])
        for option in options:
            part = option.partition(".")[0]
            choices = [choice for choice in groups if choice.startswith(f"{part}=")]
            _check_any([[*([choice] if choice else []), option] for choice in choices or [""]])
    except ValueError as error:
        raise ValueError(f"search_space: {error}") from error


def _check_any(alternatives: list[list[str]]) -> None:
    """
    Raises:
        ValueError: none of the lists of overrides can be applied.
    """
    for number, overrides in enumerate(alternatives, start=1):
        try:
            check_overrides("search", overrides)
            return
        except ValueError:
            if number == len(alternatives):
                raise


def _is_range(values: Any) -> bool:
    if not isinstance(values, dict) or not {"low", "high"} <= set(values) <= {"low", "high", "step"}:
        return False
    return all(type(number) in (int, float) for number in values.values()) and values["low"] <= values["high"]


def measure_trial(
    cfg: DictConfig, study: optuna.Study, trial: optuna.Trial, space: Mapping[str, Any], resources: ResourceCache
) -> None:
    """Measure one point and report its end to the study: a record, an early end, or an error (in error.json)."""
    begun, folder = time.perf_counter(), Path(cfg.folder) / f"trial-{trial.number:04d}"
    chosen = {key: suggest(trial, key, values) for key, values in space.items()}
    print(f"trial {trial.number}: {in_words(chosen)}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    state, speedup = TrialState.FAIL, None
    with point_config(chosen) as point_cfg, suppress(Exception), error_on_disk(point_cfg, folder, resources):
        try:
            (record,) = measure_point(point_cfg, folder, resources, EndedEarly(trial))
            speedup = record.metrics[METRIC]
            state = TrialState.COMPLETE
        except optuna.TrialPruned:
            state = TrialState.PRUNED
    trial.set_user_attr(SECONDS, time.perf_counter() - begun)
    study.tell(trial, speedup, state=state)
    print(f"  {ENDS[state]}" + (f", speedup {speedup:.2f}" if speedup else ""), flush=True)


class EndedEarly(JsonlTracker):
    """Tracker that writes a point's files and reports its speedup after every prompt, where the search may prune it."""

    def __init__(self, trial: optuna.Trial):
        super().__init__()
        self._trial = trial
        self._rows: list[dict[str, Any]] = []

    def log_prompt(self, row: dict[str, Any]) -> None:
        """
        Raises:
            optuna.TrialPruned: the point is slower so far than the median of the other trials at this prompt.
        """
        super().log_prompt(row)
        self._rows.append(row)
        plain, ours = (sum(row[key] for row in self._rows) for key in ("baseline_seconds", "seconds"))
        self._trial.report(plain / ours, step=len(self._rows))
        if self._trial.should_prune():
            raise optuna.TrialPruned

    def fail(self, error: BaseException) -> None:
        """Close the files without an error if the trial was pruned."""
        if isinstance(error, optuna.TrialPruned):
            self.close()
        else:
            super().fail(error)


@contextmanager
def point_config(chosen: Mapping[str, Any]) -> Iterator[DictConfig]:
    """Compose the command line's config with further overrides, and set it as Hydra's global config for the block."""
    hydra_config = HydraConfig.instance()
    ours, given = hydra_config.cfg, HydraConfig.get().overrides
    config = hydra.compose(
        "search", overrides=[*given.hydra, *given.task, *in_words(chosen).split()], return_hydra_config=True
    )
    hydra_config.set_config(config)
    try:
        yield OmegaConf.masked_copy(config, [str(key) for key in config if key not in ("hydra", *OF_THE_SEARCH)])
    finally:
        hydra_config.cfg = ours


def suggest(trial: optuna.Trial, key: str, values: Any) -> Any:
    if isinstance(values, list):
        return trial.suggest_categorical(key, values)
    if all(isinstance(number, int) for number in values.values()):
        return trial.suggest_int(key, **values)
    return trial.suggest_float(key, **values)


def in_words(chosen: Mapping[str, Any]) -> str:
    """Format as command-line overrides."""
    return " ".join(f"{key}={'null' if value is None else value}" for key, value in chosen.items())


def evaluated(study: optuna.Study) -> list[FrozenTrial]:
    """Finished trials, without those left unfinished by a kill."""
    return [trial for trial in study.get_trials(deepcopy=False, states=tuple(ENDS)) if SECONDS in trial.user_attrs]


def show(study: optuna.Study, folder: Path) -> None:
    """Print and save all trials, fastest first, with the command that measures the best one again.

    Raises:
        ValueError: no trial was measured to its end.
    """
    # Optuna gives a pruned trial its last reported value.
    speedups = {each.number: each.value for each in evaluated(study) if each.state is TrialState.COMPLETE}
    trials = sorted(evaluated(study), key=lambda each: -(speedups.get(each.number) or 0.0))
    keys = list(trials[0].params)
    cells: Cells = [["trial", "", "speedup", *keys, "seconds"]]
    for each in trials:
        speedup = f"{speedups[each.number]:.2f}" if each.number in speedups else "–"
        settings = [f"{value:g}" if type(value) is float else str(value) for value in map(each.params.get, keys)]
        cells.append([str(each.number), ENDS[each.state], speedup, *settings, f"{each.user_attrs[SECONDS]:.0f}"])
    Console(width=None if sys.stdout.isatty() else 160).print(shown(cells, title="The fastest first"))
    (folder / "trials.md").write_text(markdown(cells), encoding="utf-8")
    best = trials[0]
    if best.number not in speedups:
        raise ValueError(f"no trial was measured to its end; errors are in {folder}/trial-*/error.json")
    given = [text for text in HydraConfig.get().overrides.task if not text.lstrip("+~").startswith(OF_THE_SEARCH)]
    command = f"python -m experiments.measure {shlex.join([*given, *in_words(best.params).split()])}"
    found = {"trial": best.number, METRIC: best.value, "settings": best.params, "command": command}
    write_json(folder / "best.json", found)
    print(f"The best: trial {best.number}, speedup {best.value:.2f}; its record is in {relative(folder)}")
    print(f"trials.md, best.json: {relative(folder)}\nNext: {command}")


def _plain(cfg: DictConfig) -> dict[str, Any]:
    return OmegaConf.to_container(cfg)  # type: ignore[return-value]
