"""The sweeper of `experiments.measure -m`: a killed sweep goes on, and a point that fails ends nothing but itself.

It lies here because Hydra looks for sweepers nowhere else; a folder of this name must not have an `__init__.py`.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.errors import CompactHydraException
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict

from experiments.entry_point import one_line_errors
from experiments.kept import kept_by_process
from experiments.publish import mirror_untold, print_report
from experiments.ranks import started_together
from experiments.records import load_records
from experiments.sweeps import Sweep, check_cores, claim, error_of, set_aside


class ResumingSweeper(BasicSweeper):
    """Measures what has no record yet, in the folder where the same sweep was left unfinished, if there is one."""

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        with one_line_errors(interrupted=None):
            return self._sweep(arguments)

    def _sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        assert self.config is not None
        if started_together():
            raise ValueError(
                "ranks measure one point together, and -m asks for several; leave it out, or give every point ranks of "
                "its own with hydra/launcher=slurm hydra.launcher.tasks_per_node=N"
            )
        configs, overrides = self._points(arguments)
        check_cores(self.config.hydra.launcher, list(configs.values()))
        sweep = Sweep.of(overrides, {name: _task_text(cfg) for name, cfg in configs.items()})
        given = [text.lstrip("+").split("=")[0] for text in self.config.hydra.overrides.hydra]
        folder, lock = claim(Path(self.config.hydra.sweep.dir), sweep, is_chosen="hydra.sweep.dir" in given)
        try:
            with flag_override(self.config, ["readonly", "struct"], [False, False]):
                self.config.hydra.sweep.dir = str(folder)
            OmegaConf.save(self.config, folder / "multirun.yaml")
            lacking = sweep.without_record(folder)
            if done := len(sweep.overrides) - len(lacking):
                print(
                    f"goes on in {folder}: {done} of {len(sweep.overrides)} points have a record; "
                    "hydra.sweep.dir=OTHER measures all of them anew",
                    flush=True,
                )
                self._tell({name: cfg for name, cfg in configs.items() if name not in lacking}, folder)
            for name in lacking:
                set_aside(folder / name)
            # What shares a target and a drafter is measured in a row, so that either is loaded once.
            seen: dict[str, int] = {}
            lacking.sort(key=lambda name: [seen.setdefault(text, len(seen)) for text in _models(configs[name])])
            results, stopped = self._launch([_in_place(folder, name, overrides[name]) for name in lacking])
            self._conclude(folder, sweep, stopped)
        finally:
            lock.release()
        return results

    def _tell(self, finished: dict[str, DictConfig], folder: Path) -> None:
        """A kill may have come between a point's record and what the tracker was to be told of it."""
        from experiments.assemble import build_tracker  # takes seconds, and Hydra imports this file for every command

        for name, cfg in finished.items():
            mirror_untold(folder / name, build_tracker(cfg, kept_by_process()))

    def _launch(self, jobs: list[list[str]]) -> tuple[list[Sequence[JobReturn]], str]:
        """Measure; says how it ended, if something other than a point's own error ended it."""
        assert self.launcher is not None
        results: list[Sequence[JobReturn]] = []
        try:
            for chunk in self.split_overrides_to_chunks(jobs, self.max_batch_size) if jobs else []:
                results.append(self.launcher.launch(chunk, initial_job_idx=0))
        except KeyboardInterrupt:
            return results, "interrupted; "
        except Exception as error:  # the launcher's own: a process of its died, or was not to be had
            return results, f"the launcher stopped ({type(error).__name__}: {error}); "
        return results, ""

    def _conclude(self, folder: Path, sweep: Sweep, stopped: str) -> None:
        """Show all records of the sweep.

        Raises:
            CompactHydraException: there are points without one; it says which, and why.
        """
        assert self.hydra_context is not None and self.config is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of points that failed, which are named below
            print_report(load_records(folder), folder)
        if not (lacking := sweep.without_record(folder)):
            return
        if not stopped:
            # Hydra calls it after a sweep without an error only; tables of what there is are welcome all the same.
            self.hydra_context.callbacks.on_multirun_end(config=self.config, config_name=None)
        number = f"{len(lacking)} of {len(sweep.overrides)} points have no record; the same command measures them again"
        shared = set.intersection(*map(set, sweep.overrides.values()))
        lines = []
        for name in lacking:
            own = " ".join(override for override in sweep.overrides[name] if override not in shared)
            lines.append(f"  {folder / name} ({own}): {error_of(folder / name)}")
        raise CompactHydraException("\n".join([stopped + number, *lines]))

    def _points(self, arguments: list[str]) -> tuple[dict[str, DictConfig], dict[str, list[str]]]:
        """Every point's configuration, composed, and its overrides, by the name of its folder.

        Raises:
            ValueError: several points would get one folder.
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


def _task_text(config: DictConfig) -> str:
    """Everything a point is configured with, but for Hydra's own settings; interpolations as they are written."""
    task = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    return OmegaConf.to_yaml(task)


def _models(config: DictConfig) -> list[str]:
    return [OmegaConf.to_yaml(config[key]) for key in ("target", "drafter")]


def _in_place(folder: Path, name: str, overrides: list[str]) -> list[str]:
    """A point's overrides, and where it lies, whatever number the launcher gives it."""
    places = {"dir": str(folder), "subdir": name}
    # In Hydra's grammar a quoted text, in which backslashes and quotes follow a backslash.
    quoted = {key: value.replace("\\", "\\\\").replace("'", "\\'") for key, value in places.items()}
    return [*overrides, *(f"hydra.sweep.{key}='{value}'" for key, value in quoted.items())]
