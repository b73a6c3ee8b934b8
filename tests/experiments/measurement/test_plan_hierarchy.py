"""The command that plans hierarchies: its rates are overlaps, its plans are the formula's, errors come early."""

import json
import sys

import pytest
import torch

from experiments import plan_hierarchy
from framework.conformance.tiny_models import save_tiny, tiny_target
from framework.metrics.hierarchy import best_hierarchy
from tests.support.tiny_pair import tiny_pair


@pytest.mark.slow
def test_rates_costs_and_plans(tmp_path, monkeypatch, capsys):
    save_tiny(tmp_path / "middle", seed=1)  # the target's own weights: accepted always
    arguments = [
        *tiny_pair(tmp_path, "ab ca", "b"), f"models=[{tmp_path}/middle,{tmp_path}/drafter]", "costs=[0.5,0.1]",
        "prompts.count=null", "threads=1", "max_new_tokens=12", "sampling.temperature=1", "max_gamma=4",
        f"hydra.run.dir={tmp_path}/out",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["plan_hierarchy", *arguments])
    plan_hierarchy.main()
    found = json.loads((tmp_path / "out" / "hierarchy.json").read_text())
    assert [path.split("/")[-1] for path in found["models"]] == ["drafter", "middle", "target"]  # cheapest first
    assert found["costs"] == [0.1, 0.5, 1.0]
    (_, (small,), (again, same)) = found["alphas"]
    assert same == pytest.approx(1, abs=1e-5) and small == pytest.approx(again, abs=1e-5) and 0 < small < 1
    plain, best = found["plans"][0], found["plans"][-1]
    assert plain == {"models": found["models"][-1:], "gammas": [], "predicted": 1.0, "of_drafter": 1.0}
    expected = best_hierarchy(found["costs"], found["alphas"], max_gamma=4)
    assert best["predicted"] == pytest.approx(1 / expected.latency) and best["gammas"] == list(expected.gammas)
    assert "The best hierarchies" in capsys.readouterr().out


def test_a_pass_has_a_time_whatever_was_read_before():
    model = tiny_target(vocabulary=12).model
    model.begin(2, 4)
    with torch.no_grad():
        assert 0 < plan_hierarchy.seconds_per_pass(model, [1, 2, 3] * 10) < 60


@pytest.mark.parametrize(("wrong", "says"), [
    ("models=[]", "models is []; allowed: a list of paths"),
    ("costs=[0.1]", "costs is [0.1]; allowed: null, or a number in (0, 1] for each of models, 3"),
    ("costs=[0.1,0.2,2]", "allowed: null, or a number in (0, 1]"),
    ("max_gamma=0", "max_gamma is 0; allowed: a whole number"),
])  # fmt: skip
def test_what_is_wrong_is_told_before_a_model_is_loaded(tmp_path, monkeypatch, capsys, wrong, says):
    monkeypatch.setattr(plan_hierarchy, "build_target", lambda cfg: pytest.fail("a model was loaded"))
    monkeypatch.setattr(sys, "argv", ["plan_hierarchy", wrong, f"hydra.run.dir={tmp_path}"])
    with pytest.raises(SystemExit):
        plan_hierarchy.main()
    assert says in " ".join(capsys.readouterr().err.split())
