"""Sweeper of `experiments.measure -m`: resumes a killed sweep, and continues after a failed point.

Hydra finds sweepers only in a package named hydra_plugins, which must not have an `__init__.py`.
"""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict

from experiments.config.cli_errors import end_with, one_line_errors
from experiments.measurement.ranks import started_together
from experiments.measurement.resource_cache import process_cache
from experiments.results.records import load_records
from experiments.results.sweeps import Sweep, check_cores, claim, error_of, set_aside
from experiments.tracking.tracker import Mirror


class ResumingSweeper(BasicSweeper):
    """Sweeper that measures points without a record, in the unfinished folder of the same sweep if there is one."""

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        with one_line_errors(interrupted=None, ends_sweep=True):
            return self._sweep(arguments)

    def _sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        assert self.config is not None
        if started_together():
            raise ValueError(
                "ranks measure one point together, and -m requests several; drop -m, or give every point its own ranks "
                "with hydra/launcher=slurm hydra.launcher.tasks_per_node=N"
            )
        configs, overrides = self._points(arguments)
        check_cores(self.config.hydra.launcher, list(configs.values()))
        _check_points(configs, overrides)
        sweep = Sweep.of(overrides, {name: _task_text(cfg) for name, cfg in configs.items()})
        given = [text.lstrip("+").split("=")[0] for text in self.config.hydra.overrides.hydra]
        folder, lock = claim(Path(self.config.hydra.sweep.dir), sweep, is_chosen="hydra.sweep.dir" in given)
        try:
            with flag_override(self.config, ["readonly", "struct"], [False, False]):
                self.config.hydra.sweep.dir = str(folder)
            OmegaConf.save(self.config, folder / "multirun.yaml")
            lacking = sweep.without_record(folder)
            if len(lacking) < len(sweep.overrides):
                print(
                    f"goes on in {folder}: {sweep.progress(folder)}; set hydra.sweep.dir=OTHER to measure all of them "
                    "again",
                    flush=True,
                )
                self._mirror_finished({name: cfg for name, cfg in configs.items() if name not in lacking}, folder)
            for name in lacking:
                set_aside(folder / name)
            # Points that share a target and a drafter are measured consecutively, so that each model is loaded once.
            seen: dict[str, int] = {}
            lacking.sort(key=lambda name: [seen.setdefault(text, len(seen)) for text in _models(configs[name])])
            results, stopped = self._launch([_in_place(folder, name, overrides[name]) for name in lacking])
            self._conclude(folder, sweep, stopped, next(iter(configs.values())))
        except KeyboardInterrupt:
            end_with(f"interrupted; {sweep.progress(folder)} in {folder}; the same command goes on")
        finally:
            lock.release()
        return results

    def _mirror_finished(self, finished: dict[str, DictConfig], folder: Path) -> None:
        """Send finished points to the tracker, in case a kill came between record and tracker."""
        from experiments.reporting.publish import mirror_missing  # takes seconds

        for name, cfg in finished.items():
            mirror_missing(folder / name, _tracker(cfg))

    def _launch(self, jobs: list[list[str]]) -> tuple[list[Sequence[JobReturn]], str]:
        """Measure the points.

        Returns:
            the results; and why the sweep stopped early, "" if it did not. Errors of points do not stop it.
        """
        assert self.launcher is not None
        results: list[Sequence[JobReturn]] = []
        try:
            for chunk in self.split_overrides_to_chunks(jobs, self.max_batch_size) if jobs else []:
                results.append(self.launcher.launch(chunk, initial_job_idx=0))
        except KeyboardInterrupt:
            return results, "interrupted; "
        except Exception as error:  # the launcher's own error: one of its processes died or did not start
            return results, f"the launcher stopped ({type(error).__name__}: {error}); "
        return results, ""

    def _conclude(self, folder: Path, sweep: Sweep, stopped: str, cfg: DictConfig) -> None:
        """Report all records of the sweep.

        Args:
            folder: folder of the sweep.
            sweep: its points.
            stopped: why it stopped early; "" if it did not.
            cfg: configuration of a point, with the tracker that receives the overview.

        Raises:
            SystemExit: some points have no record; the message lists them with the reasons.
        """
        from experiments.reporting.publish import print_report  # takes seconds

        assert self.hydra_context is not None and self.config is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # about failed points, which are listed below
            records = load_records(folder)
            # The overview of an interrupted sweep follows when it is resumed.
            print_report(records, folder, tracker=_tracker(cfg) if records and not stopped else None)
        if not (lacking := sweep.without_record(folder)):
            return
        if not stopped:
            # Hydra calls it only after a sweep without errors; tables of the finished points are useful anyway.
            self.hydra_context.callbacks.on_multirun_end(config=self.config, config_name=None)
        number = f"{len(lacking)} of {len(sweep.overrides)} points have no record; the same command measures them again"
        shared = set.intersection(*map(set, sweep.overrides.values()))
        lines = []
        for name in lacking:
            own = " ".join(override for override in sweep.overrides[name] if override not in shared)
            lines.append(f"  {folder / name} ({own}): {error_of(folder / name)}")
        end_with("\n".join([stopped + number, *lines]))

    def _points(self, arguments: list[str]) -> tuple[dict[str, DictConfig], dict[str, list[str]]]:
        """Composed configuration and overrides of every point, each by the name of its folder.

        Raises:
            ValueError: several points would share a folder.
        """
        assert self.config is not None and self.hydra_context is not None
        loader = self.hydra_context.config_loader
        parsed = OverridesParser.create(config_loader=loader).parse_overrides([*self._parse_config(), *arguments])
        (batch,) = self.split_arguments(parsed, None)
        configs: dict[str, DictConfig] = {}
        for number, overrides in enumerate(batch):
            config = loader.load_sweep_config(self.config, overrides)
            with open_dict(config):
                config.hydra.job.id = config.hydra.job.num = number
            name = str(config.hydra.sweep.subdir)
            if name in configs:
                raise ValueError(
                    f"hydra.sweep.subdir gives several points the folder {name!r}; allowed: one for each, such as "
                    "'${hydra.job.num}'"
                )
            configs[name] = config
        return configs, dict(zip(configs, batch, strict=True))


