"""Comparison table of measured points, for a terminal and as Markdown."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.reporting.tables.fastest import fastest_line
from experiments.reporting.tables.text_table import ALARM, Cells
from experiments.results.model_names import model_lines
from experiments.results.record import Record
from experiments.results.records import Group, group_records, is_lossy

MISSING = "–"
LOSSY = "≠ LOSSY"
SLOWER = 0.97  # ratio below which a time is lower than noise explains
LEAST_OVER_PARTS = 0.9  # ratio of a loop's time to that of its parts; below, the parts were mistimed
STEADY = 1.3  # repeats whose speedups differ by more than this factor were disturbed
MOST_EFFICIENT = 1.1  # efficiency above which the difference to plain decoding's overhead is no explanation
REPETITIVE = 0.5  # share of distinct 4-grams below which an output is mostly loops
CHECKED = "✓"


@dataclass(frozen=True)
class Column:
    """A column: heading, cell of a record, and rank in which a narrow terminal drops it."""

    heading: str
    cell: Callable[[Record], str]
    expendable: int = 0  # 0: never dropped; the largest is dropped first

    @property
    def name(self) -> str:
        """The heading in one line: without hyphens at line ends, except non-breaking ones."""
        return self.heading.replace("-\n", "").replace("\N{NON-BREAKING HYPHEN}\n", "-").replace("\n", " ")


def _metric(key: str, digits: int) -> Callable[[Record], str]:
    return lambda record: _number(record.metrics.get(key), digits)


def _number(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"


def _interval(key: str, digits: int) -> Callable[[Record], str]:
    """Cell with the 95% interval of alpha, tau or speedup."""

    def cell(record: Record) -> str:
        low, high = (record.metrics.get(f"{key}/ci_{end}") for end in ("low", "high"))
        return MISSING if low is None or high is None else f"{low:.{digits}f}–{high:.{digits}f}"

    return cell


def guarantee(record: Record) -> str:
    """Guarantee of the rule, with a tick if `check` passed for the drafter."""
    if is_lossy(record):
        return LOSSY
    promised = str(record.point.get("guarantee", MISSING))
    return f"{promised} {CHECKED}" if record.metrics.get("guarantee/checked") else promised


def _gamma(record: Record) -> str:
    gamma, policy = record.point.get("gamma"), record.point.get("gamma_policy")
    shown = MISSING if gamma is None else str(gamma)
    if policy == "auto":
        return f"{_number(record.metrics.get('gamma/chosen'), 1)} auto"
    return shown if policy in (None, "fixed") else f"≤{shown} {policy}"


def _alpha_fails(record: Record) -> bool:
    return record.metrics.get("alpha/check") is False


def _empirical(record: Record) -> str:
    shown = _number(record.metrics.get("alpha/empirical"), 3)
    return f"{ALARM} {shown}" if _alpha_fails(record) else shown


def _repeats(record: Record) -> tuple[float | None, float | None]:
    """Speedups of the slowest and the fastest repeat; None for both if there is only one repeat."""
    low, high = record.metrics.get("speedup/measured_low"), record.metrics.get("speedup/measured_high")
    return (None, None) if low == high else (low, high)


def _unsteady(record: Record) -> bool:
    low, high = _repeats(record)
    return low is not None and high is not None and high > STEADY * low


def _min_max(record: Record) -> str:
    low, high = _repeats(record)
    shown = MISSING if low is None or high is None else f"{low:.2f}–{high:.2f}"
    return f"{ALARM} {shown}" if _unsteady(record) else shown


def _faster_than_its_parts(record: Record) -> bool:
    """Whether the loop took less time than its parts, which indicates a timing error."""
    ratio = record.metrics.get("time_over_parts")
    return ratio is not None and ratio < LEAST_OVER_PARTS


def _too_efficient(record: Record) -> bool:
    """Whether the efficiency indicates a timing error.

    An efficiency slightly above 1 is none: the loop of plain decoding may have more overhead relative to its parts.
    """
    return (record.metrics.get("efficiency") or 0) > MOST_EFFICIENT


def efficiency(record: Record) -> str:
    """Measured ÷ zero-overhead speedup, with an alarm if it was mistimed."""
    share = record.metrics.get("efficiency")
    shown = MISSING if share is None else f"{share:.0%}"
    return f"{ALARM} {shown}" if _faster_than_its_parts(record) or _too_efficient(record) else shown


def _is_repetitive(record: Record) -> bool:
    share = record.metrics.get("distinct_4grams")
    return share is not None and share < REPETITIVE


def _distinct(record: Record) -> str:
    shown = _number(record.metrics.get("distinct_4grams"), 2)
    return f"{ALARM} {shown}" if _is_repetitive(record) else shown


def _compiled_while_timed(record: Record) -> bool:
    return bool(record.metrics.get("graphs/while_timed"))


def _is_without_cuda_graphs(record: Record) -> bool:
    return bool(record.metrics.get("graphs/not_captured"))


def _measured(record: Record) -> str:
    shown = _number(record.metrics.get("speedup/measured"), 2)
    return f"{ALARM} {shown}" if _compiled_while_timed(record) or _is_without_cuda_graphs(record) else shown


def is_clearly_faster(record: Record) -> bool:
    """Whether every repeat, and the 95% interval where known, is faster than plain decoding."""
    lows = (record.metrics.get("speedup/measured_low"), record.metrics.get("speedup/ci_low", math.inf))
    return all(low is not None and low > 1 for low in lows)


def _unequal_to(record: Record) -> list[str]:
    named = {"tokens_equal_baseline": "the baseline", "tokens_equal_hf": "HF generate"}
    return [name for key, name in named.items() if record.metrics.get(key) is False]


def _tokens_equal(record: Record) -> str:
    if _unequal_to(record):
        return f"{ALARM} NO"
    return "yes" if record.metrics.get("tokens_equal_baseline") else MISSING


VERIFIER = Column("verifier", lambda record: str(record.point.get("verifier", MISSING)))
GUARANTEE = Column("guaran-\ntee", guarantee)
GAMMA = Column("γ", _gamma)
MEASURED = Column("measured\nspeedup", _measured)
MS_PER_TOKEN = Column("ms per\ntoken", _metric("ms_per_token", 2))
EXPERTS = Column("experts\ntouched", _metric("experts/touched", 1))
SERVING = (  # only where requests arrive
    Column("good-\nput", _metric("serving/goodput", 2)),
    Column("pre-\ndicted\ngood-\nput", _metric("serving/predicted/goodput", 2), 5),
    Column("plain\ngood-\nput", _metric("serving/baseline/goodput", 2), 2),
    Column("la-\ntency\np99", _metric("serving/latency_p99", 2), 4),
)
COLUMNS = (
    GAMMA,
    GUARANTEE,
    Column("α\noverlap", _metric("alpha/overlap", 3)),
    Column("α em-\npirical", _empirical, 7),
    Column("95% of α", _interval("alpha", 2), 11),
    Column("τ", _metric("tau", 2)),
    Column("95% of τ", _interval("tau", 2), 10),
    Column("τ by\nEq. 1", _metric("tau/eq1", 2), 9),
    Column("c", _metric("c", 3), 8),
    Column("pre-\ndicted\n(Thm\n3.8)", _metric("speedup/predicted", 2), 5),
    Column("zero\N{NON-BREAKING HYPHEN}\nover-\nhead\nspeedup", _metric("speedup/zero_overhead", 2), 3),
    MEASURED,
    Column("95% of\nspeedup", _interval("speedup", 2), 4),
    Column("min–max", _min_max, 6),
    Column("end to\nend", _metric("speedup/end_to_end", 2), 12),
    Column("effi-\nciency", efficiency, 2),
    MS_PER_TOKEN,
    Column("distinct\n4-grams", _distinct, 1),
    Column("opera-\ntions", _metric("operations/counted", 2), 14),
    Column("opera-\ntions\n(Thm\n3.11)", _metric("operations", 2), 13),
    Column("tokens\nequal", _tokens_equal),
)


def _columns(records: Sequence[Record]) -> list[Column]:
    """Columns to show: the verifier only if it differs, experts and requests only where they are measured."""
    verifiers = {record.point.get("verifier") for record in records}
    return [
        *([VERIFIER] if len(verifiers) > 1 else []),
        *COLUMNS,
        *(SERVING if _any_has(records, "serving/goodput") else []),
        *([EXPERTS] if _any_has(records, "experts/touched") else []),
    ]


def _any_has(records: Sequence[Record], metric: str) -> bool:
    """Whether any record has the metric."""
    return any(metric in record.metrics for record in records)


def baselines(group: Group) -> list[tuple[str, dict[Column, str]]]:
    """Last rows of a group: plain decoding and Hugging Face generate, as medians over the group's points."""
    baseline = _median(group, "baseline_ms_per_token")
    rows = []
    for label, key in (("baseline", "baseline_ms_per_token"), ("HF generate", "hf_generate_ms_per_token")):
        milliseconds = _median(group, key)
        if milliseconds is not None:
            speed = _number(baseline / milliseconds if baseline and milliseconds else None, 2)
            rows.append((label, {MEASURED: speed, MS_PER_TOKEN: _number(milliseconds, 2)}))
    return rows


