"""Messages of the commands."""

from types import SimpleNamespace

import pytest

from experiments.config import cli_errors
from experiments.config.cli_errors import one_line_errors


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ({"a": "{}\n{}\n", "b": "{}\n"}, "interrupted; finished prompts: 3, recorded in run\n"),
        ({}, "interrupted; finished prompts: 0\n"),
    ],
)
def test_an_interrupt_names_the_finished_prompts_and_their_folder(prompts, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for point, lines in prompts.items():
        path = tmp_path / "run" / point / "prompts.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text(lines)
    config = SimpleNamespace(runtime=SimpleNamespace(output_dir=str(tmp_path / "run")))
    monkeypatch.setattr(cli_errors.HydraConfig, "get", lambda: config)
    with pytest.raises(SystemExit), one_line_errors():
        raise KeyboardInterrupt
    assert capsys.readouterr().err == message
