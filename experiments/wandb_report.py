"""Save a workspace and a report to a W&B project: `python -m experiments.wandb_report project=entity/project`."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("wandb_report")
    raise SystemExit

import math
from importlib.util import find_spec

from omegaconf import DictConfig, OmegaConf

from experiments.config.cli_errors import one_line_errors, status
from experiments.config.command import command

PACKAGE = "wandb_workspaces"


@command("wandb_report")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="the project holds what is printed above"):
        entity, project = check_project(cfg.project)
        check_temperatures(cfg.temperatures)
        if cfg.group is not None and not (isinstance(cfg.group, str) and cfg.group):
            raise ValueError(f"group is {cfg.group!r}; allowed: the name of a group of runs, or null")
        if find_spec(PACKAGE) is None:
            raise ImportError("wandb_report needs the package wandb-workspaces: pip install -e '.[report]'")
        from experiments.tracking.wandb_views import save_views  # the import takes seconds

        with status(f"saving to {cfg.project}"):
            views = save_views(entity, project, group=cfg.group, temperatures=list(cfg.temperatures))
        for kind, address in views.items():
            print(f"{kind}: {address}", flush=True)


def check_project(path: object) -> tuple[str, str]:
    """Split ENTITY/PROJECT.

    Raises:
        ValueError: the path has another form.
    """
    parts = str(path).split("/")
    if not isinstance(path, str) or len(parts) != 2 or not all(parts):
        raise ValueError(f"project is {path!r}; allowed: entity/project, as in the address of the project in W&B")
    return parts[0], parts[1]


def check_temperatures(temperatures: object) -> None:
    """
    Raises:
        ValueError: not a list of numbers >= 0.
    """
    values = temperatures if OmegaConf.is_list(temperatures) else [None]
    if not all(type(value) in (int, float) and 0 <= value < math.inf for value in values):  # type: ignore[attr-defined]
        raise ValueError(f"temperatures is {temperatures!r}; allowed: a list of numbers >= 0, such as [0,1]")
