"""A target shared by processes: the tokens of one process with every drafter, one record, and clear errors."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from experiments import measure
from experiments.config.builders import check_sharing
from experiments.proof.tiny_drafters import NAMES
from framework.conformance.tiny_models import save_tiny, tiny_model, tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.models import tensor_parallel
from framework.models.pretrained import load_target
from framework.models.tensor_parallel import agreed, check_tensor_parallel, is_sharded, sharding
from tests.support.counted_records import records_of
from tests.support.tiny_pair import tiny_pair

REPOSITORY = Path(__file__).parents[3]
NEEDS_ACCELERATE = pytest.mark.skipif(find_spec("accelerate") is None, reason="make test-extras installs accelerate")
SAMPLINGS = [Sampling(temperature=0), Sampling(temperature=0.8, top_p=0.9)]

# Decodes with every drafter, with a target of its own and with a shared one.
DECODES = """
import json, sys
import torch
from experiments.config.resolvers import register_resolvers
from experiments.proof.tiny_drafters import NAMES, tiny_factory
from framework.conformance.tiny_models import VOCABULARY
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.pretrained import load_target
from framework.models.tensor_parallel import agreed
from tests.framework.models.test_tensor_parallel import SAMPLINGS

def tokens(target, name, sampling):
    drafter = tiny_factory(name, VOCABULARY)(target=target)
    engine = Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=sampling)
    prompts = [[5, 6, 7, 8, 5, 6], [9], [1, 2, 1, 2, 1, 2, 1]]
    return engine.generate(prompts, stopping=Stopping(max_new_tokens=12), seeds=[0, 1, 2]).tokens

if __name__ == "__main__":
    register_resolvers()
    options = {"path": sys.argv[1], "dtype": "float64", "device": "cpu", "attention": "auto", "context": None}
    # First, since later only one process would write the files of the tiny drafters.
    alone = load_target(**options)
    expected = {name: [tokens(alone, name, sampling) for sampling in SAMPLINGS] for name in NAMES}
    shared = load_target(**options, tensor_parallel="auto")
    rank = torch.distributed.get_rank()
    found = {name: [tokens(shared, name, sampling) for sampling in SAMPLINGS] for name in NAMES}
    local = shared.model.model.model.layers[0].self_attn.k_proj.weight.to_local().numel()
    facts = {
        "equal": [name for name in NAMES if found[name] == expected[name]],
        "fingerprints": [alone.fingerprint, shared.fingerprint],
        "sharded": [alone.model.is_sharded, shared.model.is_sharded],
        "part": local / alone.model.model.model.layers[0].self_attn.k_proj.weight.numel(),
        "agreed": agreed(rank, sharded=True),
    }
    (open(f"{sys.argv[2]}/{rank}.json", "w")).write(json.dumps(facts))
