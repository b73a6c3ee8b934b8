"""Measurements in which finished rows take the next prompt."""

from pathlib import Path

import pytest

from drafters.small_transformer import SmallTransformer
from experiments.measurement.bench import measure
from experiments.measurement.plan import Arrivals, Candidate, Plan
from experiments.measurement.resource_cache import ResourceCache
from experiments.measurement.timing import timed
from experiments.results.record import Record
from experiments.results.record_diff import diff_records
from experiments.tracking.tracker import Point
from framework.conformance.tiny_models import tiny_cached_lm, tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.target import Target
from framework.prompts.prompt_set import Prompt, PromptSet

NUM_PROMPTS, NUM_ROWS = 16, 2
STOPPING = Stopping(max_new_tokens=40, eos_ids=(0, 13, 26, 39))
SAMPLING = Sampling(temperature=1.0)
PROMPTS = [Prompt(name=str(number), category="", tokens=(5, 6, 5, 6, number)) for number in range(NUM_PROMPTS)]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


def measured(target: Target, folder: Path, *, refill: bool) -> Record:
    drafter = SmallTransformer(target, model=lambda _: tiny_cached_lm(seed=2))
    engine = Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=2), sampling=SAMPLING)
    settings = {"batch_size": NUM_ROWS, **({"refill": True} if refill else {})}
    point = Point(folder=folder, name=f"refill {refill}", study="", settings=settings, config={})
    plan = Plan(
        prompt_set=PromptSet(prompts=PROMPTS, num_truncated=0, num_skipped=0, chat=False),
        batch_size=NUM_ROWS,
        stopping=STOPPING,
        repeats=2,
        seed=3,
        hugging_face=True,
        refill=refill,
        arrivals=Arrivals(rate=100.0, latency_bound=60.0, seed=0) if refill else None,
    )
    (record,) = measure([Candidate(point, engine)], target, SAMPLING, plan, ResourceCache())
    return record


@pytest.mark.slow
def test_prompts_have_the_counts_and_tokens_of_batches_that_wait(target: Target, tmp_path: Path) -> None:
    waiting, refilled = (measured(target, tmp_path / str(refill), refill=refill) for refill in (False, True))
    same = ("name", "seed", "new_tokens", "text", "finish_reason", "accepted", "tested", "rounds", "tokens")
    for one, other in zip(waiting.prompts, refilled.prompts, strict=True):
        assert [one.get(key) for key in same] == [other.get(key) for key in same]
    assert len({row["rounds"] for row in refilled.prompts}) > 3  # rows are refilled in different rounds
    for key in ("alpha/empirical", "tau", "alpha/overlap"):
        assert refilled.metrics[key] == pytest.approx(waiting.metrics[key])
    passes = [sum(record.counts["passes_by_nodes"]) for record in (waiting, refilled)]
    assert passes[1] < 0.9 * passes[0]
    assert refilled.metrics["alpha/check"] and refilled.metrics["speedup/zero_overhead"] > 0
    assert not {"speedup/ci_low", "hf_generate_ms_per_token"} & set(refilled.metrics)  # one time for all prompts
    assert diff_records([refilled], [refilled])  # a batch of all prompts
    found = {key.removeprefix("serving/"): value for key, value in refilled.metrics.items() if "serving" in key}
    for kind in ("", "baseline/", "predicted/"):
        assert found[f"{kind}goodput"] == found[f"{kind}throughput"] > 0  # the bound is never reached
        assert 0 < found[f"{kind}latency_p50"] <= found[f"{kind}latency_p90"] <= found[f"{kind}latency_p99"] < 60
    assert not any("serving" in key for key in waiting.metrics)


def test_a_latency_is_that_of_a_prompt_in_its_row(target: Target) -> None:
    decoder = Autoregressive(target=target, sampling=SAMPLING)
    prompts, seeds = [list(prompt.tokens) for prompt in PROMPTS], list(range(NUM_PROMPTS))
    run = timed(decoder, prompts, STOPPING, seeds, target.device, num_rows=NUM_ROWS)
    assert run.num_rows == NUM_ROWS and len(run.latencies) == NUM_PROMPTS
    assert all(0 < seconds < run.seconds for seconds in run.latencies)
    # Prompts follow each other in their row without a gap.
    assert 0.5 * NUM_ROWS * run.seconds < sum(run.latencies) <= NUM_ROWS * run.seconds
    longest, shortest = (
        choose(range(NUM_PROMPTS), key=lambda n: len(run.generation.tokens[n])) for choose in (max, min)
    )
    assert run.latencies[longest] > run.latencies[shortest]
    assert run.num_places == NUM_ROWS * run.generation.num_steps >= run.num_decoded
    alone = timed(decoder, prompts[:1], STOPPING, seeds[:1], target.device)
    assert alone.latencies == [alone.seconds]
