"""The command that compares ways to send distributions.

A row for each, and what is wrong is told before a model is loaded.
"""

import json
import sys

import pytest

from experiments import compare_links
from tests.support.tiny_pair import tiny_pair


@pytest.mark.slow
def test_fewer_bits_are_fewer_bytes_and_a_row_each(tmp_path, monkeypatch, capsys):
    arguments = [
        *tiny_pair(tmp_path, "ab ca", "b"), f"drafter.drafter.model.path={tmp_path}/drafter", "prompts.count=null",
        "threads=1", "max_new_tokens=12", "sampling.temperature=1",
        "formats=[{top_k:null,top_p:null,bits:null},{top_k:4,top_p:0.9,bits:8}]", f"hydra.run.dir={tmp_path}/out",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["compare_links", *arguments])
    compare_links.main()
    whole, few = json.loads((tmp_path / "out" / "links.json").read_text())
    assert (whole["top_k"], few["top_k"], few["bits"]) == (None, 4, 8)
    assert (whole["top_p"], few["top_p"]) == (None, 0.9)
    assert few["up_per_drafted"] < whole["up_per_drafted"] and few["up"] < whole["up"]
    assert all(0 < each["alpha"] < 1 <= each["tau"] and each["down"] > 0 for each in (whole, few))
    shown = capsys.readouterr().out
    assert "mobile: gamma" in shown and "as it is" in shown and f"{few['alpha']:.3f}" in shown


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "says"), [
    ("drafter=ngram", "which sends nothing; allowed: drafter=remote"),
    ("drafter@drafter.drafter=prompt_lookup", "drafter.drafter has no top_k, top_p and bits; allowed: "),
    ("formats=[]", "formats is []; allowed: a list of {top_k: ..., top_p: ..., bits: ...}"),
    ("formats=[{bits:8}]", "formats is [{'bits': 8}]; allowed: "),
    ("times.draft=0", "times.draft is 0; allowed: a number > 0"),
    ("links.wifi.latency_ms=-1", "links.wifi.latency_ms is -1; allowed: a number >= 0"),
    ("links.wifi.megabits_per_second=inf", "links.wifi.megabits_per_second is inf; allowed: a number > 0"),
    ("gamma.gamma=0", "gamma.gamma is 0, which sends nothing"),
    ("max_new_tokens=0", "max_new_tokens is 0; allowed: "),
    ("target.compile_prefill=true", "target.compile_prefill is true, and engine.compile is false; allowed: "),
])  # fmt: skip
def test_what_is_wrong_is_told_before_a_model_is_loaded(tmp_path, monkeypatch, capsys, wrong, says):
    monkeypatch.setattr(compare_links, "build_target", lambda cfg: pytest.fail("a model was loaded"))
    monkeypatch.setattr(sys, "argv", ["compare_links", wrong, f"hydra.run.dir={tmp_path}"])
    with pytest.raises(SystemExit):
        compare_links.main()
    assert says in " ".join(capsys.readouterr().err.split())
