"""docs/adding_a_drafter.md, followed literally in an empty folder elsewhere; and what a wrong drafter is told."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.results.records import load_records
from framework.conformance.tiny_models import save_tiny

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "adding_a_drafter.md").read_text(encoding="utf-8")
# Blocks in their order: a file is one that has its path on the line before.
BLOCKS = re.findall(r"(?:^`([\w./]+)`\n\n)?^```(\w+)\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)


def shell(command: str, folder: Path) -> subprocess.CompletedProcess:
    """Run it as somebody in that folder would who has this repository's environment."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),  # as if it were installed
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        ["bash", "-ec", command], capture_output=True, text=True, cwd=folder, env=environment, timeout=1800
    )


def follow(folder: Path, *, commands: bool) -> list[str]:
    """Write the document's files and run its commands, in its order; returns what each command printed."""
    printed = []
    for path, language, text in BLOCKS:
        if path:
            (folder / path).write_text(text, encoding="utf-8")
        elif commands or text.startswith("mkdir"):
            assert language == "bash", text
            done = shell(text, folder)
            assert done.returncode == 0, text + done.stdout + done.stderr
            printed.append(done.stdout)
    return printed


def test_the_blocks_are_files_or_commands():
    assert len(BLOCKS) == DOCUMENT.count("```") / 2
    assert len([path for path, _, _ in BLOCKS if path]) == 13
    assert all(path or language == "bash" for path, language, _ in BLOCKS)


@pytest.mark.slow
def test_following_the_document_gives_a_row_in_the_comparison(tmp_path):
    printed = "".join(follow(tmp_path, commands=True))
    assert "Recent: " in printed and "Plausible: " in printed and "1 passed" in printed and "BROKEN" not in printed
    assert "Successor: " in printed and "it learnt in between" in printed
    assert "Halving: " in printed and "CsvColumn: " in printed
    (table,) = (tmp_path / "outputs" / "compare").glob("*/table.md")
    rows = re.findall(r"^\| (\w+) \| (\w+) \|", table.read_text(), re.MULTILINE)
    assert rows.count(("recent", "speculative_sampling")) == 2  # at both temperatures
    assert {"small_transformer", "medusa", "layer_skip", "ngram", "prompt_lookup"} <= {drafter for drafter, _ in rows}
    records = [record for record in load_records(tmp_path) if record.point["drafter"] == "recent"]
    assert all(record.metrics["alpha/check"] for record in records)
    (lossy,) = [record.point for record in records if record.study != "compare"]
    assert (lossy["verifier"], lossy["gamma_policy"], lossy["prompts"]) == ("plausible", "halving", "csv_column")


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """The document's package, and a tiny target beside it."""
    folder = tmp_path_factory.mktemp("elsewhere")
    follow(folder, commands=False)
    save_tiny(folder / "target", vocabulary=30, seed=1)
    return folder


def check(package: Path, *overrides: str) -> subprocess.CompletedProcess:
    tiny = "target=pretrained target.path=target target.dtype=float32 device=cpu"
    return shell(f"python -m experiments.check {tiny} {' '.join(overrides)}", package)


@pytest.mark.slow
def test_a_biased_version_fails_and_is_told_its_bias(package):
    """A drafter that says q and chooses its mode; without the plugin, by Hydra's own word for another folder."""
    biased = (package / "mydrafters" / "recent.py").read_text().replace("draw(q, uniforms)", "q.argmax(2)")
    theirs = package / "theirs"
    (theirs / "conf" / "drafter").mkdir(parents=True)
    for folder in (theirs, theirs / "conf"):
        (folder / "__init__.py").touch()
    (theirs / "recent.py").write_text(biased)
    yaml = (package / "mydrafters" / "conf" / "drafter" / "recent.yaml").read_text()
    (theirs / "conf" / "drafter" / "biased.yaml").write_text(yaml.replace("mydrafters.", "theirs."))
    done = check(package, "drafter=biased", "'hydra.searchpath=[pkg://theirs.conf]'")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN  tokens are drawn from the probs that are reported" in done.stdout
    assert "a greedy, filtered or re-ranked token" in done.stdout


@pytest.mark.slow
def test_a_name_that_is_not_there_lists_what_is(package):
    done = check(package, "drafter=resent")
    assert done.returncode == 1
    assert done.stderr.startswith("OverrideError: drafter is 'resent'; did you mean recent? allowed: corpus_unigram, ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_wrong_option_is_one_line(package):
    done = check(package, "drafter=recent", "drafter.window=0")
    *loading, line = done.stderr.splitlines()
    assert done.returncode == 1 and len(loading) < 2
    assert line == "OptionError: drafter.window is 0; allowed: a whole number >= 1"
