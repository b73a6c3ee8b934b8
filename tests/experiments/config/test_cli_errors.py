"""Messages of the commands."""

from types import SimpleNamespace

import pytest
from hydra.types import RunMode

from experiments.config import cli_errors
from experiments.config.cli_errors import one_line_errors


@pytest.mark.parametrize(
    ("prompts", "found"),
    [
        ({"a": "{}\n{}\n", "b": '"\u2028"\n{"unfini'}, "3, recorded in run"),
        ({}, "0"),
    ],
)
def test_an_interrupt_names_the_finished_prompts_and_their_folder(prompts, found, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for point, lines in prompts.items():
        path = tmp_path / "run" / point / "prompts.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text(lines, encoding="utf-8")
    config = SimpleNamespace(runtime=SimpleNamespace(output_dir=str(tmp_path / "run")), mode=RunMode.RUN)
    monkeypatch.setattr(cli_errors.HydraConfig, "get", lambda: config)
    with pytest.raises(SystemExit), one_line_errors():
        raise KeyboardInterrupt
    assert capsys.readouterr().err == f"interrupted; finished prompts of all points: {found}\n"
