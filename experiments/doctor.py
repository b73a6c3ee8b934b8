"""Find the conventions that a drafter was trained for: `python -m experiments.doctor drafter.path=FOLDER`."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("doctor")
    raise SystemExit

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.config.builders import (
    build,
    build_prompts,
    build_stopping,
    build_target,
    build_with_target,
    check_basics,
    check_tree,
)
from experiments.config.cli_errors import one_line_errors, status
from experiments.config.command import command
from experiments.config.option_checks import check_kind
from experiments.diagnosis.conventions import (
    Setting,
    Variations,
    dflash_variations,
    eagle_variations,
    medusa_variations,
    mtp_variations,
    read_setting,
)
from experiments.diagnosis.positions import Positions, measure
from experiments.diagnosis.verdict import GIVEN, Findings, examine, in_words, setting_name
from experiments.reporting.tables.text_table import Cells, shown
from framework.core.option_error import OptionError, options_under
from framework.core.validation import check_whole
from framework.heads.medusa_heads import FILES as MEDUSA_FILES
from framework.heads.published_files import PublishedFiles, is_published, open_published
from framework.models.encoder_decoder import num_decoder_layers
from framework.models.target import Target
from framework.prompts.prompt_set import PromptSet

VARIATIONS: dict[str, Variations] = {
    "medusa": medusa_variations,
    "eagle": eagle_variations,
    "eagle_tree": eagle_variations,
    "eagle3": eagle_variations,
    "peagle": eagle_variations,
    "dflash": dflash_variations,
    "mtp": mtp_variations,
}
WIDTH = 120  # characters of the table without a terminal, for which rich assumes 80
OPTIONS = ("layer_numbers", "chained")  # options that state a convention


@command("doctor")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was written"):
        name = str(HydraConfig.get().runtime.choices["drafter"])
        check(cfg, name)
        files, given = open_drafter(cfg, name)
        with status("loading the target"):
            target = build_target(cfg)
        prompts = build_prompts(cfg, target)
        with status("measuring") as doing:

            def measured(setting: Setting) -> Positions:
                doing.update(f"measuring: {setting_name(setting)}")
                return measure_setting(setting, prompts, cfg, target, files=files, given=given)

            findings = examine(given, VARIATIONS[name], num_decoder_layers(target.model.model), measured)
        Console(width=None if sys.stdout.isatty() else WIDTH).print(
            shown(table(findings, gamma=cfg.max_gamma), title="Settings, the most accepted tokens first")
        )
        print("\n".join(in_words(findings)))
        if cfg.out is not None and files is not None:
            print(write_best(findings.best, Path(str(cfg.out)).expanduser(), files, given=given))
        with status("measuring with and without the chat template"):
            lines = compare_chat(findings, cfg, target, files=files, given=given)
        print("\n".join(lines), end="\n" if lines else "")
        if not findings.fits_as_given:
            sys.exit(1)


def check(cfg: DictConfig, name: str) -> None:
    """
    Raises:
        ValueError: an option is wrong, or the drafter has no conventions to try; no model is loaded.
    """
    if name not in VARIATIONS:
        raise OptionError("drafter", name, ", ".join(VARIATIONS), "which reads no published files")
    check_basics(cfg, {"batch_size": 1, "max_gamma": 1}, or_null=("prompts.max_prompt_tokens", "target.context"))
    check_whole("prompts.count", cfg.prompts.count, least=2, most=10**6, or_null=True)  # units of the intervals
    check_whole("max_new_tokens", cfg.max_new_tokens, least=cfg.max_gamma + 1, most=10**6)
    check_kind("out", cfg.out, [str, type(None)])
    if cfg.out is not None and (out := Path(cfg.out).expanduser()).exists() and (out.is_file() or any(out.iterdir())):
        raise OptionError("out", cfg.out, "a new or empty folder, or null", "which exists")
    build(cfg.prompts.source), build(cfg.drafter)


def open_drafter(cfg: DictConfig, name: str) -> tuple[PublishedFiles | None, Setting]:
    """The checkpoint and its setting; None: only options are changed (a target's own layer, or heads trained here)."""
    options = {key: cfg.drafter[key] for key in OPTIONS if key in cfg.drafter}
    if name == "mtp" or not is_published(cfg.drafter.path, own=MEDUSA_FILES):
        if cfg.out is not None:
            raise OptionError("out", cfg.out, "null for layers of the target and for heads trained here")
        return None, Setting(config={}, tensors={}, options=options)
    with options_under("drafter"):
        files = open_published(cfg.drafter.path)
        return files, read_setting(files, options)


def measure_setting(
    setting: Setting,
    prompts: PromptSet,
    cfg: DictConfig,
    target: Target,
    *,
    files: PublishedFiles | None,
    given: Setting,
) -> Positions:
    """Accuracy at all positions, with the drafter's own code on the changed files.

    Raises:
        OptionError: the drafter's reader refuses the files.
    """
    cfg = cfg.copy()
    OmegaConf.update(cfg, "drafter", dict(setting.options))
    with TemporaryDirectory() as folder:
        if files is not None and setting is not given:
            setting.save(Path(folder), files, given=given, link=True)
            OmegaConf.update(cfg, "drafter.path", folder)
        drafter = build_with_target(build(cfg.drafter), cfg.drafter, target)
    check_tree(drafter, cfg.max_gamma, target.model.context)
    tokens, stopping = [list(prompt.tokens) for prompt in prompts.prompts], build_stopping(cfg, target)
    return measure(drafter, target, tokens, stopping=stopping, gamma=cfg.max_gamma, batch_size=cfg.batch_size)


def table(findings: Findings, *, gamma: int) -> Cells:
    """All settings, the most accepted tokens first, with their differences from the best one."""
    best = findings.of(findings.best)
    cells = [["setting", "first token", f"accepted of {gamma}", "difference"]]
    for setting, positions in findings.ranked():
        ahead = positions.ahead_of(best, comparisons=findings.comparisons)
        difference = "best" if setting is findings.best else str(ahead)
        cells.append([setting_name(setting), f"{positions.accuracy:.1%}", f"{positions.accepted:.2f}", difference])
    for names, reason in findings.refused.items():
        cells.append(["; ".join(names) or GIVEN, "–", "–", f"refused: {reason}"])
    return cells


def uses_chat(cfg: DictConfig) -> bool:
    """Whether the prompts are turns of a chat, for a tokenizer with a template."""
    return cfg.prompts.chat is not False


def compare_chat(
    findings: Findings, cfg: DictConfig, target: Target, *, files: PublishedFiles | None, given: Setting
) -> list[str]:
    """The line about the chat template, with which and without which the best setting is measured; []: none."""
    if not target.tokenizer.chat_template:
        return []
    own, is_chat, cfg = findings.of(findings.best), uses_chat(cfg), cfg.copy()
    OmegaConf.update(cfg, "prompts", {"chat": not is_chat, "system": None})
    try:
        other = measure_setting(findings.best, build_prompts(cfg, target), cfg, target, files=files, given=given)
    except ValueError as error:  # prompts without a template may be too long with it
        return [f"Chat template: not compared, since {error}"]
    ahead = other.apart_from(own)
    with_, without = (own, other) if is_chat else (other, own)
    shares = f"{with_.accuracy:.1%} with the chat template, {without.accuracy:.1%} without"
    if ahead.low <= 0 <= ahead.high:
        return [f"Chat template: no clear difference ({shares}; the texts differ)."]
    better = str(is_chat is (ahead.high < 0)).lower()
    return [f"Chat template: prompts.chat={better} is better ({shares}; the texts differ, so it is a hint)."]


def write_best(best: Setting, folder: Path, files: PublishedFiles, *, given: Setting) -> str:
    """Write the files of the best setting, unless it is the given one; return the line about it."""
    if best is given:
        return "Nothing is written: the files are right as they are."
    best.save(folder, files, given=given)
    options = [f"drafter.{key}={value}" for key, value in best.options.items() if given.options[key] != value]
    return " ".join([f"Written: {folder}", *(["to be read with", *options] if options else [])])
