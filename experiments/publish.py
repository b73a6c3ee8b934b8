"""Show records: in W&B or another tracker, in the terminal, as a page and as pictures."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.before_after import NOTE, before_and_after, changes_cells, changes_table, unpaired_notes
from experiments.cells import markdown
from experiments.entry_point import status
from experiments.page.render import write_page
from experiments.pictures import draw_pictures
from experiments.records import Record, group_records, located_records
from experiments.report import comparison_table, markdown_table
from framework.tracker import Point, Tracker, TrainingTracker, tracked

PAGE = "report.html"


def mirror(records: Sequence[Record], tracker: Tracker, *, folder: Path) -> None:
    """Replay finished records to a tracker that was not told yet: nothing of it runs while anything is timed.

    The files on disk are complete by then; a tracker that fails costs a warning, not a measurement.

    Args:
        folder: holds the folder of each of the points.
    """
    for record in records:
        point = Point(
            folder=folder,
            name=record["name"],
            study=record["study"],
            settings=record["point"],
            config=record["config"],
        )
        if tracker.was_told(point):
            continue
        with _only_warned_of(tracker, point.name), tracked(tracker, point):
            for row in record["prompts"]:
                tracker.log_prompt(row)
            tracker.finish(record)


def mirror_untold(folder: Path, tracker: Tracker) -> None:
    """Replay what a tracker was not told of the records below a folder, as after a kill, or where there was none."""
    for path, record in located_records(folder).items():
        if path.parent.name == record["name"]:  # else it is what W&B was told, and lies there
            mirror([record], tracker, folder=path.parents[1])


def mirror_training(folder: Path, facts: dict[str, Any], tracker: TrainingTracker, *, study: str) -> None:
    """Tell a tracker of the drafter that was trained in this folder; it lies there whole, whatever becomes of this."""
    with _only_warned_of(tracker, folder.name):
        tracker.log_training(folder, facts, study=study)


@contextmanager
def _only_warned_of(tracker: object, name: str) -> Iterator[None]:
    """Make what a tracker raises one line."""
    try:
        with status(f"telling {type(tracker).__name__} of {name}"):
            yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        Console(stderr=True).print(
            f"{type(tracker).__name__} did not take {name}, whose files are complete; "
            f"tracker=jsonl does without it. {reason}",
            style="yellow",
            markup=False,  # an error's brackets are no styles
            soft_wrap=True,
        )


def print_report(
    records: Sequence[Record], folder: Path, *, source: str | None = None, against: Sequence[Record] | None = None
) -> None:
    """Print the comparison, save it in a folder, and say where everything is.

    Without a record there is nothing to say.

    Args:
        source: where the records are, if not in the folder: another one, or what names a W&B project.
        against: earlier records; what changed since then is told, too.
    """
    if not records:
        return
    # Without a terminal rich assumes 80 columns, too few for the table.
    console, folder = Console(width=None if sys.stdout.isatty() else 160), relative(folder)
    records = [record for group in group_records(records) for record in group.records]  # one order, whatever came first
    console.print(comparison_table(records, width=console.width))
    changes = None if against is None else before_and_after(against, records)
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown_table(records)
    if changes:
        console.print()
        console.print(changes_table(changes))
        text += "\n" + "\n\n".join([markdown(changes_cells(changes)), NOTE, *unpaired_notes(changes)]) + "\n"
    (folder / "table.md").write_text(text, encoding="utf-8")
    write_page(records, folder / PAGE, changes=changes)
    pictures = draw_pictures(records, folder)
    records_at, python = relative(Path(source)) if source else folder, relative(Path(sys.executable))
    console.print()
    console.print(f"Records: {records_at}", soft_wrap=True)
    console.print(f"Page: {folder / PAGE}  (open it in a browser)", soft_wrap=True)
    console.print(f"table.md and {len(pictures)} pictures: {folder}", soft_wrap=True)
    for runs in ("wandb/offline-run-*", "*/wandb/offline-run-*"):  # a sweep's lie with its points
        if any(not list(run.glob("*.wandb.synced")) for run in folder.glob(runs)):
            console.print(f"Offline W&B runs, to be sent with: wandb sync {folder}/{runs}", soft_wrap=True)
    console.print(
        f"Next: {python} -m experiments.measure drafter=ngram drafter.order=5   (one point)\n"
        f"      {python} -m experiments.measure -m study=gamma                  (a sweep)\n"
        f"      {python} -m experiments.compare records={records_at}   (this table again)",
        soft_wrap=True,
        highlight=False,
    )


def relative(folder: Path) -> Path:
    """The path as a person would type it from here."""
    relative = Path(os.path.relpath(folder))
    return folder.absolute() if ".." in relative.parts else relative
