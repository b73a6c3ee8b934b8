"""Prove losslessness: `python -m experiments.prove` prints and saves the matrix and the negative controls."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("prove")
    raise SystemExit

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from experiments.config.cli_errors import one_line_errors, status
from experiments.config.command import command
from experiments.config.option_checks import check_kind
from experiments.config.progress import Steps
from experiments.proof.negative_controls import Caught, controls
from experiments.proof.proof_matrix import FALSE_ALARM, Cell, Prover
from framework.conformance.standard_cases import ROUNDING_OF
from framework.conformance.verifier_checks import SAMPLINGS
from framework.core.validation import check_whole

LEAST_SAMPLES = 20_000  # with fewer, most continuations are too rare for a bin of their own
MOST_CONTINUATIONS = 20_000  # counted by a chi-square test


def cell_table(title: str, cells: Sequence[Cell], parts: Sequence[str]) -> Table:
    """Table with a row per combination of `parts` (attributes of a cell) and a column per sampling setting."""
    table = Table(title=title)
    table.caption = (
        "total variation by enumeration, p of the chi-square test over the number of sequences in the header (above "
        "T=0 a tenth of them for rules other than the drafter's default); "
        f"broken: total variation > {ROUNDING_OF[torch.float64]:g}, or p < {FALSE_ALARM:g}"
    )
    settings = [setting for setting in SAMPLINGS if any(cell.sampling == setting for cell in cells)]
    for part in parts:
        table.add_column(part.replace("_", " "))
    for setting in settings:
        samples = max(cell.samples for cell in cells if cell.sampling == setting)
        table.add_column(f"{setting}\n{samples:,}")
    rows: dict[tuple[str, ...], dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault(tuple(getattr(cell, part) for part in parts), {})[cell.sampling] = cell
    for names, by_setting in rows.items():
        table.add_row(*names, *(_words(by_setting[setting]) if setting in by_setting else "" for setting in settings))
    return table


def _words(cell: Cell) -> str:
    if cell.p_value is None:
        return f"lossy {cell.total_variation:.2f}"
    words = f"{cell.total_variation:.0e}  p={cell.p_value:.2g}" + (" idle" if cell.idle else "")
    return words if cell.holds else f"[bold red]BROKEN {words}"


def control_table(found: Sequence[Caught]) -> Table:
    """Table with a row per fault."""
    table = Table(title="Injected faults")
    for column in ("fault", "measured", "without", "with it", ""):
        table.add_column(column)
    for control in found:
        verdict = "seen" if control.holds else "[bold red]NOT SEEN"
        table.add_row(control.fault, control.measure, f"{control.without:.1g}", f"{control.with_fault:.3g}", verdict)
    return table


@command("prove")
def main(cfg: DictConfig) -> None:
    path = Path(HydraConfig.get().runtime.output_dir) / "proof.json"
    with one_line_errors(interrupted=f"the cells so far are in {path}"):
        check_whole("samples", cfg.samples, least=LEAST_SAMPLES, most=10**8)
        check_whole("vocabulary", cfg.vocabulary, least=3, most=MOST_CONTINUATIONS)
        check_whole("max_gamma", cfg.max_gamma, least=1, most=10)
        check_kind("thorough", cfg.thorough, [bool])
        if cfg.vocabulary ** (cfg.max_gamma + 4) > MOST_CONTINUATIONS:
            raise ValueError(
                f"vocabulary is {cfg.vocabulary} and max_gamma {cfg.max_gamma}; allowed: vocabulary to the power of "
                f"max_gamma + 4 at most {MOST_CONTINUATIONS:,}, the number of continuations that a test counts"
            )
        prover = Prover(samples=cfg.samples, vocabulary=cfg.vocabulary, gamma=cfg.max_gamma, thorough=cfg.thorough)
        matrix: list[Cell] = []
        policies: list[Cell] = []
        found: list[Caught] = []
        cases, others = list(prover.matrix()), list(prover.policies())
        with Steps(len(cases) + len(others)) as steps:
            for cells, source in ((matrix, cases), (policies, others)):
                for case in source:
                    steps.update(", ".join(case), completed=len(matrix + policies))
                    cells.append(prover.cell(*case))
                    _save(path, matrix + policies, found)
        with status("injecting faults"):
            found += [Caught.of(control) for control in controls()]
        _save(path, matrix + policies, found)
        console = Console(width=None if sys.stdout.isatty() else 170)
        console.print(cell_table("Drafters and verifiers", matrix, ("drafter", "verifier")))
        console.print(cell_table("Gamma policies", policies, ("drafter", "gamma_policy")))
        console.print(control_table(found))
        parts: list[Cell | Caught] = [*matrix, *policies, *found]
        broken = sum(not part.holds for part in parts)
        exact = sum(cell.exact for cell in matrix + policies)
        lossy = len(matrix + policies) - exact
        console.print(
            f"{path}: {exact} cells that claim to be exact and {len(found)} faults, {broken} of which do not hold; "
            f"{lossy} lossy cells, of which nothing is claimed"
        )
        if broken:
            sys.exit(1)


def _save(path: Path, cells: Sequence[Cell], found: Sequence[Caught]) -> None:
    path.write_text(json.dumps({"cells": list(map(asdict, cells)), "controls": list(map(asdict, found))}, indent=1))
