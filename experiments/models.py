"""Write docs/models.md, the list of served and refused architectures: `python -m experiments.models`."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("models")
    raise SystemExit

from collections.abc import Iterable
from pathlib import Path
from textwrap import shorten

import torch
from omegaconf import DictConfig
from transformers import __version__
from transformers.utils import logging

from experiments.config.cli_errors import announce, one_line_errors
from experiments.config.command import command
from experiments.proof.architectures import CONTEXT, TABLE, WINDOW, Architecture
from experiments.proof.model_matrix import Result, examine

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
HEAD = ("family", "configuration", "outcome", "attention", "layer_skip", "notes")
LONGEST = 120  # characters of a cell


@command("models")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was written"):
        table = chosen(cfg.only)
        torch.set_num_threads(cfg.threads)
        logging.set_verbosity_error()  # transformers warns of sizes this small
        results = [_examined(architecture) for architecture in table]
        if cfg.page is not None:
            Path(cfg.page).write_text(page(results), encoding="utf-8")


def chosen(only: Iterable[str] | None) -> list[Architecture]:
    """Return the configurations of the given model types; None: the whole table.

    Raises:
        ValueError: a model type that is not in the table.
    """
    if only is None:
        return list(TABLE)
    known = {architecture.model_type for architecture in TABLE}
    if unknown := sorted(set(only) - known):
        raise ValueError(f"only holds {unknown[0]!r}; allowed: {', '.join(sorted(known))}")
    return [architecture for architecture in TABLE if architecture.model_type in set(only)]


def _examined(architecture: Architecture) -> Result:
    result = examine(architecture)
    announce(f"{result.outcome:13} {architecture.name}")
    for trial, difference in result.wrong.items():
        announce(f"    {trial}: {difference}")
    return result


def page(results: list[Result]) -> str:
    """Text of docs/models.md, from the results of the whole table."""
    served = [result for result in results if result.outcome == "served"]
    families = {result.architecture.family for result in served}
    return "\n".join(
        [
            "# Models",
            "",
            f"{len(served)} of {len(results)} tested configurations, in {len(families)} families, are served. "
            "`python -m experiments.models` writes this page. It builds each configuration of transformers "
            f"{__version__} with random weights: two to four layers, {CONTEXT} positions, windows and chunks of "
            f"{WINDOW}. [Getting started](getting_started.md#your-own-models) has the options for models of your own.",
            "",
            "At temperature 0 a served model decodes the same tokens as `generate(do_sample=False)` in its own default "
            "attention, one prompt at a time and in ragged batches of eight: without drafts, with a small model as a "
            "chain and as a tree, with prompt lookup, and with `layer_skip` where the column says yes. Prompts have 1 "
            "to 33 tokens. Rows end at their budget, at one of two end-of-text tokens, or at the context. Any other "
            "model is refused on loading, for the reason in the notes.",
            "",
            "`make test-slow` runs the same matrix. It fails if tokens differ or a line of this page is out of date.",
            "",
            *(_line(cells) for cells in (HEAD, ["---"] * len(HEAD), *map(row, results))),
            "",
        ]
    )


def row(result: Result) -> list[str]:
    """Table cells of a configuration, in the order of HEAD."""
    others = [
        f"{drafter}: {_shortened(reason)}" for drafter, reason in result.refused.items() if drafter != "layer_skip"
    ]
    notes = "; ".join(
        [*([_shortened(result.why_unsupported)] if result.why_unsupported else []), *result.wrong, *others]
    )
    served = result.outcome != "refused"
    return [
        result.architecture.family,
        f"`{result.architecture.model_type}`"
        + (f", {result.architecture.variant}" * bool(result.architecture.variant)),
        result.outcome,
        result.attention,
        ("no" if "layer_skip" in result.refused else "yes") if served else "",
        shorten(notes, LONGEST, placeholder=" …"),
    ]


def line(result: Result) -> str:
    """Table line of a configuration."""
    return _line(row(result))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shortened(reason: str) -> str:
    """Reason without the class name, with pipes and line breaks replaced for a table cell."""
    return " ".join(reason.split("cannot be served: ")[-1].replace("|", "/").split())
