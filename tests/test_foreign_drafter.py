"""A drafter class in somebody else's package, with its own yaml, is chosen by name and held to the same contract."""

import subprocess
import sys
from pathlib import Path

import pytest

from framework.tiny_models import save_tiny

# Draws from a geometric law over token ids, the same for every row; the biased one says softmax and drafts its mode.
CODE = """
import torch

from framework.draft import Draft, Law, Shape
from framework.sampling import draw


class Geometric:
    law, shape = Law.IID, Shape.CHAIN

    def __init__(self, *, target, ratio, always_likeliest):
        law = ratio ** torch.arange(target.vocabulary_size)
        self.probs, self.always_likeliest = law / law.sum(), always_likeliest

    def num_uniforms(self, gamma):
        return gamma

    def begin(self, sequences, prefill, sampling):
        pass

    def propose(self, sequences, gamma, uniforms):
        probs = self.probs.expand(sequences.num_rows, gamma, -1)
        tokens = probs.argmax(2) if self.always_likeliest else draw(probs, uniforms)
        return Draft.chain(tokens, self.law, probs=probs.contiguous())

    def observe(self, sequences, outcome):
        pass
"""
YAML = """# A geometric law.
_target_: theirs.geometric.Geometric
_partial_: true

ratio: 0.9
always_likeliest: false
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("elsewhere")
    (root / "theirs" / "conf" / "drafter").mkdir(parents=True)
    for folder in ("theirs", "theirs/conf", "theirs/conf/drafter"):
        (root / folder / "__init__.py").touch()
    (root / "theirs" / "geometric.py").write_text(CODE)
    (root / "theirs" / "conf" / "drafter" / "geometric.yaml").write_text(YAML)
    save_tiny(root / "target", vocabulary=30, seed=1)
    return root


def check(package: Path, *overrides: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "experiments.check", "hydra.searchpath=[pkg://theirs.conf]", *overrides]
    command += ["target=pretrained", f"target.path={package / 'target'}", "target.dtype=float32", "device=cpu"]
    command.append(f"hydra.run.dir={package / 'outputs'}")
    root = Path(__file__).parents[1]
    environment = {"PYTHONPATH": f"{package}:{root}", "PATH": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=package, env=environment, timeout=300)


def test_it_is_selected_by_name_and_passes(package):
    done = check(package, "drafter=geometric")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Geometric: " in done.stdout and "BROKEN" not in done.stdout


def test_a_biased_version_fails_and_is_told_its_bias(package):
    done = check(package, "drafter=geometric", "drafter.always_likeliest=true")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN  tokens are drawn from the probs that are reported" in done.stdout
    assert "token 0 came in 100.0% of" in done.stdout and "a greedy, filtered or re-ranked token" in done.stdout
    assert "BROKEN  the output follows the target's law" in done.stdout


def test_a_name_that_is_not_there_lists_what_is(package):
    done = check(package, "drafter=geometrik")
    assert done.returncode == 1
    assert "geometrik" in done.stderr and "geometric\n" in done.stderr and "Traceback" not in done.stderr
