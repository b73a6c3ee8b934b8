"""The pages: tables hold short cells, links and anchors lead somewhere, commands and their settings exist."""

import ast
import re
import shlex
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from hydra import compose

from drafters.prompt_lookup import PromptLookup
from experiments.config.override_checks import check_overrides, hydra_apart
from experiments.config.resolvers import register_resolvers

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LONGEST_CELL = 160

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def prose(text: str) -> str:
    """A page without its fenced code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def tables(text: str) -> list[list[list[str]]]:
    """The cells of every row of every table."""
    found = re.findall(r"(?:^\|.*\n?)+", prose(text), re.MULTILINE)
    return [
        [[cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip()[1:-1])] for row in table.splitlines()]
        for table in found
    ]


def links(text: str) -> list[str]:
    without_code = re.sub(r"`[^`]*`", "", prose(text))
    found = re.findall(r"\]\(([^)\s]+)\)", without_code)
    return [link for link in found if not link.startswith(("http://", "https://"))]


def anchors(text: str) -> set[str]:
    """Of its headings, as GitHub and the site's generator make them."""
    counts: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return found


def commands(text: str) -> list[str]:
    """Every `python -m experiments.NAME ...` of code blocks and inline code, placeholders included."""
    joined = text.replace("\\\n", " ")
    block = re.findall(r"^(?: {4})?(?:python|\.venv/bin/python) (-m .*experiments\..*)$", joined, re.MULTILINE)
    inline = re.findall(r"`(?:python|\.venv/bin/python) (-m experiments\.[^`]*)`", joined.replace("\n", " "))
    return block + inline


@pages
def test_cells_of_tables_are_short_and_rows_complete(page: Path) -> None:
    for head, *rows in tables(page.read_text(encoding="utf-8")):
        assert [row for row in rows if len(row) != len(head)] == []
        assert [cell for row in (head, *rows) for cell in row if len(cell) > LONGEST_CELL] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs" / "tour.ipynb"], ids=lambda page: page.name)
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    for link in links(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT) and target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


def test_the_readers_see_what_there_is() -> None:
    text = "# A `b`\n\n## Two, words\n\n| a | b |\n|---|---|\n| `x` | [y](z.md#q) \\| |\n\n```text\n| no | row |\n```\n"
    assert tables(text) == [[["a", "b"], ["---", "---"], ["`x`", "[y](z.md#q) \\|"]]]
    assert links(text) == ["z.md#q"] and anchors(text) == {"a-b", "two-words"}
    assert sum(len(tables(page.read_text(encoding="utf-8"))) for page in PAGES) > 40
    assert sum(len(links(page.read_text(encoding="utf-8"))) for page in PAGES) > 80


def test_the_readme_is_a_landing_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 120
    linked = {link.partition("#")[0] for link in links(readme)}
    assert {f"docs/{page.name}" for page in PAGES[3:]} - linked == {"docs/rules.md"}  # linked from others


def docstrings(path: Path) -> list[str]:
    """Those of a module, with the strings below its assignments."""
    statements = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Expr)]
    values = [node.value.value for node in statements if isinstance(node.value, ast.Constant)]
    return [value for value in values if isinstance(value, str)]


def faults_of_a_docstring(text: str) -> list[str]:
    """What the API reference would take for a link, or for two parameters in one."""
    outside_code = re.sub(r"`[^`]*`", "", text)
    parameters = re.split(r"\b(?:Raises|Returns):", text.partition("Args:")[2])[0]
    return re.findall(r"\]\[.*", outside_code) + re.findall(r"^ +\w+, \w+: .*", parameters, re.MULTILINE)


def test_docstrings_are_fit_for_the_reference() -> None:
    assert faults_of_a_docstring("[K][R] how often") and faults_of_a_docstring(
        "A.\n\n    Args:\n        a, b: of it.\n"
    )
    assert faults_of_a_docstring("`[K][R]`: how often [n, T].\n\n    Args:\n        a: of it, b: too.\n") == []
    for folder in ("framework", "drafters"):
        for path in (ROOT / folder).rglob("*.py"):
            assert [fault for text in docstrings(path) for fault in faults_of_a_docstring(text)] == [], path


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"^ +- .*: ([\w.]+)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    pages = {page.name for page in PAGES[1:]} | {"index.md", "tour.ipynb"}
    assert listed == pages


# Pages with Python code, each with the test that runs it.
RUN_BY = {
    "README.md": "tests/e2e/test_readme.py",
    "CONTRIBUTING.md": "tests/e2e/test_pages.py",
    "adding_a_drafter.md": "tests/e2e/test_adding_a_drafter.py",
    "python_api.md": "tests/experiments/test_python_api.py",
}


def python_of(page: Path) -> list[str]:
    """Blocks of Python, fenced or indented."""
    text = page.read_text(encoding="utf-8")
    fenced = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^\n((?: {4}.*\n|\n)+)", prose(text), re.MULTILINE)
    return fenced + [block for block in map(textwrap.dedent, indented) if re.match(r"\n*(from|import) ", block)]


def test_all_python_of_pages_is_run_by_a_test() -> None:
    assert {page.name for page in PAGES if python_of(page)} == set(RUN_BY)
    for page, test in RUN_BY.items():
        assert page in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_check_in_contributing_runs() -> None:
    (block,) = python_of(ROOT / "CONTRIBUTING.md")
    namespace: dict = {"Yours": lambda target, width: PromptLookup(target, max_ngram=width, min_ngram=1, match="last")}
    exec(block, namespace)
    namespace["test_it_keeps_the_contract"]()


def config_and_overrides(command: str) -> tuple[str, tuple[str, ...]]:
    """The yaml that a command reads, and what it changes there; of a sweep its first point."""
    words = shlex.split(command, comments=True)
    start = next(i for i, word in enumerate(words) if word.startswith("experiments."))
    source = ROOT.joinpath(*words[start].split(".")).with_suffix(".py").read_text(encoding="utf-8")
    found = re.search(r'(?:config_name=|@command\()"(\w+)"', source)
    assert found, command
    config, overrides = found[1], []
    for word in words[start + 1 :]:
        key, equals, value = word.partition("=")
        if key == "--config-name":
            config = value
        elif equals and not key.startswith("hydra"):
            first = value if value.startswith(("[", "{", "$")) else value.split(",")[0]
            overrides.append(f"{key}='{value}'" if key == "prompt" else key + equals + first)
        elif key.startswith("~"):
            overrides.append(key)
    return config, tuple(overrides)


# The parts that pages build; tests/e2e/test_adding_a_drafter.py runs their commands.
BUILT_THERE = ("=echo", "=recent", "=successor", "=plausible", "=halving", "=csv_column", "=yours", "=NAME")


def points() -> set[tuple[str, tuple[str, ...]]]:
    named = {command for page in PAGES for command in commands(page.read_text(encoding="utf-8"))}
    found = {config_and_overrides(command) for command in named if "experiments.NAME" not in command}
    return {
        (config, overrides)
        for config, overrides in found
        if not any(
            re.search(r"^\+?(drafter|verifier|gamma|prompts)\b", each) and each.endswith(BUILT_THERE)
            for each in overrides
        )
    }


def test_every_command_is_there() -> None:
    assert len(points()) > 60
    for config, _ in points():
        assert (ROOT / "conf" / f"{config}.yaml").exists()


@pytest.mark.slow
def test_every_command_takes_its_settings() -> None:
    """Every key is in a yaml, and every choice has one."""
    register_resolvers()
    for config, overrides in sorted(points()):
        written_out = check_overrides(config, overrides, is_sweep=True)
        with hydra_apart(config):
            compose(config, written_out)
