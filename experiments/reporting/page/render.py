"""Render records as one self-contained HTML page: no network, no server, no other file."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from experiments.reporting.page.bar_charts import round_panels, speedup_panels
from experiments.reporting.page.changes import change_rows
from experiments.reporting.page.line_charts import alpha_panels, sweep_views
from experiments.reporting.page.points import Point, headings, points_of, table_rows
from experiments.reporting.page.tokens import token_view
from experiments.reporting.plots.picture_style import look_of
from experiments.reporting.plots.pictures import STAGE_COLOURS, stages_per_round
from experiments.reporting.tables.comparison_table import table_notes
from experiments.reporting.tables.fastest import PLAIN, Entry, fastest
from experiments.reporting.tables.text_table import ALARM
from experiments.reporting.token_colours import page_rules
from experiments.results.acceptance import alpha_by_category, categories
from experiments.results.model_names import drafters_of, target_of
from experiments.results.record import Record
from experiments.results.record_diff import NOTE, STAR, RecordDiff, diff_notes
from experiments.results.records import Group, group_records
from framework.metrics.producer import MEANINGS

HERE = Path(__file__).parent
MOST_HIGHLIGHTS = 6  # with more groups, the page has no highlights
MOST_NAMED = 4  # values listed per fact


def write_page(records: Sequence[Record], path: Path, *, changes: RecordDiff | None = None) -> None:
    """Write the page of records, and of their changes since earlier records.

    Args:
        records: at least one; missing values are left out or shown as a dash.
        path: the HTML file to write.
        changes: comparison of earlier records with these; None: no such section.
    """
    # Lone surrogates, from a broken prompt, become question marks.
    path.write_text(_html(records, changes), encoding="utf-8", errors="replace")


def _html(records: Sequence[Record], changes: RecordDiff | None) -> str:
    groups = group_records(records)
    points = points_of(groups)
    tokens = token_view(points)
    notes, changes_notes = table_notes(records), [] if changes is None else diff_notes(changes)
    seen = {stage for record in records for stage in stages_per_round(record)}
    return _template().render(
        style=Markup((HERE / "page.css").read_text(encoding="utf-8") + page_rules()),
        script=Markup((HERE / "page.js").read_text(encoding="utf-8")),
        facts=_facts(records),
        highlights=_highlights(groups, points) if len(groups) <= MOST_HIGHLIGHTS else [],
        alarms=[note.removeprefix(ALARM).strip() for note in notes + changes_notes if note.startswith(ALARM)],
        notes=[note for note in notes if not note.startswith(ALARM)],
        groups=[group.title for group in groups],
        drafters={name: look_of(name) for name in sorted({point.drafter for point in points})},
        num_points=len(points),
        headings=headings(groups),
        rows=table_rows(groups),
        sweeps=sweep_views(records),
        speedups=speedup_panels(points),
        rounds=round_panels(points),
        stages={stage: colour for stage, colour in STAGE_COLOURS.items() if stage in seen},
        alphas=alpha_panels(points),
        categories=categories(records),
        by_category=_by_category(points),
        tokens=tokens,
        producers=MEANINGS,
        tokens_json=_json([tokens.points, MEANINGS, tokens.prompts]),
        changes=None if changes is None else change_rows(changes),
        changes_notes=[NOTE.removesuffix(STAR), *(note for note in changes_notes if not note.startswith(ALARM))],
    )


@cache
def _template() -> Template:
    loader = FileSystemLoader(HERE)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html")


def _json(value: Any) -> Markup:
    """JSON that is safe inside a script element."""
    return Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))


def _facts(records: Sequence[Record]) -> dict[str, str]:
    """Header of the page: distinct values of study, target, prompts, machine and so on."""
    shown: dict[str, Any] = {
        "study": [record.study for record in records],
        "target": [target_of(record) for record in records],
        "prompts": [_prompts(record) for record in records],
        "new tokens": [record.point.get("max_new_tokens") for record in records],
        "machine": [_machine(record) for record in records],
        "commit": [str(record.commit or "")[:8] for record in records],
        "measured": [str(record.started or "")[:10] for record in records],
    }
    facts = {}
    for name, values in shown.items():
        known = list(dict.fromkeys(str(value) for value in values if value not in (None, "")))
        if known:
            more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
            facts[name] = ", ".join(known[:MOST_NAMED]) + more
    drafters = "; ".join(f"{drafter} {words}" for drafter, words in drafters_of(records).items())
    return facts | ({"draft models": drafters} if drafters else {})


def _prompts(record: Record) -> str:
    number, name = record.counts.get("prompts"), record.point.get("prompts")
    return " ".join(str(shown) for shown in (number, name) if shown)


def _machine(record: Record) -> str:
    machine = record.machine or {}
    where = machine.get("processor") if machine.get("device") in ("cpu", None) else machine.get("device")
    cores = f"{machine['cores']} cores" if machine.get("cores") and machine.get("device") == "cpu" else ""
    return ", ".join(str(shown) for shown in (where, cores) if shown)


def _highlights(groups: Sequence[Group], points: Sequence[Point]) -> list[tuple[str, Point, str]]:
    """Per group: its title, its fastest lossless point, and a remark if it is not clearly faster than all others."""
    found: dict[str, Point] = {}
    for point in points:
        if point.metric("speedup/measured") is not None and not point.is_lossy:
            found.setdefault(point.group, point)
    remarks = {group.title: _remark(*result) for group in groups if (result := fastest(group))}
    return [(title, point, remarks.get(title, "")) for title, point in found.items()]


def _remark(first: Entry, overlapping: Sequence[Entry]) -> str:
    if overlapping:
        return "not clearly the fastest"
    return "slower than plain decoding" if first.name == PLAIN else ""


def _by_category(points: Sequence[Point]) -> list[tuple[Point, dict[str, float]]]:
    found = [(point, alpha_by_category(point.record)) for point in points]
    return [(point, alphas) for point, alphas in found if alphas]
