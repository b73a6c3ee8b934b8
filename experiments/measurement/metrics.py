"""Metrics of a record, computed from counts and timings by pure functions. ARCHITECTURE.md defines each name."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.measurement.experts import TouchedExperts
from experiments.measurement.timing import READING, PartTimes, Timed
from framework.core.draft import Shape
from framework.decoding.stopping import Stopping
from framework.metrics import theory
from framework.metrics.equality import Difference, differences, within_float32
from framework.metrics.graph_counts import GraphCounts
from framework.metrics.tally import Tally
from framework.models.target import Target

BASELINE, HUGGING_FACE = "baseline", "hugging_face"

Runs = dict[str, list[list[Timed]]]
"""Timed batches in order: `runs[decoder][repeat][batch]`."""


TimedWithParts = Sequence[tuple[Timed, PartTimes]]
"""Timed batches of one loop, each with the times of its parts, taken right after it."""


def all_metrics(
    name: str,
    tally: Tally,
    with_parts: Mapping[str, TimedWithParts],
    runs: Runs,
    parted: dict[str, list[Difference]],
) -> dict[str, Any]:
    """Compute all metrics of the point `name`: alpha and tau, speed, prediction, and equality for decoders in `parted`.

    Args:
        tally: counts of the point's rounds.
        with_parts: timed batches with part times, of the point and of the baseline.
        runs: timed batches of all decoders.
        parted: token differences from each plain decoder that was compared.
    """
    metrics: dict[str, Any] = tally.metrics()
    metrics |= _speed(runs[name], runs[BASELINE]) | token_latency(runs[name], runs[BASELINE])
    metrics["occupancy"] = occupancy(runs[name][0]) / occupancy(runs[BASELINE][0])
    metrics |= _prediction(metrics, tally, PartTimes.middle([parts for _, parts in with_parts[name]]))
    # Generations of one token end with prefill, so that no decoding time was measured.
    decoded = all(any(run.num_places for run, _ in with_parts[each]) for each in (BASELINE, name))
    if "speedup/zero_overhead" in metrics and decoded:
        metrics["time_over_parts"] = time_over_parts(with_parts[name])
        metrics["efficiency"] = time_over_parts(with_parts[BASELINE]) / metrics["time_over_parts"]
        metrics["overhead"] = 1 - metrics["efficiency"]
    if HUGGING_FACE in runs:
        metrics["hf_generate_ms_per_token"] = statistics.median(map(decode_ms, runs[HUGGING_FACE]))
        metrics["hf_generate_end_to_end_ms_per_token"] = statistics.median(map(end_to_end_ms, runs[HUGGING_FACE]))
    num_tokens = sum(map(len, _tokens(runs[name][0])))
    for other, key in ((BASELINE, "tokens_equal_baseline"), (HUGGING_FACE, "tokens_equal_hf")):
        if other in parted:
            metrics[key] = within_float32(parted[other], num_tokens)
    return metrics


def parted_from(
    others: Sequence[str],
    name: str,
    runs: Runs,
    target: Target,
    prompts: list[list[int]],
    stopping: Stopping,
) -> dict[str, list[Difference]]:
    """Find the first token differences between `name` and plain decoders; meaningful at temperature 0 only."""
    got = _tokens(runs[name][0])
    expected = {other: _tokens(runs[other][0]) for other in others if other in runs}
    return {
        other: differences(
            target, prompts, tokens, got, eos_ids=stopping.eos_ids, max_new_tokens=stopping.max_new_tokens
        )
        for other, tokens in expected.items()
    }


def graph_metrics(name: str, warm_up: Mapping[str, GraphCounts], runs: Runs) -> dict[str, int]:
    """Counts of the graphs that a point's and the baseline's compiled loops made before and while they were timed."""
    loops = (name, BASELINE)
    while_timed = sum((run.graphs for loop in loops for repeat in runs[loop] for run in repeat), GraphCounts())
    made = sum((warm_up[loop] for loop in loops), while_timed)
    return {
        "graphs/compiled": made.compiled,
        "graphs/captured": made.captured,
        "graphs/not_captured": made.skipped,
        "graphs/while_timed": while_timed.compiled + while_timed.captured,
    }


def stage_times(
    batches: Sequence[Mapping[str, float]], *, num_passes: float, parts: PartTimes, num_nodes: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return seconds by stage over all batches, and milliseconds per round of the stages within a round.

    A compiled graph has no stages. For a compiled round, drafting and the target pass are taken from their separate
    timings, and the remainder counts as verification.
    """
    stages: dict[str, float] = defaultdict(float)
    for batch in batches:
        for stage, seconds in batch.items():
            stages[stage] += seconds
    rounds = {stage: seconds for stage, seconds in stages.items() if stage not in READING}
    per_round = {stage: 1000 * seconds / num_passes for stage, seconds in rounds.items() if num_passes}
    for graph, known in (("round", {"draft": parts.draft}), ("verify_and_commit", {})):
        if graph in per_round:
            alone = {"target": parts.v(num_nodes) * parts.one_row, **known}
            per_round |= {stage: 1000 * seconds for stage, seconds in alone.items()}
            per_round["verify"] = per_round.pop(graph) - 1000 * sum(alone.values())
    return dict(stages), per_round


