"""HTML table of prompts with every token coloured by its producer."""

import html
from collections.abc import Sequence
from typing import Any

from experiments.reporting.token_colours import light_look
from framework.metrics.producer import MEANINGS

STYLE = """body{font:13px/1.5 system-ui,sans-serif;color:#1d1d1d;background:#fff;margin:8px}
table{border-collapse:collapse}
th,td{text-align:left;vertical-align:top;padding:4px 10px 4px 0;border-bottom:1px solid #ddd}
td.tokens{font-family:ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}"""


def token_table(rows: Sequence[dict[str, Any]]) -> str:
    """Self-contained HTML page with one line per prompt: name, alpha, tau and tokens.

    Args:
        rows: prompts of a record. Text after the last recorded token is not coloured.
    """
    style = STYLE + "".join(f"\n.{producer}{{{light_look(producer)}}}" for producer in MEANINGS)
    legend = " · ".join(
        f'<span class="{producer}">{producer}</span> {meaning}' for producer, meaning in MEANINGS.items()
    )
    lines = "\n".join(f"<tr>{''.join(_cells(row))}</tr>" for row in rows)
    return (
        f'<!doctype html><meta charset="utf-8"><style>{style}</style><p>{legend}</p>\n'
        f"<table><thead><tr><th>prompt<th>α<th>τ<th>tokens</tr></thead>\n<tbody>{lines}</tbody></table>\n"
    )


def _cells(row: dict[str, Any]) -> list[str]:
    numbers = ["–" if row.get(key) is None else f"{row[key]:.2f}" for key in ("alpha", "tau")]
    cells = [html.escape(str(row.get("name", ""))), *numbers]
    tokens, text = row.get("tokens") or [], str(row.get("text", ""))
    coloured = "".join(token["text"] for token in tokens)
    rest = text[len(coloured) :] if text.startswith(coloured) else ""
    shown = "".join(map(_token, tokens)) + html.escape(rest)
    return [*(f"<td>{cell}</td>" for cell in cells), f'<td class="tokens">{shown}</td>']


def _token(token: dict[str, Any]) -> str:
    """A token, with its probabilities and the drafted token it replaced as a tooltip."""
    hint = ", ".join([token["producer"], *_probabilities(token)])
    if drafted := token.get("instead_of"):
        hint += ", instead of " + ", ".join([repr(drafted["text"]), *_probabilities(drafted)])
    return f'<span class="{token["producer"]}" title="{html.escape(hint)}">{html.escape(token["text"])}</span>'


def _probabilities(token: dict[str, Any]) -> list[str]:
    return [f"{letter} {token[letter]:.3f}" for letter in ("p", "q") if token.get(letter) is not None]
