"""Publish records: to W&B or another tracker, in the terminal, as a page and as pictures."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.config.cli_errors import relative, status
from experiments.reporting.overview import overview_of
from experiments.reporting.tables.comparison_table import comparison_table, markdown_table
from experiments.reporting.tables.text_table import markdown
from experiments.results.record import Record
from experiments.results.record_diff import (
    NOTE,
    RecordDiff,
    changes_cells,
    changes_table,
    diff_notes,
    diff_records,
)
from experiments.results.records import group_records, located_records
from experiments.tracking.tracker import Overview, OverviewTracker, Point, Tracker, TrainingTracker, tracked
from experiments.tracking.wandb_sending import command_for_unsent

PAGE = "report.html"


def mirror(records: Sequence[Record], tracker: Tracker, *, folder: Path) -> None:
    """Send finished records to a tracker that lacks them, so that no tracking runs during timing.

    The files on disk are already complete; an error of the tracker is only printed as a warning.

    Args:
        records: records of finished points.
        tracker: destination; points that it has finished are skipped.
        folder: parent of the points' folders.
    """
    for record in records:
        point = Point(
            folder=folder,
            name=record.name,
            study=record.study,
            settings=record.point,
            config=record.config,
            models=record.models,
        )
        if tracker.has_finished(point):
            continue
        with _only_warned_of(tracker, point.name), tracked(tracker, point):
            for row in record.prompts:
                tracker.log_prompt(row)
            tracker.finish(record.to_json())


def mirror_missing(folder: Path, tracker: Tracker) -> None:
    """Send records below a folder that the tracker lacks, after a kill or a run without a tracker."""
    for path, record in located_records(folder).items():
        if path.parent.name == record.name:  # otherwise it is the copy in a W&B run
            mirror([record], tracker, folder=path.parents[1])


def mirror_overview(overview: Overview, tracker: OverviewTracker) -> None:
    """Log an overview of several points to a tracker that lacks it; an error is only printed as a warning."""
    if len(overview.points) < 2:
        return  # the point's own run holds everything
    with _only_warned_of(tracker, "the overview"):
        if not tracker.has_overview(overview):
            tracker.log_overview(overview)


def mirror_training(folder: Path, facts: dict[str, Any], tracker: TrainingTracker, *, study: str) -> None:
    """Log the trained drafter in a folder to a tracker; an error of the tracker is only printed as a warning."""
    with _only_warned_of(tracker, folder.name):
        tracker.log_training(folder, facts, study=study)


@contextmanager
def _only_warned_of(tracker: object, name: str) -> Iterator[None]:
    """Context manager that prints an exception of a tracker as a one-line warning."""
    try:
        with status(f"sending {name} to {type(tracker).__name__}"):
            yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        Console(stderr=True).print(
            f"{type(tracker).__name__} failed to log {name}, whose files on disk are complete; "
            f"set tracker=jsonl to run without it. {reason}",
            style="yellow",
            markup=False,  # errors may contain brackets
            soft_wrap=True,
        )


def print_report(
    records: Sequence[Record],
    folder: Path,
    *,
    source: str | None = None,
    compare_to: Sequence[Record] | None = None,
    tracker: OverviewTracker | None = None,
) -> None:
    """Print the comparison, save it with page and pictures in a folder, log these to a tracker, and print the paths.

    Without records, nothing is printed or written.

    Args:
        records: records to compare.
        folder: output folder; created if it does not exist.
        source: location of the records, if not the folder: another folder, or the name of a W&B project.
        compare_to: earlier records; the changes since are printed and saved as well.
        tracker: destination of the overview; None: the report is not logged.
    """
    if not records:
        return

    # Without a terminal rich assumes 80 columns, too few for the table.
    console, folder = Console(width=None if sys.stdout.isatty() else 160), relative(folder)
    records = [record for group in group_records(records) for record in group.records]  # independent of input order
    console.print(comparison_table(records, width=console.width))
    changes = None if compare_to is None else diff_records(compare_to, records)
    if changes:
        console.print()
        console.print(changes_table(changes))
    pictures = write_report(records, folder, changes)
    records_at, python = relative(Path(source)) if source else folder, relative(Path(sys.executable))
    if tracker is not None:
        mirror_overview(overview_of(records, records_at, page=folder / PAGE, pictures=pictures), tracker)
    console.print()
    console.print(f"Records: {records_at}", soft_wrap=True)
    console.print(f"Page: {folder / PAGE}  (open it in a browser)", soft_wrap=True)
    console.print(f"table.md and {len(pictures)} pictures: {folder}", soft_wrap=True)
    if sends := command_for_unsent(records_at):
        console.print(f"To send offline W&B runs: {sends}", soft_wrap=True, markup=False, highlight=False)
    following = [
        f"Next: {python} -m experiments.measure drafter=ngram drafter.order=5   (one point)",
        f"      {python} -m experiments.measure -m study=gamma                  (a sweep)",
    ]
    if not source:
        records_option = shlex.quote(f"records={records_at}")
        following.append(f"      {python} -m experiments.compare {records_option}   (this table again)")
    console.print("\n".join(following), soft_wrap=True, highlight=False)


def write_report(records: Sequence[Record], folder: Path, changes: RecordDiff | None = None) -> list[Path]:
    """Write table.md, the page and the pictures to a folder, which is created if it does not exist.

    Returns:
        the files of the pictures.
    """
    from experiments.reporting.page.render import write_page  # with matplotlib, which takes seconds
    from experiments.reporting.plots.pictures import draw_pictures

    folder.mkdir(parents=True, exist_ok=True)
    text = markdown_table(records)
    if changes:
        text += "\n" + "\n\n".join([markdown(changes_cells(changes)), NOTE, *diff_notes(changes)]) + "\n"
    (folder / "table.md").write_text(text, encoding="utf-8")
    write_page(records, folder / PAGE, changes=changes)
    return draw_pictures(records, folder)