def _check_points(configs: dict[str, DictConfig], overrides: dict[str, list[str]]) -> None:
    """Run the checks of every point that need no model, and print the errors if some points pass.

    Raises:
        ValueError, OSError: no point passes.
    """
    from experiments.config.builders import build_sampling, check_before_loading  # takes seconds

    errors: dict[str, Exception] = {}
    for name, cfg in configs.items():
        try:
            build_sampling(cfg)
            check_before_loading(cfg, {"drafter": cfg.drafter})
        except Exception as error:
            errors[name] = error
    if len(errors) == len(configs):
        raise next(iter(errors.values()))
    for name, reason in errors.items():
        point, line = " ".join(overrides[name]), " ".join(str(reason).split())
        print(f"{point} cannot be measured: {line}", file=sys.stderr, flush=True)


def _task_text(config: DictConfig) -> str:
    """The configuration of a point as YAML, without Hydra's own settings and with unresolved interpolations."""
    task = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    return OmegaConf.to_yaml(task)


def _tracker(config: DictConfig) -> Mirror:
    # The import takes seconds, and Hydra imports this file for every command.
    from experiments.config.builders import build_tracker

    return build_tracker(config, process_cache())


def _models(config: DictConfig) -> list[str]:
    return [OmegaConf.to_yaml(config[key]) for key in ("target", "drafter")]


def _in_place(folder: Path, name: str, overrides: list[str]) -> list[str]:
    """Overrides of a point, with its fixed folder, which is independent of its job number in the launcher."""
    places = {"dir": str(folder), "subdir": name}
    # Quoted strings of Hydra's grammar: backslashes and quotes are escaped by a backslash.
    quoted = {key: value.replace("\\", "\\\\").replace("'", "\\'") for key, value in places.items()}
    return [*overrides, *(f"hydra.sweep.{key}='{value}'" for key, value in quoted.items())]
