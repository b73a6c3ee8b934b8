"""From counts and clock readings to the metrics of a record. Pure functions; ARCHITECTURE.md defines each name."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.timing import Parts, Timed
from framework import theory
from framework.draft import Shape
from framework.equality import Difference, differences, within_float32
from framework.tally import Tally
from framework.target import Target

YARDSTICK, HUGGING_FACE = "yardstick", "hugging_face"

Runs = dict[str, list[list[Timed]]]
"""Timed batches: runs[name][repeat] lists them in order."""


BesideParts = Sequence[tuple[Timed, Parts]]
"""Timed batches of one loop, each with its parts as they were timed right after it."""


def all_metrics(
    name: str,
    tally: Tally,
    beside: Mapping[str, BesideParts],
    runs: Runs,
    parted: dict[str, list[Difference]],
) -> dict[str, Any]:
    """Every metric of the point `name`: alpha and tau, speed, prediction, and equality where `parted` tells of it.

    Args:
        tally: what its rounds did.
        beside: of the point and of the yardstick.
        runs: of all decoders.
        parted: by other decoder, where tokens differ from its.
    """
    metrics: dict[str, Any] = tally.metrics()
    metrics |= _speed(runs[name], runs[YARDSTICK])
    metrics["occupancy"] = occupancy(runs[name][0]) / occupancy(runs[YARDSTICK][0])
    metrics |= _prediction(metrics, tally, Parts.middle([parts for _, parts in beside[name]]))
    # Texts of one token came with reading their prompts: nothing was decoded beside the parts.
    decoded = all(any(run.num_places for run, _ in beside[each]) for each in (YARDSTICK, name))
    if "speedup/attainable" in metrics and decoded:
        metrics["time_over_parts"] = time_over_parts(beside[name])
        metrics["efficiency"] = time_over_parts(beside[YARDSTICK]) / metrics["time_over_parts"]
        metrics["overhead"] = 1 - metrics["efficiency"]
    if HUGGING_FACE in runs:
        metrics["hf_generate_ms_per_token"] = statistics.median(map(decode_ms, runs[HUGGING_FACE]))
        metrics["hf_generate_end_to_end_ms_per_token"] = statistics.median(map(end_to_end_ms, runs[HUGGING_FACE]))
    num_tokens = sum(map(len, _tokens(runs[name][0])))
    for other, key in ((YARDSTICK, "tokens_equal_yardstick"), (HUGGING_FACE, "tokens_equal_hf")):
        if other in parted:
            metrics[key] = within_float32(parted[other], num_tokens)
    return metrics


def parted_from(
    others: Sequence[str], name: str, runs: Runs, target: Target, prompts: list[list[int]]
) -> dict[str, list[Difference]]:
    """Where the tokens of `name` first part from those of plain decoders; means something at temperature 0 only."""
    got = _tokens(runs[name][0])
    return {other: differences(target, prompts, _tokens(runs[other][0]), got) for other in others if other in runs}


def stage_times(
    batches: list[Timed], *, num_passes: float, parts: Parts, num_nodes: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds by stage over all batches, and milliseconds per round of the stages that belong to rounds.

    A program has no stages: of a round that is one, drafting and the target's pass are what these parts take alone, and
    the rest is verifying.
    """
    stages: dict[str, float] = defaultdict(float)
    for run in batches:
        for stage, seconds in run.stages.items():
            stages[stage] += seconds
    rounds = {stage: seconds for stage, seconds in stages.items() if stage not in ("prefill", "begin")}
    per_round = {stage: 1000 * seconds / num_passes for stage, seconds in rounds.items() if num_passes}
    for program, known in (("round", {"draft": parts.draft}), ("judge", {})):
        if program in per_round:
            alone = {"target": parts.v(num_nodes) * parts.one_row, **known}
            per_round |= {stage: 1000 * seconds for stage, seconds in alone.items()}
            per_round["verify"] = per_round.pop(program) - 1000 * sum(alone.values())
    return dict(stages), per_round


def inner_metrics(inner: Tally, outer: Tally) -> dict[str, float | None]:
    """Of a drafter that runs rounds of its own: their alpha and tau, and how many passes of its model a draft takes."""
    inside, num_drafts = inner.metrics(), float(outer.passes[1:].sum())
    return {
        "inner/alpha": inside["alpha/empirical"],
        "inner/tau": inside["tau"],
        "inner/passes": float(inner.passes.sum()) / num_drafts if num_drafts else None,
    }


def walltime(own: list[list[Timed]]) -> float:
    """Seconds to decode all prompts, reading them included; median over the repeats."""
    return statistics.median(sum(run.seconds for run in repeat) for repeat in own)


def _tokens(batches: list[Timed]) -> list[list[int]]:
    return [tokens for run in batches for tokens in run.generation.tokens]


