"""Tables of projected speedups, of break-even batches and of the validation, as cells and as numbers for CSV."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.projection.hardware import Hardware
from experiments.projection.model_size import ModelSize
from experiments.projection.speedups import MOST_ROWS, Decoding, Projection
from experiments.projection.validation import Comparison
from experiments.reporting.tables.text_table import Cells

COLUMNS = [
    "hardware", "batch", "context", "memory GB", "t(1) ms", "bound by", "attention", "γ", "τ", "c", "v",
    "Thm 3.8", "speedup", "without overlap", "tokens/s",
]  # fmt: skip
NO_ROOM = "no room"


@dataclass(frozen=True)
class Projected:
    """The same projection with reading and arithmetic at the same time, and one after the other."""

    overlapping: Projection
    successive: Projection


def projection_cells(projected: Sequence[Projected]) -> Cells:
    """A row per projection; without room in memory, no speedup is shown."""
    rows = [COLUMNS]
    for both in projected:
        each, row = both.overlapping, numbers(both)
        gains = [
            f"{each.theorem:.2f}", f"{each.speedup:.2f}", f"{both.successive.speedup:.2f} at γ {both.successive.gamma}",
            f"{each.tokens_per_second:,.0f}",
        ]  # fmt: skip
        rows.append([
            row["hardware"], str(each.batch), str(each.context), f"{row['gigabytes']:.3g}",
            f"{each.one_row_ms:.3g}", each.bound, f"{each.attention_share:.0%}", str(each.gamma), f"{each.tau:.2f}",
            f"{each.c:.3f}", f"{each.v:.2f}", *(gains if each.fits else ["", NO_ROOM, "", ""]),
        ])  # fmt: skip
    return rows


def numbers(projected: Projected) -> dict[str, Any]:
    """Values of a projection by name."""
    projection, successive = projected.overlapping, projected.successive
    decoding = projection.decoding
    names = ("batch", "context", "one_row_ms", "bound", "attention_share", "gamma", "tau", "c", "d", "v", "theorem")
    return {
        "acceptance": decoding.acceptance.name,
        "hardware": decoding.roofline.hardware.name,
        "target": decoding.target.name,
        "draft_model": decoding.draft_model.name if decoding.draft_model else "",
        "dtype": decoding.roofline.dtype,
        "gigabytes": decoding.needed_gigabytes(batch=projection.batch, context=projection.context),
        "fits": projection.fits,
        **{name: getattr(projection, name) for name in names},
        "speedup": projection.speedup,
        "tokens_per_second": projection.tokens_per_second,
        "gamma_without_overlap": successive.gamma,
        "speedup_without_overlap": successive.speedup,
    }


def break_even_rows(pairs: Sequence[tuple[Decoding, Decoding]], contexts: Sequence[int]) -> list[dict[str, Any]]:
    """Break-even batches and the largest one that fits into memory, by hardware, target and context.

    Args:
        pairs: each decoding with and without overlap of reading and arithmetic.
        contexts: tokens per row.
    """
    return [
        {
            "acceptance": overlapping.acceptance.name,
            "hardware": overlapping.roofline.hardware.name,
            "target": overlapping.target.name,
            "context": context,
            "break_even_batch": overlapping.break_even_batch(context),
            "break_even_batch_without_overlap": successive.break_even_batch(context),
            "largest_batch": overlapping.largest_batch(context),
        }
        for overlapping, successive in pairs
        for context in contexts
    ]


def break_even_cells(rows: Sequence[dict[str, Any]]) -> Cells:
    """Break-even batches of one target, and the largest batch that fits: three columns per context."""
    contexts = list(dict.fromkeys(row["context"] for row in rows))
    head = [f"{context}: {name}" for context in contexts for name in ("without overlap", "with overlap", "fits")]
    cells: dict[str, list[str]] = {}
    for row in rows:
        batches = [row["break_even_batch_without_overlap"], row["break_even_batch"]]
        shown = [f"> {MOST_ROWS}" if batch is None else str(batch) for batch in batches]
        cells.setdefault(row["hardware"], []).extend([*shown, str(row["largest_batch"])])
    return [["hardware", *head], *([name, *values] for name, values in cells.items())]


def validation_cells(comparisons: Sequence[Comparison]) -> Cells:
    """A row per measured pass."""
    rows = [["model", "pass", "measured ms", "roofline ms", "error", "without overlap ms", "error", "bound by"]]
    for each in comparisons:
        rows.append([
            each.model, f"t({each.tokens})", f"{each.measured_ms:.2f}", f"{each.overlapping_ms:.2f}",
            f"{each.overlapping_error:+.0%}", f"{each.successive_ms:.2f}", f"{each.successive_error:+.0%}", each.bound,
        ])  # fmt: skip
    return rows


def source_lines(described: Iterable[Hardware | ModelSize]) -> list[str]:
    """A line per GPU, CPU or model: where its figures are stated, and those that could not be read there."""
    return [
        f"{each.name}: {each.source}" + (f"; unverified: {', '.join(each.unverified)}" if each.unverified else "")
        for each in described
    ]


def write_csv(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write rows with equal keys."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
