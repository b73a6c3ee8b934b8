"""Rows of texts, a heading first, as a table for the terminal and for a document."""

from rich.table import Table
from rich.text import Text

Cells = list[list[str]]


def shown(cells: Cells, *, title: str, caption: str | None = None) -> Table:
    """For the terminal."""
    table = Table(*cells[0], title=title, caption=caption)
    for row in cells[1:]:
        table.add_row(*map(Text, row))  # brackets are no styles
    return table


def markdown(cells: Cells) -> str:
    """For a document, in GitHub's Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    lines.insert(1, "|---" * len(cells[0]) + "|")
    return "\n".join(lines) + "\n"
