"""Two processes that share every batch: their gradients, and the one folder that `train` leaves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from experiments import train
from experiments.measurement.ranks import Ranks
from framework.conformance.tiny_models import tiny_target
from tests.experiments.measurement.test_ranks import RANKS, environment
from tests.framework.training.test_batch_shares import TRAININGS, gradients, windows
from tests.support.tiny_training import tiny_training

COMPUTES = """
import sys, torch
from experiments.measurement.ranks import joined
from framework.conformance.tiny_models import tiny_target
from tests.framework.training.test_batch_shares import TRAININGS, gradients, windows

ranks, found = joined(), {}
for kind, make in TRAININGS.items():
    torch.manual_seed(0)
    found[kind] = gradients(make(tiny_target("t5")), ranks.share(windows("t5")))
    ranks.average(found[kind])
if ranks.is_writer:
    torch.save(found, "gradients.pt")
"""


def torchrun(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    started = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", *command]
    return subprocess.run(started, cwd=cwd, env=environment(), text=True, capture_output=True, timeout=500)


@pytest.mark.slow
def test_gradients_of_two_processes_are_those_of_one(tmp_path):
    """On pairs, whose answers have different lengths."""
    (tmp_path / "computes.py").write_text(COMPUTES)
    done = torchrun("computes.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shared = torch.load(tmp_path / "gradients.pt")
    for kind, make in TRAININGS.items():
        torch.manual_seed(0)
        alone = gradients(make(tiny_target("t5")), windows("t5"))
        for got, whole in zip(shared[kind], alone, strict=True):
            torch.testing.assert_close(got, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_two_processes_leave_the_folder_of_one(tmp_path, monkeypatch):
    arguments = [*tiny_training(tmp_path), "drafter=medusa", "data=samples", "samples.count=12", "samples.batch=4",
                 "samples.prompt_tokens=8", "tracker=jsonl"]  # fmt: skip
    done = torchrun("-m", "experiments.train", *arguments, f"folder={tmp_path / 'shared'}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 3: loss=") == done.stdout.count("Next: ") == 1
    monkeypatch.setattr(sys, "argv", ["train", *arguments, f"folder={tmp_path / 'alone'}"])
    train.main()
    shared, alone = ([*sorted(each.rglob("*"))] for each in (tmp_path / "shared", tmp_path / "alone"))
    assert [path.name for path in shared] == [path.name for path in alone]
    facts = [json.loads((tmp_path / name / "provenance.json").read_text()) for name in ("shared", "alone")]
    assert facts[0]["text"] == facts[1]["text"] and facts[0]["tokens"] == facts[1]["tokens"]
    for one, other in zip(*(each["history"] for each in facts), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
    shared_heads, heads = (load_file(tmp_path / name / "heads.safetensors") for name in ("shared", "alone"))
    for name, tensor in heads.items():
        torch.testing.assert_close(shared_heads[name], tensor, rtol=0, atol=2e-2)  # bfloat16
    done = torchrun("-m", "experiments.train", *arguments, "training.batch=3", f"folder={tmp_path / 'x'}", cwd=tmp_path)
    assert "training.batch is 3; allowed: a multiple of the 2 processes" in done.stderr and done.returncode


def test_a_batch_is_shared_in_equal_parts():
    batch = torch.arange(6).view(6, 1)
    assert [Ranks(number, 3).share(batch).flatten().tolist() for number in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match=r"^a batch has 6 rows; allowed: a multiple of the 4 processes"):
        Ranks(0, 4).share(batch)


def test_ranks_of_another_folder_are_refused(monkeypatch):
    ranks = Ranks(0, 2)
    monkeypatch.setattr(ranks, "all_gather", lambda own: [own, ("text", 4)])
    ranks.check_same("the step", ("text", 4))
    with pytest.raises(ValueError, match=r"^the step differs between the 2 processes; allowed: one folder and text"):
        ranks.check_same("the step", ("text", 0))
