"""Text of a command's `--help`, from its yaml and its config groups; conf/help.yaml has the template."""

import re
import textwrap
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

EXPERIMENTS = Path(__file__).parents[1]
CONF = EXPERIMENTS.parent / "conf"
WIDTH = 110  # characters in a line


def commands() -> dict[str, str]:
    """Descriptions of all commands by name."""
    names = sorted(path.stem for path in CONF.glob("*.yaml"))
    return {name: _description(name) for name in names if (EXPERIMENTS / f"{name}.py").exists()}


def about() -> str:
    """Description of the command."""
    return _description(str(HydraConfig.get().job.config_name))


def _description(name: str) -> str:
    """First comment of a yaml."""
    return (CONF / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def command_of(part: str) -> str:
    """The command in the second comment of a yaml such as study/gamma: measure; "" if it names none."""
    lines = (CONF / f"{part}.yaml").read_text(encoding="utf-8").splitlines()
    named = (line.split()[3] for line in lines if line.startswith("# python -m "))
    return next(named, "").removeprefix("experiments.")


def parts() -> str:
    """One line per config group with its choices, other packages' included; the selected ones are in brackets."""
    chosen: dict[str, list[str | None]] = {}
    for key, choice in reversed(HydraConfig.get().runtime.choices.items()):  # Hydra lists the last one first
        if not key.startswith("hydra/"):
            # Entries such as drafter@drafters.medusa are listed once, as drafter@drafters.NAME.
            chosen.setdefault(re.sub(r"(?<=@drafters)\..*", ".NAME", key), []).append(choice)
    if not chosen:
        return ""
    width = max(map(len, chosen)) + 2
    lines = ["Parts, set by PART=CHOICE; the default choice is in brackets:"]
    for key, its in chosen.items():
        options = GlobalHydra.instance().config_loader().get_group_options(key.split("@")[0])
        listed = ", ".join(f"[{option}]" if option in its else option for option in options)
        indent = " " * (width + 2)
        lines += textwrap.wrap(f"  {key:{width}}{listed}", WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines) + "\n"
