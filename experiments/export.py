"""Write a trained drafter in a published format: `python -m experiments.export drafter=medusa format=medusa_vllm`."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("export")
    raise SystemExit

import json
import shlex
from collections.abc import Callable
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.config.builders import build_target, check_basics
from experiments.config.cli_errors import one_line_errors, status
from experiments.config.command import command
from experiments.config.option_checks import check_kind, check_options
from framework.core.option_error import OptionError, options_under
from framework.heads.medusa_export import original_medusa, vllm_medusa
from framework.heads.published_dflash import export_dflash_to_speculators
from framework.heads.published_eagle import (
    export_eagle3,
    export_eagle3_to_speculators,
    export_peagle_to_speculators,
)
from framework.heads.published_files import Export

Writer = Callable[..., Export]
"""Puts the drafter at `path`, trained for `target`, into a format.

`name` is the target's folder or hub name; further arguments are the options of READ_WITH in the drafter's yaml.
"""

# Formats, each with its writer for every drafter that it takes.
FORMATS: dict[str, dict[str, Writer]] = {
    "medusa": {"medusa": original_medusa},
    "medusa_vllm": {"medusa": vllm_medusa},
    "eagle3": {"eagle3": export_eagle3},
    "speculators": {
        "eagle3": export_eagle3_to_speculators,
        "peagle": export_peagle_to_speculators,
        "dart": export_peagle_to_speculators,
        "dflash": export_dflash_to_speculators,
    },
}
READ_WITH = ("layer_numbers",)  # options that say, beside path, how a drafter's files are read


@command("export")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="the folder may be incomplete"):
        drafter, out = str(HydraConfig.get().runtime.choices["drafter"]), Path(str(cfg.out)).expanduser()
        writer = writer_of(str(cfg.format), drafter)
        check_kind("out", cfg.out, [str])
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise OptionError("out", cfg.out, "a new or empty folder", "which exists")
        check_basics(cfg, {}, or_null=())
        check_options(cfg.drafter)
        with status("loading the target"):
            target = build_target(cfg)
        with options_under("drafter"):
            options = {key: cfg.drafter[key] for key in READ_WITH if key in cfg.drafter}
            export = writer(cfg.drafter.path, target, name=cfg.target.path, **options)
        export.save(out)
        print("\n".join(in_words(export, out, drafter=drafter, target=cfg.target.path)))


def writer_of(name: str, drafter: str) -> Writer:
    """
    Raises:
        ValueError: the format is unknown, or does not take the drafter.
    """
    if name in FORMATS and drafter in FORMATS[name]:
        return FORMATS[name][drafter]
    allowed = [each for each, writers in FORMATS.items() if drafter in writers]
    if not allowed:
        drafters = sorted({each for writers in FORMATS.values() for each in writers})
        raise OptionError("drafter", drafter, f"{', '.join(drafters)}", "which no format takes")
    raise OptionError("format", name, f"{', '.join(allowed)} with drafter={drafter}")


def in_words(export: Export, out: Path, *, drafter: str, target: str) -> list[str]:
    """Lines about the folder: its contents, and commands that load it here and in vLLM."""
    number = sum(tensor.numel() for tensor in export.tensors.values())
    lines = [
        f"{out}: {len(export.tensors)} tensors with {number / 1e6:.1f}M weights in {export.stem}.safetensors",
        f"Here:  drafter={drafter} drafter.path={out}",
    ]
    if export.speculative_config:
        config = {"model": str(out.absolute()), **export.speculative_config}
        lines.append(f"vLLM:  vllm serve {shlex.quote(target)} --speculative-config {shlex.quote(json.dumps(config))}")
    return lines