def _median(group: Group, key: str) -> float | None:
    values = [record.metrics[key] for record in group.records if record.metrics.get(key) is not None]
    return statistics.median(values) if values else None


def _alarms(records: Sequence[Record], groups: Sequence[Group]) -> list[str]:
    """Notes that name failed checks."""

    def named(fails: Callable[[Record], Any]) -> str:
        return ", ".join(str(record.name) for record in records if fails(record))

    notes = []
    if names := named(_alpha_fails):
        notes.append(
            f"{ALARM} α CHECK FAILED: accepted tokens are more than 4σ from the number expected from the "
            f"distributions: {names}"
        )
    for record in records:
        if others := _unequal_to(record):
            notes.append(f"{ALARM} TOKENS DIFFER at temperature 0: {record.name} from {' and '.join(others)}")
    if names := named(_faster_than_its_parts):
        notes.append(f"{ALARM} FASTER THAN ITS PARTS: the parts were mistimed, or the machine was busy: {names}")
    if names := named(_too_efficient):
        notes.append(
            f"{ALARM} EFFICIENCY ABOVE {MOST_EFFICIENT:.0%}: the parts were mistimed, or the machine was busy: {names}"
        )
    if names := named(_unsteady):
        notes.append(f"{ALARM} UNSTEADY: repeats differ by more than {STEADY - 1:.0%}; the machine was busy: {names}")
    if names := named(_compiled_while_timed):
        notes.append(f"{ALARM} COMPILED WHILE TIMED: graphs were made in timed runs, here or in the baseline: {names}")
    if names := named(_is_without_cuda_graphs):
        notes.append(
            f"{ALARM} WITHOUT CUDA GRAPHS: some compiled graphs were not captured, so that their kernels are launched "
            f"one by one: {names}"
        )
    loops = [group.title for group in groups if any(map(_is_repetitive, group.records))]
    if loops:
        notes.append(
            f"{ALARM} REPETITIVE OUTPUT: less than {REPETITIVE:.0%} of its 4-grams are distinct, which overstates the "
            f"speedup on other texts, most of all that of drafters that copy: {'; '.join(loops)}"
        )
    slow = [
        group.title
        for group in groups
        if (_median(group, "hf_generate_ms_per_token") or math.inf)
        < SLOWER * (_median(group, "baseline_ms_per_token") or 0)
    ]
    if slow:
        notes.append(
            f"{ALARM} SLOW BASELINE: Hugging Face is faster, so every speedup is overstated: {', '.join(slow)}"
        )
    return notes


