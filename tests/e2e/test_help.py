"""What --help says of every command, and what is said when something is wrong."""

import importlib
import re
import shlex
import subprocess
import sys
import traceback
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments import measure
from experiments.config import cli_errors
from experiments.config.override_checks import check_overrides
from tests.support.slow_cases import mostly_slow

EXPERIMENTS = Path(cli_errors.__file__).parents[1]
CONF = EXPERIMENTS.parent / "conf"
COMMANDS = sorted(path.stem for path in EXPERIMENTS.glob("*.py") if "@command(" in path.read_text())
EXAMPLE = re.compile(r"python -m experiments\.(\w+)(.*)")


@cache
def help_of(command: str, *arguments: str) -> str:
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setattr(sys, "argv", [command, "--help", *arguments])
        with pytest.raises(SystemExit) as stopped:
            importlib.import_module(f"experiments.{command}").main()
    assert not stopped.value.code
    return printed.getvalue()


def test_all_commands_are_looked_at():
    assert {"measure", "compare", "benchmark", "prove", "check", "train", "search_layers", "make_pair",
            "make_language_models", "make_zoo", "compare_rules", "generate"} <= set(COMMANDS)  # fmt: skip


@pytest.mark.parametrize("command", mostly_slow(COMMANDS, fast=["measure"]))
def test_help_is_short_and_has_what_a_command_is_its_examples_and_its_parts(command):
    text = help_of(command)
    lines = text.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 135, text
    assert lines[0] == (CONF / f"{command}.yaml").read_text().splitlines()[0].removeprefix("# ")
    assert 2 <= sum(bool(EXAMPLE.search(line)) for line in lines) <= 4, text
    groups = {group for group in re.findall(r"^  - (?:optional )?([\w@]+)", defaults_of(command), re.MULTILINE)
              if (CONF / group.split("@")[0]).is_dir()}  # fmt: skip
    listed = set(re.findall(r"^  ([\w@]+)(?:\.NAME)?  ", text, re.MULTILINE))
    assert listed == groups, text
    for group in groups:
        for path in (CONF / group.split("@")[0]).glob("*.yaml"):
            assert re.search(rf"\b{path.stem}\b", text), path


def defaults_of(command: str) -> str:
    found = re.search(r"^defaults:\n((?:  - .*\n)*)", (CONF / f"{command}.yaml").read_text(), re.MULTILINE)
    assert found
    return found[1]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_of_a_help_text_can_be_composed(command):
    examples = EXAMPLE.findall(help_of(command))
    assert examples
    for named, written in examples:
        assert named == command
        name, overrides = command, []
        for word in shlex.split(written.split(" > ")[0]):
            if word.startswith("--config-name="):
                name = word.split("=")[1]
            elif word != "-m" and not word.startswith("prompt="):  # a prompt is no override: it is taken as it is
                overrides.append(word)
        overrides = check_overrides(name, overrides, is_sweep="-m" in written)
        parsed = OverridesParser.create().parse_overrides(overrides)
        one_each = [
            f"{each.key_or_group}={next(each.sweep_string_iterator())}" if each.is_sweep_override() else word
            for each, word in zip(parsed, overrides, strict=True)
        ]
        with initialize_config_dir(str(CONF), version_base="1.3"):
            compose(name, one_each)


@pytest.mark.slow
def test_a_choice_on_the_command_line_is_the_one_in_brackets():
    assert "[small_transformer]" in help_of("measure")
    text = help_of("measure", "drafter=medusa")
    assert "[medusa]" in text and "[small_transformer]" not in text


@pytest.mark.slow
def test_help_works_from_a_shell():
    done = subprocess.run(
        [sys.executable, "-m", "experiments.generate", "--help"],
        capture_output=True, text=True, cwd=EXPERIMENTS.parent, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and "drafter=medusa" in done.stdout and "[zoo]" in done.stdout, done.stderr


def wrong_number(tmp_path, monkeypatch, *flags: str) -> None:
    where = f"hydra.sweep.dir={tmp_path}" if flags else f"hydra.run.dir={tmp_path}"
    monkeypatch.setattr(sys, "argv", ["measure", *flags, "gamma.gamma=-1", where])
    measure.main()


def test_an_error_is_one_line_and_nothing_else(tmp_path, monkeypatch, capfd):
    with pytest.raises(SystemExit) as stopped:
        wrong_number(tmp_path, monkeypatch)
    assert stopped.value.code == 1
    assert capfd.readouterr().err == "OptionError: gamma.gamma is -1; allowed: a whole number from 0 to 1000\n"


def test_the_whole_traceback_is_shown_on_request(tmp_path, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(Exception, match=r"gamma\.gamma is -1") as raised:
        wrong_number(tmp_path, monkeypatch)
    assert isinstance(raised.value.__cause__, ValueError)
    assert "check_gamma" in [entry.name for entry in traceback.extract_tb(raised.value.__cause__.__traceback__)]
