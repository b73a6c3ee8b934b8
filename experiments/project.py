"""Project speedups to other hardware, models, batches and contexts: `python -m experiments.project`."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("project")
    raise SystemExit

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.compare import read_records
from experiments.config.cli_errors import announce, one_line_errors, relative
from experiments.config.command import command
from experiments.config.option_checks import check_kind
from experiments.projection.acceptance import Acceptance
from experiments.projection.hardware import BYTES, Hardware
from experiments.projection.model_size import ModelSize
from experiments.projection.roofline import Roofline
from experiments.projection.speedups import Decoding
from experiments.projection.this_machine import measure_hardware
from experiments.projection.validation import compare_passes, recorded_passes, timed_here
from experiments.reporting.tables.projection_table import (
    Projected,
    break_even_cells,
    break_even_rows,
    numbers,
    projection_cells,
    source_lines,
    validation_cells,
    write_csv,
)
from experiments.reporting.tables.text_table import markdown, shown
from experiments.results.records import group_records
from framework.core.validation import check_whole
from framework.kernels.compiled_graphs import why_not
from framework.models.pretrained import device_named

THIS_MACHINE = "this_machine"
# MiB to read, and rows of the product; a CPU's are several times its cache.
ON_CPU, ON_GPU = {"mebibytes": 256, "product": 1024}, {"mebibytes": 4096, "product": 8192}
BREAK_EVEN = "Smallest batch in which no draft pays, and largest batch that fits, by context"
NOTE = (
    "Projected, not measured, for full batches: speedup is τ ÷ (d + v) at the best γ, with d = γ c and v by the "
    "roofline, where reading and arithmetic overlap; without overlap, one follows the other. γ 0 is plain decoding. "
    "t(1): a target pass over one token per row; attention: its share of it. Measured passes lie between the two "
    "or above both: docs/performance.md."
)


@command("project")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was kept"):
        check_settings(cfg)
        if cfg.threads is not None:
            torch.set_num_threads(cfg.threads)
        folder = Path(HydraConfig.get().runtime.output_dir)
        if cfg.validate is None:
            project(cfg, folder)
        else:
            validate(cfg, folder)


def project(cfg: DictConfig, folder: Path) -> None:
    """Print the projections, and write them with the break-even batches and their plot."""
    from experiments.reporting.plots.break_even_picture import draw_break_even  # matplotlib takes a second

    hardware = [chosen_hardware(cfg, name) for name in cfg.hardware]
    console, pages, projections, limits = _console(), list[str](), [], []
    models = dict[ModelSize, None]()
    for number, acceptance in enumerate(acceptances(cfg)):
        pairs = decodings(cfg, acceptance, hardware)
        for target in dict.fromkeys(pair[0].target for pair in pairs):
            mine = [pair for pair in pairs if pair[0].target == target]
            projected = [
                Projected(*(each.project(batch=batch, context=context) for each in pair))
                for pair in mine
                for context in cfg.contexts
                for batch in cfg.batch_sizes
            ]
            rows = break_even_rows(mine, cfg.contexts)
            models |= dict.fromkeys([target, *([mine[0][0].draft_model] if mine[0][0].draft_model else [])])
            title = f"{_title(mine[0][0])}, {cfg.dtype}"
            for name, cells in ((title, projection_cells(projected)), (BREAK_EVEN, break_even_cells(rows))):
                console.print(shown(cells, title=name))
                pages += [f"**{name}**", markdown(cells)]
            projections += [numbers(each) for each in projected]
            limits += rows
        draw_break_even(pairs, folder / f"break_even{f'_{number}' * bool(number)}.png")
    notes = [NOTE, *source_lines([*hardware, *models])]
    console.print("\n".join(notes), style="dim", markup=False, highlight=False)
    (folder / "projection.md").write_text("\n\n".join([*pages, *notes]) + "\n", encoding="utf-8")
    write_csv(projections, folder / "projection.csv")
    write_csv(limits, folder / "break_even.csv")
    print(f"projection.csv, projection.md, break_even.csv, break_even.png: {relative(folder)}")


def validate(cfg: DictConfig, folder: Path) -> None:
    """Print predicted beside measured times of target passes, and write them."""
    if cfg.validate == "recorded":
        passes, dtype = recorded_passes(), "float32"
        machines = {each.hardware for each in passes}
        hardware = {name: Hardware.read("hardware", name).reaching(**cfg.reached) for name in sorted(machines)}
    else:
        device, dtype = device_named(cfg.device), cfg.dtype
        hardware = {THIS_MACHINE: chosen_hardware(cfg, THIS_MACHINE)}
        passes = []
        for each in recorded_passes():
            announce(f"timing passes of {each.model.name}")
            passes.append(timed_here(each, device, dtype, compiled=cfg.compile))
    comparisons = [
        comparison
        for name, machine in hardware.items()
        for comparison in compare_passes(
            [each for each in passes if cfg.validate == "here" or each.hardware == name],
            machine,
            dtype,
            kernels_per_layer=cfg.kernels_per_layer,
        )
    ]
    cells = validation_cells(comparisons)
    lines = [*(f"{each.model.name}: {each.source}" for each in passes), *source_lines(hardware.values())]
    console = _console()
    console.print(shown(cells, title=f"Predicted and measured times of target passes, {dtype}"))
    console.print("\n".join(lines), style="dim", markup=False, highlight=False)
    (folder / "validation.md").write_text("\n\n".join([markdown(cells), *lines]) + "\n", encoding="utf-8")
    write_csv([dict(zip(_distinct(cells[0]), row, strict=True)) for row in cells[1:]], folder / "validation.csv")
    print(f"validation.csv, validation.md: {relative(folder)}")


def acceptances(cfg: DictConfig) -> list[Acceptance]:
    """The given alpha, or the acceptance of every record that allows it; others are named and left out.

    Raises:
        ValueError: no record allows it, or a model made drafts and none is given.
    """
    if cfg.records is None:
        return [Acceptance(f"α = {cfg.alpha:g}, independent", cfg.alpha, has_draft_model=cfg.draft_model is not None)]
    found = []
    for group in group_records(read_records("records", str(cfg.records))):
        for label, record in zip(group.labels, group.records, strict=True):
            try:
                found.append(Acceptance.of_record(f"{label}, {group.title}", record))
            except ValueError as error:
                announce(f"left out: {error}")
    if not found:
        raise ValueError(f"records is {str(cfg.records)!r}, without chains of a draft model or of copies; set alpha")
    if cfg.draft_model is None and (drafted := next((each for each in found if each.has_draft_model), None)):
        raise ValueError(
            f"draft_model is null, and a model made the drafts of {drafted.name}; allowed: a model's sizes"
        )
    return found


def decodings(cfg: DictConfig, acceptance: Acceptance, hardware: Sequence[Hardware]) -> list[tuple[Decoding, Decoding]]:
    """Every hardware with every target, with and without overlap of reading and arithmetic."""
    sizes = {"dtype": cfg.dtype, "weight_bits": cfg.weight_bits, "kernels_per_layer": cfg.kernels_per_layer}
    targets = [ModelSize.chosen("target_models", name) for name in cfg.target_models]
    draft = ModelSize.chosen("draft_model", cfg.draft_model) if acceptance.has_draft_model else None
    found = []
    for target in targets:
        for each in hardware:
            overlapping, successive = (
                Decoding(Roofline(each, **sizes, overlap=overlap), target, draft, acceptance, list(cfg.gammas))
                for overlap in (True, False)
            )
            found.append((overlapping, successive))
    return found


def chosen_hardware(cfg: DictConfig, name: object) -> Hardware:
    """A preset, a yaml, or the figures of this machine, which takes seconds.

    Raises:
        ValueError, OSError: there is no such preset, or it has no rate for the dtype.
    """
    if name == THIS_MACHINE:
        device = device_named(cfg.device)
        announce("timing this machine: memory, products, launches")
        found = measure_hardware(device, cfg.dtype, **(ON_CPU if device.type == "cpu" else ON_GPU))
    else:
        found = Hardware.read("hardware", name)
    found.flops(cfg.dtype)
    return found.reaching(**cfg.reached)


def check_settings(cfg: DictConfig) -> None:
    """
    Raises:
        ValueError: the message names the yaml key.
    """
    for key, least in (("batch_sizes", 1), ("contexts", 1), ("gammas", 0)):
        values = cfg[key] if OmegaConf.is_list(cfg[key]) else [cfg[key]]
        if not values:
            raise ValueError(f"{key} is []; allowed: a list of whole numbers >= {least}")
        for value in values:
            check_whole(key, value, least=least, most=1000 if key == "gammas" else 10**8)
    for key in ("hardware", "target_models"):
        if not OmegaConf.is_list(cfg[key]) or not cfg[key]:
            raise ValueError(f"{key} is {cfg[key]!r}; allowed: a list of at least one name")
    for share, value in cfg.reached.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise ValueError(f"reached.{share} is {value!r}; allowed: a number above 0, at most 1")
    if isinstance(cfg.alpha, bool) or not isinstance(cfg.alpha, int | float) or not 0 <= cfg.alpha <= 1:
        raise ValueError(f"alpha is {cfg.alpha!r}; allowed: a number from 0 to 1")
    if cfg.dtype not in BYTES:
        raise ValueError(f"dtype is {cfg.dtype!r}; allowed: {', '.join(BYTES)}")
    if cfg.validate not in (None, "recorded", "here"):
        raise ValueError(f"validate is {cfg.validate!r}; allowed: null, recorded, here")
    check_whole("weight_bits", cfg.weight_bits, least=1, most=32, or_null=True)
    check_whole("kernels_per_layer", cfg.kernels_per_layer, least=0, most=1000)
    check_whole("threads", cfg.threads, least=1, most=4096, or_null=True)
    check_kind("compile", cfg.compile, [bool])
    if cfg.compile and (reason := why_not(device_named(cfg.device))):
        raise ValueError(f"compile is true, but {reason}; or set compile=false")


def _title(decoding: Decoding) -> str:
    """Names of the models and of the acceptance."""
    drafts = f"drafts of {decoding.draft_model.name}" if decoding.draft_model else "copied drafts"
    return f"{decoding.target.name}, {drafts}, {decoding.acceptance.name}"


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 160)


def _distinct(names: Sequence[str]) -> list[str]:
    """Column names, with the one before it in front of a repeated one."""
    return [f"{names[at - 1]}, {name}" if name in names[:at] else name for at, name in enumerate(names)]