def _gammas_chosen(group: Group) -> list[str]:
    """Lines on gamma=auto: the shares of rounds by chosen gamma, and the drafters for which drafting never pays."""
    shares, idle = [], []
    for name, record in zip(row_names(group), group.records, strict=True):
        passes = record.rounds_histogram.get("gamma", [])
        total = sum(passes)
        if not total or record.point.get("gamma_policy") != "auto":
            continue
        if passes[0] == total:
            idle.append(name)
        else:
            chosen = ", ".join(f"{gamma} {count / total:.0%}" for gamma, count in enumerate(passes) if count)
            shares.append(f"{name} {chosen} (without a draft {record.metrics['undrafted']:.0%})")
    lines = [f"{group.title}: share of rounds by chosen γ: {'; '.join(shares)}."] if shares else []
    if idle:
        lines.append(f"{group.title}: nothing is drafted, since no draft pays by its round times: {', '.join(idle)}.")
    return lines


def table_notes(records: Sequence[Record]) -> list[str]:
    """Notes below the table: failed checks, the fastest points, then the meaning of the columns."""
    groups = group_records(records)
    notes = _alarms(records, groups) + [line for group in groups if (line := fastest_line(group))]
    notes += [line for group in groups for line in _gammas_chosen(group)]
    if any(is_lossy(record) for record in records):
        notes.append(
            f"{LOSSY}: the output does not follow the target's distribution; its speed alone is not comparable."
        )
    notes.append(
        "Speedups are relative to the baseline (plain decoding, same prompts, interleaved); min–max: over the repeats; "
        "95%: intervals over prompts like these (bootstrap). α: over tested tokens. τ: tokens per target pass, next to "
        "the value of Eq. 1 for α. c: time of a draft step in target steps. zero-overhead speedup: τ ÷ (d + v), for a "
        "loop without overhead. efficiency: measured ÷ zero-overhead speedup, each loop relative to its own parts. "
        "distinct 4-grams: their share of the 4-grams of an output, mean over the prompts. operations: arithmetic "
        "operations per token, relative to plain decoding, counted and by Theorem 3.11."
    )
    if any(CHECKED in guarantee(record) for record in records):
        notes.append(f"{CHECKED}: `check` passed for this version of the drafter; elsewhere, the rule's promise alone.")
    elif not all(map(is_lossy, records)):
        notes.append("guarantee: the rule's promise, for drafters that keep their contract; `check` tests that.")
    if _any_has(records, "serving/goodput"):
        notes.append(
            "goodput: requests per second that end within arrivals.latency_bound of their arrival; predicted: from the "
            "parts of a round; plain: of plain decoding. latency p99: seconds within which 99% of the requests end."
        )
    if _any_has(records, "experts/touched"):
        notes.append("experts touched: distinct experts per layer in a target pass, mean over layers and passes.")
    return notes


