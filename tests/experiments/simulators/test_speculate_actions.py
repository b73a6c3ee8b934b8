"""The command for a queue's control: policies of value iteration, one row per way to run them, and clear errors."""

import json
import sys

import pytest
import torch

from experiments import speculate_actions
from experiments.simulators.queue import Queue

QUEUE = Queue(capacity=3, arrivals=0.4, speeds=(0.2, 0.7), prices=(0.0, 1.0), seed=0)


def test_the_tables_are_the_simulators_distribution():
    """4000 steps each: within 5 standard errors, below 1e-6 by chance."""
    transitions = QUEUE.transitions()
    assert torch.allclose(transitions.sum(2), torch.ones(2, 4, dtype=torch.float64), atol=1e-12)
    for customers, action in ((0, 1), (2, 0), (3, 1)):
        after = torch.tensor([QUEUE.step(customers, action, number) for number in range(4000)])
        shares = torch.bincount(after, minlength=4) / 4000
        assert torch.allclose(shares.double(), transitions[action, customers], atol=5 * 0.5 / 4000**0.5)


def test_more_sweeps_foresee_more():
    """Without foresight the cheap speed is likelier in every state; the fixed point prefers the fast one when full."""
    near, far, further = (QUEUE.policy(sweeps, discount=0.9, temperature=0.5) for sweeps in (0, 300, 600))
    assert (near[:, 0] > 0.8).all() and far[3, 1] > far[3, 0]
    assert torch.allclose(far, further, atol=1e-9)


@pytest.mark.slow
def test_a_row_for_every_way_and_the_prediction(tmp_path, monkeypatch, capsys):
    arguments = [
        "seconds={slow:0.002,fast:0,step:0.001}", "steps=40", "ahead=[1,3]", "fast_sweeps=[200]",
        f"hydra.run.dir={tmp_path}",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["speculate_actions", *arguments])
    speculate_actions.main()
    plain, one, three = json.loads((tmp_path / "actions.json").read_text())
    assert (plain["ahead"], plain["alpha"], plain["speedup"]) == (0, None, 1)
    assert one["alpha"] == pytest.approx(1) and one["accepted"] == 1  # the fast policy is the slow one
    assert one["predicted"] == pytest.approx(1.5) and three["predicted"] is None
    assert one["cost"] == three["cost"] > 0
    assert "200 sweeps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("ahead=[0]", "ahead is [0]; allowed: a list of whole numbers >= 1"),
        ("fast_sweeps=[]", "fast_sweeps is []; allowed: a list of whole numbers >= 0"),
        ("seconds.slow=0", "seconds.slow is 0; allowed: a number > 0"),
        ("queue.arrivals=2", "queue.arrivals is 2; allowed: a number in [0, 1]"),
        ("queue.prices=[1]", "queue.prices is [1]; allowed: one number for each of queue.speeds, 3"),
        ("steps=0", "steps is 0; allowed: a whole number"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(tmp_path, monkeypatch, capsys, wrong, says):
    monkeypatch.setattr(speculate_actions, "execute_plainly", lambda *_, **__: pytest.fail("it ran"))
    monkeypatch.setattr(sys, "argv", ["speculate_actions", wrong, f"hydra.run.dir={tmp_path}"])
    with pytest.raises(SystemExit):
        speculate_actions.main()
    assert says in " ".join(capsys.readouterr().err.split())
