"""The command that exports drafters: its lines load the folder, its errors name the option."""

import json
import sys

import pytest

from experiments import export
from experiments.proof.tiny_drafters import save_tiny_eagle3, save_tiny_heads
from framework.conformance.tiny_models import save_tiny, tiny_target


def test_eagle3_is_exported_with_the_layer_numbers_of_its_option(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "target")
    save_tiny_eagle3(tmp_path / "ours", tiny_target())
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    layers = config.pop("eagle_aux_hidden_state_layer_ids")
    numbers = {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in layers]}
    (tmp_path / "ours" / "config.json").write_text(json.dumps(config | numbers))
    given = ["target=pretrained", "target.path=target", "target.dtype=float32", "device=cpu", "drafter=eagle3"]
    given += ["drafter.path=ours", "drafter.layer_numbers=outputs", "format=speculators", "out=there"]
    monkeypatch.setattr(sys, "argv", ["export", *given])
    export.main()
    lines = capsys.readouterr().out.splitlines()
    config = {"model": str(tmp_path / "there"), "method": "eagle3", "num_speculative_tokens": 5}
    assert lines[2] == f"vLLM:  vllm serve target --speculative-config '{json.dumps(config)}'"
    written = json.loads((tmp_path / "there" / "config.json").read_text())
    assert written["eagle_aux_hidden_state_layer_ids"] == layers
    assert written["speculators_config"]["verifier"]["architectures"] == ["LlamaForCausalLM"]


@pytest.mark.slow
def test_the_command_says_how_to_load_the_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "target")
    path = save_tiny_heads(tmp_path / "ours", tiny_target())

    def run(*arguments):
        given = [f"target.path={tmp_path / 'target'}", "target=pretrained", "target.dtype=float32", "device=cpu"]
        monkeypatch.setattr(sys, "argv", ["export", *given, f"drafter.path={path}", *arguments])
        export.main()
        return capsys.readouterr()

    lines = run("format=medusa_vllm", "out=there").out.splitlines()
    assert "drafter=medusa drafter.path=there" in lines[1] and lines[2].startswith("vLLM:  vllm serve /")
    config = json.loads(lines[2].split("'")[1])
    assert config == {"model": str(tmp_path / "there"), "method": "medusa", "num_speculative_tokens": 3}
    for arguments, says in (
        (["out=there"], "out is 'there', which exists; allowed: a new or empty folder"),
        (["format=eagle3"], "format is 'eagle3'; allowed: medusa, medusa_vllm with drafter=medusa"),
        (["drafter=dflash", "format=medusa"], "format is 'medusa'; allowed: speculators with drafter=dflash"),
        (["format=eagle9"], "format is 'eagle9'; allowed: medusa, medusa_vllm with drafter=medusa"),
        (["drafter=mtp"], "drafter is 'mtp', which no format takes; allowed: "),
        ([f"drafter.path={tmp_path / 'target'}"], "drafter.path is "),
    ):
        with pytest.raises(SystemExit):
            run(*arguments)
        assert says in capsys.readouterr().err