def decode_ms(batches: list[Timed]) -> float:
    """Milliseconds per decoded token, prompts' reading excluded."""
    return 1000 * sum(run.decode_seconds for run in batches) / max(1, sum(run.num_decoded for run in batches))


def end_to_end_ms(batches: list[Timed]) -> float:
    """Milliseconds per token, prompts' reading included."""
    return 1000 * sum(run.seconds for run in batches) / sum(len(tokens) for tokens in _tokens(batches))


def occupancy(batches: list[Timed]) -> float:
    """Share of the target passes' rows that were still decoding; 1 where nobody waits for a slower row."""
    busy = sum(run.num_decoded if run.generation.tally is None else run.generation.tally.num_rounds for run in batches)
    return busy / max(1, sum(run.num_places for run in batches)) or 1.0


def _speed(own: list[list[Timed]], yardstick: list[list[Timed]]) -> dict[str, float]:
    """Ratios per repeat, because a machine that is slow in one repeat is slow for both; then their median."""
    ratios = [decode_ms(theirs) / decode_ms(ours) for ours, theirs in zip(own, yardstick, strict=True)]
    end_to_end = [end_to_end_ms(theirs) / end_to_end_ms(ours) for ours, theirs in zip(own, yardstick, strict=True)]
    latencies = [
        statistics.median(repeat[batch].seconds for repeat in own)
        for batch in range(len(own[0]))
        for _ in own[0][batch].generation.tokens
    ]
    p50, p90, p99 = np.percentile(latencies, [50, 90, 99]).tolist()
    return {
        "speedup/measured": statistics.median(ratios),
        "speedup/measured_low": min(ratios),
        "speedup/measured_high": max(ratios),
        "speedup/end_to_end": statistics.median(end_to_end),
        "ms_per_token": statistics.median(decode_ms(repeat) for repeat in own),
        "yardstick_ms_per_token": statistics.median(decode_ms(repeat) for repeat in yardstick),
        "yardstick_end_to_end_ms_per_token": statistics.median(end_to_end_ms(repeat) for repeat in yardstick),
        "latency/p50": p50,
        "latency/p90": p90,
        "latency/p99": p99,
    }


def draft_and_target_time(tally: Tally, parts: Parts) -> tuple[float, float]:
    """d and v of a mean round, in one-row target times; of a tally with at least one pass."""
    passes = tally.passes.tolist()
    times = [(count, parts.c * parts.depth(nodes), parts.v(nodes)) for nodes, count in enumerate(passes)]
    d, v = (sum(count * each[part] for count, *each in times) / sum(passes) for part in (0, 1))
    return d, v


def _seconds_of_parts(run: Timed, parts: Parts) -> float:
    """What decoding would have taken if a round, or a plain decoder's step, were its parts alone."""
    generation = run.generation
    num_passes = run.num_places / len(generation.tokens)
    time = 1.0 if generation.tally is None else sum(draft_and_target_time(generation.tally, parts))
    return num_passes * time * parts.one_row


def time_over_parts(beside: BesideParts) -> float:
    """What decoding takes, over what its parts alone would: how much a loop costs. Median over all that was timed."""
    return statistics.median(
        run.decode_seconds / _seconds_of_parts(run, parts) for run, parts in beside if run.num_places
    )


def _prediction(metrics: dict[str, Any], tally: Tally, parts: Parts) -> dict[str, float]:
    """What theory predicts from the measured alpha and cost, and what a loop of zero cost would reach.

    Every figure is over the drafts that were made. Where all have gamma nodes, these are the paper's formulas.
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
    if eq1 is not None:
        prediction["speedup/theorem"] = theory.attainable_speedup(eq1, prediction["d"], 1)
        prediction["operations"] = (gamma * parts.operations + num_nodes + 1) / eq1
    filled = tau * metrics["occupancy"]
    prediction["speedup/attainable"] = theory.attainable_speedup(filled, prediction["d"], prediction["v"])
    if tally.shape is Shape.CHAIN and num_passes == tally.num_rounds:  # rows of a batch have one gamma
        prediction["speedup/oracle_gamma"] = _speed_of_oracle_gamma(tau, tally, parts)
    return prediction


def _speed_of_oracle_gamma(tau: float, tally: Tally, parts: Parts) -> float:
    """What a loop of no cost would reach, had every round drafted just the nodes that were accepted.

    No policy can know these beforehand. The rounds are those that were made, so that it bounds others from above where
    they drafted as deep as those may.
    """
    rounds = list(enumerate(tally.accepted.sum(0).tolist()))
    d = sum(count * accepted * parts.c for accepted, count in rounds) / tally.num_rounds
    v = sum(count * parts.v(accepted) for accepted, count in rounds) / tally.num_rounds
    return theory.attainable_speedup(tau, d, v)
