"""The record of a measured candidate."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from experiments.measurement.merging import Merged
from experiments.measurement.metrics import (
    BASELINE,
    HUGGING_FACE,
    all_metrics,
    draft_and_target_time,
    expert_metrics,
    graph_metrics,
    inner_metrics,
    parted_from,
    stage_times,
    walltime,
)
from experiments.measurement.plan import Arrivals, Candidate, Plan
from experiments.measurement.round_timing import recorded_profile
from experiments.measurement.serving import predicted
from experiments.measurement.timing import PartTimes
from experiments.quality.pass_rate import pass_rate
from experiments.quality.references import quality
from experiments.results.passed_checks import has_passed
from experiments.results.prompt_bootstrap import intervals
from experiments.results.record import Record
from framework.core.sampling import Sampling
from framework.metrics.accepted_length import AcceptedLengths, Request
from framework.metrics.equality import Difference
from framework.metrics.stopwatch import Block
from framework.models.target import Target
from framework.prompts.detokenizer import Detokenizer
from framework.prompts.prompt_set import PromptSet

TRACED_BLOCKS = 200  # blocks of a record's trace: some 40 rounds


def build_record(
    candidate: Candidate, merged: Merged, plan: Plan, target: Target, sampling: Sampling, origin: dict[str, Any]
) -> Record:
    """Build a candidate's record from the merged results of all batches.

    Args:
        origin: fields of the record that state where and when it was measured.
    """
    name, tally, prompt_set = candidate.point.name, candidate.tally, plan.prompt_set
    parted = _parted(name, merged, plan, target, sampling)
    parts = PartTimes.middle([parts for _, parts in merged.with_parts[name]])
    metrics = all_metrics(name, tally, merged.with_parts, merged.runs, parted) | _own_metrics(
        candidate, merged, plan, target
    )
    metrics |= _accepted_lengths(candidate)
    metrics |= expert_metrics(candidate.experts, parts) | intervals(candidate.rows, plan.prompts_per_batch)
    if plan.arrivals is not None:
        metrics |= _serving(candidate, merged, plan, plan.arrivals, parts)
    if plan.compiled:
        metrics |= graph_metrics(name, merged.graphs, merged.runs)
    metrics["guarantee/checked"] = has_passed(type(candidate.engine.drafter))
    stages, stages_per_round = stage_times(
        merged.stages[name], num_passes=tally.num_passes, parts=parts, num_nodes=metrics.get("nodes/mean", 0.0)
    )
    return Record(
        name=name,
        study=candidate.point.study,
        point=candidate.point.settings,
        models=candidate.point.models,
        config=candidate.point.config,
        seconds=walltime(merged.runs[name]),
        chat=prompt_set.chat,
        seeds=[plan.seed + row for row in range(len(prompt_set.prompts))],
        counts=_counts(candidate, prompt_set),
        metrics=metrics,
        differences={other: [asdict(found) for found in places] for other, places in parted.items()},
        stages=stages,
        stages_ms_per_round=stages_per_round,
        trace={key: _trace(merged.traces.get(each, [])) for key, each in (("own", name), ("baseline", BASELINE))},
        rounds_histogram={"accepted": tally.accepted.sum(0).tolist(), "gamma": tally.gammas.tolist()},
        round_profile=recorded_profile(candidate.engine, candidate.options, plan.batches()[0], plan.stopping),
        prompts=candidate.rows,
        **origin,
    )


def _parted(name: str, merged: Merged, plan: Plan, target: Target, sampling: Sampling) -> dict[str, list[Difference]]:
    """Find where greedy tokens differ from those of the plain decoders; empty above temperature 0.

    It is also empty in half precision: passes of different shape break near-ties differently, so equality proves
    nothing.
    """
    if not sampling.greedy or target.model.model.dtype not in (torch.float32, torch.float64):
        return {}
    prompts = [list(prompt.tokens) for prompt in plan.prompt_set.prompts]
    return parted_from((BASELINE, HUGGING_FACE), name, merged.runs, target, prompts, plan.stopping)


def _own_metrics(candidate: Candidate, merged: Merged, plan: Plan, target: Target) -> dict[str, Any]:
    """Metrics of the output, the divergence of a lossy rule, and a drafter's inner rounds, where the point has them."""
    metrics: dict[str, Any] = _quality(candidate.point.name, merged, plan, target)
    metrics |= {f"baseline_{key}": value for key, value in _quality(BASELINE, merged, plan, target).items()}
    if shares := [row["distinct_4grams"] for row in candidate.rows if row["distinct_4grams"] is not None]:
        metrics["distinct_4grams"] = sum(shares) / len(shares)
    if candidate.teacher_forced:
        metrics["alpha/teacher_forced"] = candidate.teacher_forced.metrics()["alpha/overlap"]
    if found := candidate.divergences:
        metrics["divergence/total_variation"] = sum(found) / len(found)
    return metrics | (inner_metrics(candidate.inner_tally, candidate.tally) if candidate.inner_tally else {})