def inner_metrics(inner: Tally, outer: Tally) -> dict[str, float | None]:
    """Alpha, tau and model passes per draft of a drafter that runs rounds of its own."""
    inside, num_drafts = inner.metrics(), float(outer.passes[1:].sum())
    return {
        "inner/alpha": inside["alpha/empirical"],
        "inner/tau": inside["tau"],
        "inner/passes": float(inner.passes.sum()) / num_drafts if num_drafts else None,
    }


def expert_metrics(in_rounds: TouchedExperts, parts: PartTimes) -> dict[str, float]:
    """Mean distinct experts per layer touched by a target pass, in rounds and in the timed passes."""
    found = {
        "experts/touched": in_rounds.per_layer,
        "experts/one_row": parts.row_experts.per_layer,
        "experts/deepest": parts.deepest_experts.per_layer,
    }
    return {key: value for key, value in found.items() if value is not None}


def walltime(own: list[list[Timed]]) -> float:
    """Seconds to decode all prompts, prefill included; median over the repeats."""
    return statistics.median(sum(run.seconds for run in repeat) for repeat in own)


def _tokens(batches: list[Timed]) -> list[list[int]]:
    return [tokens for run in batches for tokens in run.generation.tokens]


def decode_ms(batches: list[Timed]) -> float:
    """Milliseconds per decoded token, prefill excluded."""
    return 1000 * sum(run.decode_seconds for run in batches) / max(1, sum(run.num_decoded for run in batches))


def end_to_end_ms(batches: list[Timed]) -> float:
    """Milliseconds per token, prefill included."""
    return 1000 * sum(run.seconds for run in batches) / sum(len(tokens) for tokens in _tokens(batches))


def occupancy(batches: list[Timed]) -> float:
    """Share of rows still decoding in target passes; 1 where no row waits for a slower one."""
    busy = sum(run.num_decoded if run.generation.tally is None else run.generation.tally.num_rounds for run in batches)
    return busy / max(1, sum(run.num_places for run in batches)) or 1.0


def _speed(own: list[list[Timed]], baseline: list[list[Timed]]) -> dict[str, float]:
    """Compute speedups and latencies; a speedup is the median of ratios per repeat, which cancel machine drift."""
    ratios = [decode_ms(theirs) / decode_ms(ours) for ours, theirs in zip(own, baseline, strict=True)]
    end_to_end = [end_to_end_ms(theirs) / end_to_end_ms(ours) for ours, theirs in zip(own, baseline, strict=True)]
    latencies = [
        statistics.median(seconds)
        for batch in range(len(own[0]))
        for seconds in zip(*(repeat[batch].latencies for repeat in own), strict=True)
    ]
    p50, p90, p99 = np.percentile(latencies, [50, 90, 99]).tolist()
    return {
        "speedup/measured": statistics.median(ratios),
        "speedup/measured_low": min(ratios),
        "speedup/measured_high": max(ratios),
        "speedup/end_to_end": statistics.median(end_to_end),
        "ms_per_token": statistics.median(decode_ms(repeat) for repeat in own),
        "baseline_ms_per_token": statistics.median(decode_ms(repeat) for repeat in baseline),
        "baseline_end_to_end_ms_per_token": statistics.median(end_to_end_ms(repeat) for repeat in baseline),
        "latency/p50": p50,
        "latency/p90": p90,
        "latency/p99": p99,
    }