def comparison_table(records: Sequence[Record], width: int = 120) -> Table:
    """Table with one row per point, grouped by temperature, fastest first, baselines last.

    Args:
        records: result of load_records; a metric that is missing or None is shown as a dash.
        width: characters per line of the terminal; a table that does not fit drops columns.
    """
    wanted = _columns(records)
    columns = list(wanted)
    table = _table(records, columns)
    measure = Console(width=10_000).measure
    while measure(table).maximum > width and any(column.expendable for column in columns):
        columns.remove(max(columns, key=lambda column: column.expendable))
        table = _table(records, columns)
    dropped = [column.name for column in wanted if column not in columns]
    lines = table_notes(records) + ([f"Columns dropped for lack of width: {', '.join(dropped)}."] if dropped else [])
    notes = Text("\n" + "\n".join(lines), style="dim", justify="left")
    notes.highlight_regex(rf"(?m)^{ALARM}.*$", "not dim bold red")
    table.caption = notes
    return table


def _table(records: Sequence[Record], columns: Sequence[Column]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0, title_justify="left", caption_justify="left")
    if lines := model_lines(records):
        table.title = Text("\n".join(lines), style="not italic")
    table.add_column("drafter", overflow="fold", min_width=12)
    for column in columns:
        if column is VERIFIER:
            table.add_column(column.heading, overflow="fold", min_width=12)
        else:
            table.add_column(column.heading, justify="left" if column is GUARANTEE else "right", no_wrap=True)
    for group in group_records(records):
        table.add_row(Text(group.title, style="bold"))
        for name, record in zip(row_names(group), group.records, strict=True):
            table.add_row(Text(name), *(_styled(column, record) for column in columns))  # Text: brackets are no markup
        for name, cells in baselines(group):
            table.add_row(name, *(cells.get(column, "") for column in columns), style="dim")
        table.add_section()
    return table


def row_names(group: Group) -> list[str]:
    """Names of rows: the drafter if the columns verifier and gamma make it unique, else the full label."""
    line = ("drafter", "verifier", "gamma_policy", "gamma")
    rows = [tuple(record.point.get(key) for key in line) for record in group.records]
    return [
        str(record.point.get("drafter")) if rows.count(row) == 1 else label
        for row, record, label in zip(rows, group.records, group.labels, strict=True)
    ]


def _styled(column: Column, record: Record) -> Text:
    cell = column.cell(record)
    style = ""
    if ALARM in cell:
        style = "bold red"
    elif cell == LOSSY:
        style = "bold yellow"
    elif column is MEASURED and is_clearly_faster(record):
        style = "bold green"
    return Text(cell, style=style)


def markdown_table(records: Sequence[Record]) -> str:
    """The comparison with all columns as GitHub Markdown: one table per group, then the notes."""
    rule = ["---", *(":--" if column in (VERIFIER, GUARANTEE) else "--:" for column in _columns(records))]
    parts = []
    for title, (heading, *rows) in tables_of_groups(records):
        lines = [
            "| " + " | ".join(_one_line(cell).replace("|", "\\|") for cell in row) + " |"
            for row in (heading, rule, *rows)
        ]
        parts.append("\n".join([f"**{_one_line(title)}**", "", *lines]))
    return "\n\n".join([*map(_one_line, model_lines(records)), *parts, *map(_one_line, table_notes(records))]) + "\n"


def tables_of_groups(records: Sequence[Record]) -> list[tuple[str, Cells]]:
    """Title and cells of each group, with all columns, heading first."""
    columns = _columns(records)
    tables = []
    for group in group_records(records):
        rows = [["drafter", *(column.name for column in columns)]]
        for name, record in zip(row_names(group), group.records, strict=True):
            rows.append([name, *(column.cell(record) for column in columns)])
        for name, cells in baselines(group):
            rows.append([name, *(cells.get(column, "") for column in columns)])
        tables.append((group.title, rows))
    return tables


def _one_line(text: str) -> str:
    return " ".join(text.split())