def _quality(name: str, merged: Merged, plan: Plan, target: Target) -> dict[str, float]:
    """Quality of the first repeat's texts, by the prompts' references and, with run_completions, their tests."""
    answers = [tokens for run in merged.runs[name][0] for tokens in run.generation.tokens]
    prompts, tokenizer = plan.prompt_set.prompts, target.tokenizer
    texts = [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
    found = quality(texts, [prompt.reference for prompt in prompts])
    if plan.run_completions:
        code, completions = [], []
        for prompt, answer in zip(prompts, answers, strict=True):
            detokenizer = Detokenizer(tokenizer)  # some tokenizers drop a space where a text begins
            code.append(detokenizer.extend(list(prompt.tokens)))
            completions.append(detokenizer.extend(answer) + detokenizer.rest())
        found |= pass_rate(code, completions, [prompt.tests or "" for prompt in prompts])
    return found


def _accepted_lengths(candidate: Candidate) -> dict[str, float | None]:
    """Mean accepted length as other projects define it."""
    requests = [Request(row["new_tokens"], row["accepted"], row["rounds"]) for row in candidate.rows]
    return AcceptedLengths.of(candidate.tally, requests).metrics()


def _serving(
    candidate: Candidate, merged: Merged, plan: Plan, arrivals: Arrivals, parts: PartTimes
) -> dict[str, float]:
    """Goodput and latencies of requests as they arrive: of the point, of the baseline, and predicted from the parts."""
    name, bound = candidate.point.name, arrivals.latency_bound
    moments = arrivals.moments(len(candidate.rows), plan.batch_size)
    reading = statistics.median(run.seconds - run.decode_seconds for (run,) in merged.runs[name])
    expected = predicted(
        moments,
        [row["rounds"] for row in candidate.rows],
        num_rows=plan.batch_size,
        round_seconds=sum(draft_and_target_time(candidate.tally, parts)) * parts.one_row,
        prompt_seconds=reading / len(candidate.rows),
    )
    return (
        merged.served[name].metrics(bound)
        | merged.served[BASELINE].metrics(bound, "serving/baseline")
        | expected.metrics(bound, "serving/predicted")
    )


def _trace(blocks: Sequence[Block]) -> list[list[Any]]:
    """The first blocks, in milliseconds, rounded to microseconds."""
    return [[each.stage, round(1000 * each.begin, 3), round(1000 * each.end, 3)] for each in blocks[:TRACED_BLOCKS]]


def _counts(candidate: Candidate, prompt_set: PromptSet) -> dict[str, Any]:
    inner = {"inner": candidate.inner_tally.counts()} if candidate.inner_tally else {}
    return (
        candidate.tally.counts()
        | inner
        | {
            "prompts": len(prompt_set.prompts),
            "prompts_truncated": prompt_set.num_truncated,
            "prompts_skipped": prompt_set.num_skipped,
        }
    )
