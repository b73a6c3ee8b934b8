"""The command line `outrider`, and what is imported before the arguments are checked."""

import ast
import subprocess
import sys

import pytest

from experiments import __main__ as console
from experiments.config.help_text import CONF, EXPERIMENTS, commands

LIGHT = """
import runpy, sys
for module, arguments in {cases}:
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit:
        pass
print(sorted({heavy} & set(sys.modules)))
"""
HEAVY = {"torch", "transformers", "wandb", "matplotlib", "optuna", "scipy", "nltk"}
CASES = [
    ("experiments", ["--help"]),
    ("experiments", ["comapre"]),
    ("experiments", ["compare", "--help"]),
    ("experiments", ["train", "max_tokens=5"]),
    ("experiments.search", ["--help"]),
    ("experiments.measure", ["gama=4"]),
    ("experiments.measure", ["study=gamma"]),
]
# Modules that only drawing, scoring, searching or W&B need.
LATER = {"wandb", "matplotlib", "optuna", "nltk", "sklearn", "pandas"}
WITHOUT = "import sys, experiments.{}; print(sorted({} & set(sys.modules)))"


def printed(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=CONF.parent, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_help_and_mistakes_import_nothing_heavy() -> None:
    lines = printed(LIGHT.format(cases=CASES, heavy=HEAVY)).splitlines()
    assert lines[-1] == "[]" and lines[0] == "outrider COMMAND [OPTION=VALUE ...]"


@pytest.mark.slow
def test_measurements_import_what_draws_searches_and_publishes_only_where_it_is_used() -> None:
    names = "measure, experiments.compare, experiments.benchmark, experiments.train, experiments.generate"
    assert printed(WITHOUT.format(names, LATER)) == "[]\n"


@pytest.mark.parametrize("name", commands())
def test_a_command_checks_its_arguments_before_its_imports(name: str) -> None:
    _, guard, *_ = ast.parse((EXPERIMENTS / f"{name}.py").read_text(encoding="utf-8")).body
    assert ast.unparse(guard).split("\n")[0] == "if __name__ == '__main__':"
    assert f"run_command('{name}')" in ast.unparse(guard) and "raise SystemExit" in ast.unparse(guard)


def test_every_command_has_its_line(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["outrider"])
    console.main()
    lines = capsys.readouterr().out.splitlines()
    named = {path.stem for path in EXPERIMENTS.glob("*.py") if "@command(" in path.read_text(encoding="utf-8")}
    assert {line.split()[0] for line in lines[2:-2]} == named == set(commands())
    assert all(len(line.split()) > 4 for line in lines[2:-2])


def test_a_misspelt_command_suggests_the_near_one(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["outrider", "comapre"])
    with pytest.raises(SystemExit) as stopped:
        console.main()
    error = capsys.readouterr().err
    assert stopped.value.code == 1 and error.count("\n") == 1
    assert "the command is 'comapre'; did you mean compare? allowed: beam_search, " in error