def token_latency(own: list[list[Timed]], baseline: list[list[Timed]]) -> dict[str, float]:
    """Spread of the time between tokens, and of the time per token from prompt to prompt.

    Speculation leaves the distribution of the output, and with it its variance, as it is. The waiting times spread
    more: the tokens of a round arrive together, after a longer wait.

    Returns:
        Milliseconds by metric; empty unless each batch is one prompt.
    """
    if any(run.num_rows is not None or len(run.generation.tokens) > 1 for repeat in own for run in repeat):
        return {}
    metrics = {}
    for prefix, repeats in (("", own), ("baseline_", baseline)):
        if gaps := [gap for repeat in repeats for run in repeat for gap in _gaps_ms(run)]:
            metrics[f"{prefix}inter_token_ms/sd"] = float(np.std(gaps))
            metrics[f"{prefix}inter_token_ms/p99"] = float(np.percentile(gaps, 99))
        of_prompts = [
            statistics.median(decode_ms([run]) for run in runs)
            for runs in zip(*repeats, strict=True)
            if runs[0].num_decoded
        ]
        if len(of_prompts) > 1:
            metrics[f"{prefix}ms_per_token/sd"] = statistics.stdev(of_prompts)
    return metrics


def _gaps_ms(run: Timed) -> list[float]:
    """Milliseconds from each token to the next, the prefill's being the first: 0 between tokens of the same round."""
    at_once = max(0, run.num_decoded - len(run.round_seconds))
    return [1000 * seconds for seconds in run.round_seconds] + [0.0] * at_once


def draft_and_target_time(tally: Tally, parts: PartTimes) -> tuple[float, float]:
    """Mean d and v over rounds, in one-row target passes; the tally has at least one pass."""
    passes = tally.passes.tolist()
    times = [(count, parts.c * parts.depth(nodes), parts.v(nodes)) for nodes, count in enumerate(passes)]
    d, v = (sum(count * each[part] for count, *each in times) / sum(passes) for part in (0, 1))
    return d, v


def _seconds_of_parts(run: Timed, parts: PartTimes) -> float:
    """Decoding time in seconds if every round, or plain decoding step, took only the sum of its parts."""
    generation = run.generation
    time = 1.0 if generation.tally is None else sum(draft_and_target_time(generation.tally, parts))
    return generation.num_passes * time * parts.one_row


def time_over_parts(with_parts: TimedWithParts) -> float:
    """Decoding time over the sum of its parts' times: the overhead factor of a loop.

    The result is the median over the timed batches.
    """
    return statistics.median(
        run.decode_seconds / _seconds_of_parts(run, parts) for run, parts in with_parts if run.num_places
    )


def _prediction(metrics: dict[str, Any], tally: Tally, parts: PartTimes) -> dict[str, float]:
    """Predict speedups from measured alpha and costs: by theory, and for a loop without overhead.

    Means are over the actual drafts. Where every draft has gamma nodes, the formulas are those of Leviathan et al.
    """
    prediction = {"c": parts.c, "one_row_ms": 1000 * parts.one_row}
    tau, eq1 = metrics["tau"], metrics.get("tau/eq1")
    passes = tally.passes.tolist()
    num_passes = tally.num_passes
    if not (tau and num_passes):
        return prediction
    gamma = sum(count * parts.depth(nodes) for nodes, count in enumerate(passes)) / num_passes
    num_nodes = tally.num_drafted / num_passes
    prediction["gamma/mean"] = gamma
    prediction["nodes/mean"] = num_nodes
    prediction["d"], prediction["v"] = draft_and_target_time(tally, parts)
    prediction["operations/counted"] = (gamma * parts.operations + parts.pass_operations(num_nodes)) / tau
    if eq1 is not None:
        prediction["speedup/predicted"] = theory.zero_overhead_speedup(eq1, prediction["d"], 1)
        prediction["operations"] = (gamma * parts.operations + num_nodes + 1) / eq1
    filled = tau * metrics["occupancy"]
    prediction["speedup/zero_overhead"] = theory.zero_overhead_speedup(filled, prediction["d"], prediction["v"])
    if tally.shape is Shape.CHAIN and num_passes == tally.num_rounds:  # rows of a batch have one gamma
        prediction["speedup/oracle_gamma"] = _speed_of_oracle_gamma(tau, tally, parts)
    return prediction


def _speed_of_oracle_gamma(tau: float, tally: Tally, parts: PartTimes) -> float:
    """Zero-overhead speedup if every round had drafted exactly its accepted nodes.

    No policy can know these in advance. The figure is computed from the actual rounds, so it bounds a policy from
    above only where these rounds drafted as deep as that policy may.
    """
    rounds = list(enumerate(tally.accepted.sum(0).tolist()))
    d = sum(count * accepted * parts.c for accepted, count in rounds) / tally.num_rounds
    v = sum(count * parts.v(accepted) for accepted, count in rounds) / tally.num_rounds
    return theory.zero_overhead_speedup(tau, d, v)
