"""Tables for the terminal and for Markdown documents, from rows of strings, heading first."""

from rich.table import Table
from rich.text import Text

ALARM = "‼"  # begins cells and notes that report a failed check
Cells = list[list[str]]


def shown(cells: Cells, *, title: str, caption: str | None = None) -> Table:
    """Table for the terminal."""
    table = Table(*cells[0], title=title, caption=caption)
    for row in cells[1:]:
        table.add_row(*map(Text, row))  # Text: brackets are not markup
    return table


def markdown(cells: Cells) -> str:
    """Table as GitHub Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    lines.insert(1, "|---" * len(cells[0]) + "|")
    return "\n".join(lines) + "\n"
