"""What `--help` says of a command, from its yaml and its groups; conf/help.yaml has the frame."""

import re
import textwrap
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

CONF = Path(__file__).parents[1] / "conf"
WIDTH = 110  # characters in a line


def register_help() -> None:
    """Let conf/help.yaml ask for what is below."""
    OmegaConf.register_new_resolver("about", about, replace=True)
    OmegaConf.register_new_resolver("parts", parts, replace=True)


def about() -> str:
    """The first comment of the command's yaml, which says what it is."""
    yaml = CONF / f"{HydraConfig.get().job.config_name}.yaml"
    return yaml.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def parts() -> str:
    """A line for every group of the command with its choices, those of other packages included, chosen ones marked."""
    chosen: dict[str, list[str | None]] = {}
    for key, choice in reversed(HydraConfig.get().runtime.choices.items()):  # Hydra lists the last one first
        if not key.startswith("hydra/"):
            # Of several in one place, such as drafter@drafters.medusa, only the place matters.
            chosen.setdefault(re.sub(r"(?<=@drafters)\..*", ".NAME", key), []).append(choice)
    if not chosen:
        return ""
    width = max(map(len, chosen)) + 2
    lines = ["Parts, chosen by PART=CHOICE; the usual choice stands in brackets:"]
    for key, its in chosen.items():
        options = GlobalHydra.instance().config_loader().get_group_options(key.split("@")[0])
        listed = ", ".join(f"[{option}]" if option in its else option for option in options)
        indent = " " * (width + 2)
        lines += textwrap.wrap(f"  {key:{width}}{listed}", WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines) + "\n"
