"""Retired names occur only in the tables of renamed keys."""

import io
import re
import tokenize
from pathlib import Path

import pytest
import yaml

from experiments.reporting.page.points import MEANINGS
from experiments.reporting.tables.comparison_table import COLUMNS

REPOSITORY = Path(__file__).parents[1]
TABLES = {
    "experiments/config/moved_modules.py",
    "experiments/config/renamed_options.py",
    "experiments/results/renamed_keys.py",
}
OTHER_LANGUAGES = ("experiments/corpora/", "experiments/zoo/")
CODE = [
    path
    for folder in ("framework", "drafters", "experiments", "hydra_plugins")
    for path in sorted((REPOSITORY / folder).rglob("*.py"))
    if (name := path.relative_to(REPOSITORY).as_posix()) not in TABLES and not name.startswith(OTHER_LANGUAGES)
]
YAMLS = sorted((REPOSITORY / "conf").rglob("*.yaml"))
PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]

PARTS = {"law", "laws", "yardstick", "knob", "knobs", "twin", "twins", "told", "lesson", "lessons"}  # of any identifier
NAMES = {
    "Additive", "Alone", "BestExpectedSpeed", "Fitting", "GrowingChain", "GrowingTree", "Judgement", "Kept",
    "Contender", "Contest", "LessonsUnderway", "Parallel", "ParallelLayer", "ParallelTraining", "Parts", "Pooled",
    "PositionsAtOnce", "ProvingGround", "Seen", "ShallowLayer", "Subject", "Teachable", "TokenTexts", "RewrittenText",
    "attainable", "attainable_speedup", "computed_once", "first_tokens", "judge", "keep_drafting", "kept_by_process",
    "later_turns", "learning_undone", "learnt", "may_stray", "refusal", "relearn", "shared_tokens", "standard_rule",
    "start_peer", "too_long", "turns_down", "turns_of_levels", "turns_of_siblings", "unpruned", "was_told",
}  # fmt: skip
MODULES = {
    "additive", "assemble", "before_after", "best_expected_speed", "cells", "channel", "coarse_law", "computed_once",
    "dialogues", "drawn_tokens", "entry_point", "fitted_part", "fitting", "growing_chain", "growing_tree", "in_turn",
    "kept", "knobs", "leftover", "measurement", "over_time", "packing", "parallel", "peer", "pooled",
    "positions_at_once", "proving_ground", "random_tables", "reference_model", "refusal", "rewritten_text", "rig",
    "shallow_layer", "shared_tokens", "skipped_model", "standard", "studies", "token_texts", "twins", "whole_numbers",
}  # fmt: skip
YAML_KEYS = {"against", "every", "first_tokens", "later_turns", "laws", "over", "too_long", "unpruned"}
METRICS = re.compile(r"speedup/(attainable|theorem)\b|yardstick")
COLUMN_NAMES = {"attainable", "spread", "theorem 3.8"}
PROSE = re.compile(r"\b(laws?|yardsticks?|knobs?|lessons?|twins?|told(?! apart))\b", re.IGNORECASE)


def named(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def tokens_of(path: Path) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline))


def is_old(identifier: str) -> bool:
    return identifier in NAMES or bool(PARTS & set(identifier.lower().split("_")))


def test_no_identifier_bears_an_old_name() -> None:
    found = [
        f"{named(path)}:{token.start[0]}: {token.string}"
        for path in CODE
        for token in tokens_of(path)
        if token.type == tokenize.NAME and is_old(token.string)
    ]
    assert not found, "\n".join(found)


def test_no_module_bears_an_old_name() -> None:
    assert not [named(path) for path in [*CODE, *YAMLS] if path.stem in MODULES]


def test_no_yaml_key_bears_an_old_name() -> None:
    def keys(node: object) -> set[str]:
        if isinstance(node, dict):
            return {str(key) for key in node} | {key for value in node.values() for key in keys(value)}
        return {key for value in node for key in keys(value)} if isinstance(node, list) else set()

    found = {named(path): old for path in YAMLS if (old := keys(yaml.safe_load(path.read_text())) & YAML_KEYS)}
    assert not found


def test_no_metric_and_no_column_bears_an_old_name() -> None:
    found = [named(path) for path in [*CODE, *YAMLS, *PAGES] if METRICS.search(path.read_text(encoding="utf-8"))]
    assert not found
    headings = {column.name for column in COLUMNS} | set(MEANINGS)
    assert not headings & COLUMN_NAMES


@pytest.mark.parametrize("path", [*CODE, *YAMLS, *PAGES], ids=named)
def test_prose_uses_the_fields_words(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        pieces = [t for t in tokens_of(path) if t.type in (tokenize.COMMENT, tokenize.STRING)]
        said = [f"{t.start[0]}: {line.strip()}" for t in pieces for line in t.string.splitlines() if PROSE.search(line)]
    else:
        said = [f"{number}: {line}" for number, line in enumerate(text.splitlines(), 1) if PROSE.search(line)]
    assert not said, "\n".join(said)


@pytest.mark.parametrize("identifier", ["law", "stop_law", "_knobs", "YARDSTICK", "was_told", "Subject"])
def test_old_names_are_seen(identifier: str) -> None:
    assert is_old(identifier)


@pytest.mark.parametrize("identifier", ["lawn", "lower", "outlaw", "baseline", "Subjects", "toldness", "probs"])
def test_other_names_pass(identifier: str) -> None:
    assert not is_old(identifier)
