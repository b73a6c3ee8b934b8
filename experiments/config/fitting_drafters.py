"""The drafters of a comparison that fit its target."""

import shlex
from collections.abc import Iterable

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.config.builders import build_drafter, build_shared, check_engine
from experiments.config.override_checks import SHARED_MODEL
from experiments.measurement.plan import Plan
from experiments.measurement.resource_cache import ResourceCache
from framework.core.drafter import Drafter
from framework.core.option_error import OptionError, OtherTargetError
from framework.models.target import Target


def prepare_comparison(cfg: DictConfig, resources: ResourceCache) -> tuple[Target, Plan, dict[str, Drafter]]:
    """Build target, plan, and the drafters of `cfg.drafters` that fit the target.

    A line is printed for each drafter that is left out. A drafter that the command line selects must fit, and so must
    every option that it sets.

    Args:
        resources: as for `prepare`.

    Raises:
        ValueError, OSError: the message names the yaml key; or no drafter fits.
    """
    nodes = {str(name): node for name, node in cfg.drafters.items()}
    target, plan, factories = build_shared(cfg, nodes, resources)
    given = [override.lstrip("+") for override in HydraConfig.get().overrides.task]
    drafters, left_out = {}, []
    for name, factory in factories.items():
        try:
            drafter = build_drafter(name, factory, nodes[name], target, resources)
            check_engine(cfg, f"drafters.{name}", drafter, target)
            drafters[name] = drafter
        except ValueError as error:
            if isinstance(error, OSError) or _is_asked_for(name, error, given):
                raise
            left_out.append(f"{name} is left out: {_reason(error, given)}")
    if left_out and not drafters:
        raise ValueError(f"drafters has none that fits the target; {'; '.join(left_out)}")
    for line in left_out:
        print(line, flush=True)
    return target, plan, drafters


def _is_asked_for(name: str, error: ValueError, given: Iterable[str]) -> bool:
    """Whether overrides select a drafter, or set the option that does not fit."""
    keys = [override.partition("=")[0] for override in given]
    return f"drafter@drafters.{name}" in keys or (isinstance(error, OptionError) and error.option in keys)


def _reason(error: ValueError, given: Iterable[str]) -> str:
    """Reason for leaving a drafter out, with the command to run or the option to set."""
    if not isinstance(error, OtherTargetError):
        return str(error)
    if not error.made_by:
        return f"it needs {error.allowed}; set {error.option}=PATH, or {SHARED_MODEL}path=PATH for all drafters"
    target = shlex.join(override for override in given if override.startswith(("target=", "target.")))
    command = f"python -m experiments.{error.made_by} {target}".rstrip()
    return f"{error.option} was made for another target; to make one: {command}, then set {error.option}=PATH"