"""


def torchrun(*command: str, cwd: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    paths = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment |= {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*start, *command], cwd=cwd, env=environment, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr


@NEEDS_ACCELERATE
def test_two_processes_decode_the_tokens_of_one_with_every_drafter(tmp_path):
    save_tiny(tmp_path / "target")
    (tmp_path / "decodes.py").write_text(DECODES)
    torchrun("decodes.py", "target", ".", cwd=tmp_path)
    for rank in range(2):
        facts = json.loads((tmp_path / f"{rank}.json").read_text())
        assert facts["equal"] == NAMES and facts["sharded"] == [False, True]
        assert facts["fingerprints"][0] == facts["fingerprints"][1]
        assert (facts["part"], facts["agreed"]) == (0.5, 0)


@NEEDS_ACCELERATE
def test_two_processes_write_the_one_record(tmp_path, monkeypatch):
    tiny = [
        *tiny_pair(tmp_path, "def ab(x):", "z", "q a b a b"), f"drafter.model.path={tmp_path / 'drafter'}",
        "target.dtype=float64", "gamma=expected_speedup", "sampling.temperature=0", "max_new_tokens=8", "repeats=2",
        "tracker=jsonl", "share_cores=true",
    ]  # fmt: skip
    folders = [tmp_path / "shared", tmp_path / "alone"]
    arguments = [[*tiny, f"hydra.run.dir={folder}"] for folder in folders]
    torchrun("-m", "experiments.measure", *arguments[0], "target.tensor_parallel=auto", cwd=tmp_path)
    monkeypatch.setattr(sys, "argv", ["measure", *arguments[1]])
    measure.main()
    (shared,), (alone,) = (records_of(folder).values() for folder in folders)
    assert shared["counts"]["prompts"] == alone["counts"]["prompts"] == 3
    # Gammas follow the measured costs, which both processes agree on; greedy tokens are the same whatever they are.
    texts = [[[token["text"] for token in row["tokens"]] for row in each["prompts"]] for each in (shared, alone)]
    assert texts[0] == texts[1] and len(texts[0][0]) == 8
    record = json.loads(next(folders[0].rglob("record.json")).read_text())
    assert (record["ranks"], record["tensor_parallel"]) == (1, 2) and "tensor_parallel" not in alone["keys"]


@pytest.mark.parametrize(
    ("given", "device_map", "processes", "accelerate", "error"),
    [
        ("auto", None, 1, True, "tensor_parallel is 'auto', and this process was started alone; allowed: null, or "),
        ("auto", "balanced", 2, True, "tensor_parallel is 'auto', and device_map is 'balanced'; allowed: null with"),
        ("all", None, 2, True, "tensor_parallel is 'all'; allowed: auto, or null"),
        (2, None, 2, True, "tensor_parallel is 2; allowed: auto, or null"),
        ("auto", None, 2, False, r"needs the package accelerate: pip install -e '\.\[tensor-parallel\]'; or set it"),
    ],
)
def test_what_cannot_be_shared_is_refused(monkeypatch, given, device_map, processes, accelerate, error):
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    monkeypatch.setattr(tensor_parallel, "find_spec", lambda name: object() if accelerate else None)
    with pytest.raises((ValueError, ImportError), match=error):
        check_tensor_parallel(given, device_map, "auto")


def test_every_process_has_the_device_that_torchrun_gives_it(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(tensor_parallel, "find_spec", lambda name: object())
    check_tensor_parallel("auto", None, "auto")
    for there, given in (None, "cuda:1"), (torch.device("cuda"), "cpu"), (torch.device("cuda"), "cuda:1"):
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda there=there: there)
        with pytest.raises(ValueError, match=rf"and device is '{given}'; allowed: null, or device=auto or"):
            check_tensor_parallel("auto", None, given)


def test_parts_of_a_model_are_equal(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert sharding(tiny_model("llama").config).keys() == {"distributed_config"}
    with pytest.raises(ValueError, match="for which transformers has no plan of gpt2; allowed: null"):
        sharding(tiny_model("gpt2").config)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match=r"3 processes share the target; allowed: null, or .* divides its 2 key-value"):
        sharding(tiny_model("llama").config)


def test_rounds_of_a_shared_target_are_not_compiled():
    target = tiny_target()
    assert not target.model.is_sharded and not is_sharded(target.model.model)
    target.model.is_sharded = True
    reason = re.escape("engine.compile is true, and target.tensor_parallel is 'auto'; allowed: false")
    with pytest.raises(ValueError, match=reason):
        Autoregressive(target=target, sampling=Sampling(), compiled=True)
    compiles = SimpleNamespace(target={"tensor_parallel": "auto"}, engine=SimpleNamespace(compile=True))
    with pytest.raises(ValueError, match=reason):
        check_sharing(compiles)


def test_a_process_alone_agrees_with_itself(tmp_path):
    assert agreed(0.5, sharded=False) == 0.5
    save_tiny(tmp_path)
    with pytest.raises(ValueError, match="started alone"):
        load_target(path=str(tmp_path), dtype="float32", device="auto", attention="auto", context=None,
                    tensor_parallel="auto")  # fmt: skip
