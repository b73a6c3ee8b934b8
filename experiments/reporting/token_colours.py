"""Colours of tokens by producer, shared by the page, W&B and notebooks."""

from dataclasses import dataclass

from framework.metrics.producer import Producer


@dataclass(frozen=True)
class Colours:
    """Background and edge colours of a token."""

    background: str
    edge: str


INK = "#24262a"  # text colour on light backgrounds
LIGHT: dict[Producer, Colours] = {
    "accepted": Colours("#d3eee4", "#00704f"),
    "replaced": Colours("#fadccb", "#b84c00"),
    "bonus": Colours("#d4e6f7", "#005f9e"),
    "plain": Colours("#ececea", "#74777c"),
}
DARK: dict[Producer, Colours] = {
    "accepted": Colours("#12392d", "#57c9a1"),
    "replaced": Colours("#4a2a14", "#f09a63"),
    "bonus": Colours("#12324b", "#74b7ee"),
    "plain": Colours("#2b2e33", "#9a9ea5"),
}
LINES: dict[Producer, str] = {"replaced": "solid", "bonus": "dotted"}  # a second cue, for colour-blind readers


def light_look(producer: Producer) -> str:
    """Inline style of a token with its own text colour, for an unknown light or dark background."""
    colours = LIGHT[producer]
    return f"color:{INK};background:{colours.background}{_line(producer, colours.edge)}"


def page_rules() -> str:
    """CSS rules for .token and .swatch, with the light and dark colours as variables."""
    rules = []
    for name in LIGHT:
        line = _line(name, f"var(--{name}-edge)")
        rules.append(f".token.{name}, .swatch.{name} {{ background: var(--{name}){line} }}")
    dark = f"@media (prefers-color-scheme: dark) {{ {_variables(DARK)} }}"
    return "\n".join([_variables(LIGHT), dark, *rules, ""])


def _line(producer: Producer, colour: str) -> str:
    return f";border-bottom:2px {LINES[producer]} {colour}" if producer in LINES else ""


def _variables(palette: dict[Producer, Colours]) -> str:
    pairs = [f"--{name}: {colours.background}; --{name}-edge: {colours.edge};" for name, colours in palette.items()]
    return f":root {{ {' '.join(pairs)} }}"
