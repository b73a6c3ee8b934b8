"""Several processes measure one point: what they count is what one of them counts, and none waits for a dead one."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
import torch.distributed as dist

from experiments import measure
from experiments.measurement import bench, ranks
from experiments.measurement.plan import Candidate, Plan
from experiments.measurement.ranks import Ranks, check_devices, joined
from experiments.measurement.resource_cache import ResourceCache
from experiments.proof.tiny_drafters import tiny_factory
from experiments.tracking.tracker import Point
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.target import Target
from framework.prompts.prompt_set import Prompt, PromptSet
from framework.verifiers.speculative_sampling import SpeculativeSampling
from tests.support.counted_records import records_of
from tests.support.tiny_pair import tiny_pair

REPOSITORY = Path(__file__).parents[3]
RANKS = 2
T = TypeVar("T")

# Meets the others, loses one of them, and says what it heard.
MEETS = """
import os, signal, sys
from datetime import timedelta
from experiments.measurement import ranks
ranks.TIMEOUT = timedelta(seconds=float(sys.argv[1]))
together = ranks.joined()
print(together.all_gather(f"rank {together.number}"), flush=True)
if together.number == 1:
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
together.all_gather(None)
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides that measure a tiny pair on five prompts, two at a time: the last batch has one, and so has a rank."""
    folder = tmp_path_factory.mktemp("tiny")
    return [
        *tiny_pair(folder, "def ab(x):", "z", "q a b a b", "aa", "b c"), f"drafter.model.path={folder / 'drafter'}",
        "batch_size=2", "max_new_tokens=8", "repeats=2", "sampling.temperature=1", "verifier=lenience",
        "tracker=jsonl", "engine.compile=false", "share_cores=true",
    ]  # fmt: skip


def environment(**changed: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    return kept | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"} | changed


def torchrun(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command += ["-m", "experiments.measure", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment(), text=True, capture_output=True, timeout=300)


@pytest.mark.slow
def test_two_ranks_give_the_record_of_one(tiny, tmp_path, monkeypatch):
    done = torchrun(*tiny, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "outputs" / "measure").iterdir()  # one for both
    monkeypatch.setattr(sys, "argv", ["measure", *tiny, f"hydra.run.dir={tmp_path / 'alone'}"])
    measure.main()
    assert records_of(folder) == records_of(tmp_path / "alone") and len(records_of(folder)) == 1
    (shared,), (alone,) = ([*place.rglob("record.json")] for place in (folder, tmp_path / "alone"))
    counts: list[dict[str, Any]] = [json.loads(path.read_text()) for path in (shared, alone)]
    assert [record["ranks"] for record in counts] == [2, 1]
    assert counts[0]["metrics"]["divergence/total_variation"] > 0
    rows = [json.loads(line)["name"] for line in (shared.parent / "prompts.jsonl").read_text().splitlines()]
    assert rows == [row["name"] for row in counts[1]["prompts"]] and len(rows) == 5


class Threads(Ranks):
    """Ranks that are threads of this process."""

    met = threading.Barrier(RANKS, timeout=60)
    handed_in: ClassVar[dict[int, Any]] = {}

    def all_gather(self, own: T) -> list[T]:
        self.met.wait()
        self.handed_in[self.number] = own
        self.met.wait()
        return [self.handed_in[number] for number in range(self.size)]


def plan_of(number: int) -> Plan:
    """So many prompts, a batch each."""
    prompts = [Prompt(name=str(i), category="", tokens=(5, 6, i)) for i in range(number)]
    return Plan(
        prompt_set=PromptSet(prompts=prompts, num_truncated=0, num_skipped=0, chat=False),
        batch_size=1,
        stopping=Stopping(max_new_tokens=6),
        repeats=1,
        seed=0,
        hugging_face=False,
    )


@pytest.mark.slow
def test_what_fails_on_one_rank_ends_the_point_on_all(tmp_path):
    """A drafter breaks at the second rank's second batch; another one's record is as it would be."""
    sampling = Sampling(temperature=1.0)

    def candidate(name: str, target: Target, folder: Path) -> Candidate:
        drafter = tiny_factory("uniform_random", target.vocabulary_size)(target=target)
        engine = Engine(
            target=target, drafter=drafter, verifier=SpeculativeSampling(), gamma_policy=Fixed(gamma=2),
            sampling=sampling,
        )  # fmt: skip
        return Candidate(Point(folder=folder, name=name, study="", settings={}, config={}), engine)

    def measured(rank: int) -> tuple[list[Candidate], list[dict[str, Any]]]:
        target = targets[rank]
        candidates = [candidate(name, target, tmp_path / "together") for name in ("breaks", "works")]
        generate = candidates[0].engine.generate

        def breaks(prompts: Any, **settings: Any) -> Any:
            if prompts == [[5, 6, 3]]:
                raise FloatingPointError("a distribution is not finite")
            return generate(prompts, **settings)

        candidates[0].engine.generate = breaks  # type: ignore[method-assign]
        return candidates, bench.measure(
            candidates, target, sampling, plan_of(5), ResourceCache(), Threads(rank, RANKS)
        )

    targets = [tiny_target() for _ in range(RANKS + 1)]  # the seed that they are drawn with is all threads' own
    with ThreadPoolExecutor(RANKS) as threads:
        (first, records), (second, none) = threads.map(measured, range(RANKS))
    for candidates in (first, second):
        with pytest.raises(RuntimeError, match="on rank 1: FloatingPointError: a distribution is not finite"):
            candidates[0].raise_error()
    assert "FloatingPointError" in json.loads((tmp_path / "together" / "breaks" / "error.json").read_text())["error"]
    assert [record.name for record in records] == ["works"] and not none
    alone = [candidate("works", targets[-1], tmp_path / "alone")]
    bench.measure(alone, targets[-1], sampling, plan_of(5), ResourceCache())
    assert records_of(tmp_path / "together") == records_of(tmp_path / "alone")


def test_there_is_a_batch_for_each_rank():
    with pytest.raises(ValueError, match="2 ranks share 1 batches; allowed: at least one batch per rank"):
        bench.measure([], tiny_target(), Sampling(), plan_of(1), ResourceCache(), Ranks(0, RANKS))


@pytest.mark.slow
def test_submitit_starts_the_ranks_of_a_point(tiny, tmp_path):
    sweep = ["gamma.gamma=1,2", "hydra/launcher=submitit_here", f"hydra.launcher.tasks_per_node={RANKS}"]
    sweep += [f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    command = [sys.executable, "-m", "experiments.measure", "-m", *tiny, *sweep]
    subprocess.run(command, cwd=tmp_path, env=environment(), check=True, timeout=300)
    records = [json.loads(path.read_text()) for path in (tmp_path / "sweep").rglob("record.json")]
    assert [record["ranks"] for record in records] == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP"])
def test_nobody_waits_for_a_dead_rank(tmp_path, signal):
    timeout = 30  # seconds, which ranks have to be there, too
    # Where they meet is kept here, as torchrun keeps it: who asked for a free port first may find it taken.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    met = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", MEETS, str(timeout), signal], cwd=tmp_path, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(RANK=str(rank), WORLD_SIZE="2", **met),
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        said, error = started[0].communicate(timeout=120)
    finally:
        started[1].kill()
        started[1].communicate()
    assert said == "['rank 0', 'rank 1']\n" and started[0].returncode == 1
    assert "ConnectionError: rank 0 of 2 lost another: " in error.splitlines()[-1]


def test_one_process_is_alone():
    assert joined().size == 1 and Ranks().all_gather("own") == ["own"]


def test_ranks_beside_each_other_are_not_timed(monkeypatch):
    check_devices("cpu", share_cores=False)
    monkeypatch.setattr(ranks, "joined", lambda: Ranks(0, RANKS))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="share_cores is false, and 2 ranks share this machine's cores"):
        check_devices("cpu", share_cores=False)
    check_devices("cpu", share_cores=True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")  # the other is on another machine
    check_devices("cpu", share_cores=False)
