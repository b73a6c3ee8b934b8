"""Measure points side by side: the yardstick and every drafter on the same prompts, interleaved, in one process."""

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
from rich.progress import Progress

from experiments.hugging_face import HuggingFaceGenerate
from experiments.provenance import provenance
from experiments.records import Record
from experiments.timing import Decoder, Parts, Timed, time_parts, timed
from framework import theory
from framework.autoregressive import Autoregressive
from framework.engine import Engine
from framework.equality import differences, within_float32
from framework.generation import Generation
from framework.prompts.prompt_set import Prompt, PromptSet
from framework.sampling import Sampling
from framework.stopping import Stopping
from framework.tally import Tally
from framework.target import Target
from framework.tracker import JsonlTracker, Point, tracked

YARDSTICK, HUGGING_FACE = "yardstick", "hugging_face"
PART_REPEATS = 25


@dataclass(frozen=True)
class Protocol:
    """How much is measured, the same for every point.

    Attributes:
        prompt_set: what is decoded, in this order, and how much was cut or left out.
        batch_size: rows decoded together.
        stopping: what ends a row.
        repeats: how often every batch is timed.
        seed: row i of the prompts decodes with seed + i.
        hugging_face: whether Hugging Face's generate is timed beside the yardstick (batch size 1 only).
    """

    prompt_set: PromptSet
    batch_size: int
    stopping: Stopping
    repeats: int
    seed: int
    hugging_face: bool

    def __post_init__(self) -> None:
        for key in ("batch_size", "repeats"):
            if not isinstance(getattr(self, key), int) or getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)!r}; allowed: a whole number >= 1")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"seed is {self.seed!r}; allowed: a whole number >= 0")

    @property
    def prompts(self) -> list[Prompt]:
        return self.prompt_set.prompts

    def batches(self) -> Iterator[tuple[list[int], list[list[int]], list[int]]]:
        """Indices, token ids and seeds of one batch after another."""
        for first in range(0, len(self.prompts), self.batch_size):
            rows = list(range(first, min(first + self.batch_size, len(self.prompts))))
            yield rows, [list(self.prompts[row].tokens) for row in rows], [self.seed + row for row in rows]


class Subject:
    """One point under measurement: its engine, and what was seen of it so far."""

    def __init__(self, point: Point, engine: Engine):
        self.point = point
        self.engine = engine
        self.tracker = JsonlTracker()
        self.tally = Tally(engine.gamma_policy.max_gamma, detailed=True)
        self.generations: list[Generation] = []
        self.rows: list[dict] = []
        self.parts: Parts | None = None


def measure(subjects: Sequence[Subject], target: Target, sampling: Sampling, protocol: Protocol) -> list[Record]:
    """Measure subjects that share target and sampling; write their records as they come.

    Returns:
        one record per subject, in their order.
    """
    started, start = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    decoders: dict[str, Decoder] = {YARDSTICK: Autoregressive(target=target, sampling=sampling)}
    if protocol.hugging_face and protocol.batch_size == 1:
        decoders[HUGGING_FACE] = HuggingFaceGenerate(target=target, sampling=sampling)
    decoders |= {subject.point.name: subject.engine for subject in subjects}
    # runs[name][repeat] lists the batches in order
    runs: dict[str, list[list[Timed]]] = {name: [[] for _ in range(protocol.repeats)] for name in decoders}
    batches = list(protocol.batches())
    with ExitStack() as stack, Progress(transient=True) as progress:
        for subject in subjects:
            stack.enter_context(tracked(subject.tracker, subject.point))
        temperature = f"T={sampling.temperature:g}"
        bar = progress.add_task(temperature, total=len(batches) * (len(subjects) + protocol.repeats * len(decoders)))
        for number, (rows, prompts, seeds) in enumerate(batches):
            for subject in subjects:
                progress.update(bar, description=f"{temperature} {subject.point.name}: counting")
                generation = subject.engine.generate(prompts, stopping=protocol.stopping, seeds=seeds, detailed=True)
                assert generation.tally is not None
                subject.tally.add(generation.tally)
                subject.generations.append(generation)
                if number == 0:
                    half = [
                        p + tokens[: len(tokens) // 2] for p, tokens in zip(prompts, generation.tokens, strict=True)
                    ]
                    subject.parts = time_parts(subject.engine, half, seeds=seeds, repeats=PART_REPEATS)
                progress.advance(bar)
            if number == 0:
                for decoder in decoders.values():
                    short = replace(protocol.stopping, max_new_tokens=min(8, protocol.stopping.max_new_tokens))
                    timed(decoder, prompts, short, seeds, target.device)
            for repeat in range(protocol.repeats):
                # Whoever comes first in one repeat comes last in another.
                names = list(decoders)[repeat:] + list(decoders)[:repeat]
                for name in names if repeat % 2 == 0 else reversed(names):
                    progress.update(bar, description=f"{temperature} {name}: timing")
                    runs[name][repeat].append(timed(decoders[name], prompts, protocol.stopping, seeds, target.device))
                    progress.advance(bar)
            for subject in subjects:
                for row in _prompt_rows(subject, rows, number, runs, target, protocol):
                    subject.rows.append(row)
                    subject.tracker.log_prompt(row)
        origin = provenance(target.device) | {"started": started, "seconds": time.perf_counter() - start}
        records = [_record(subject, runs, target, sampling, protocol) | origin for subject in subjects]
        for subject, record in zip(subjects, records, strict=True):
            subject.tracker.finish(record)
    return records


def _prompt_rows(
    subject: Subject,
    rows: list[int],
    number: int,
    runs: dict[str, list[list[Timed]]],
    target: Target,
    protocol: Protocol,
) -> Iterator[dict]:
    generation = subject.generations[number]
    seconds = statistics.median(repeat[number].seconds for repeat in runs[subject.point.name])
    yardstick_seconds = statistics.median(repeat[number].seconds for repeat in runs[YARDSTICK])
    for row, tokens, reason in zip(rows, generation.tokens, generation.finish_reasons, strict=True):
        prompt = protocol.prompts[row]
        yield {
            "name": prompt.name,
            "category": prompt.category,
            "prompt_tokens": len(prompt.tokens),
            "new_tokens": len(tokens),
            "seconds": seconds,
            "yardstick_seconds": yardstick_seconds,
            "finish_reason": reason,
            "seed": protocol.seed + row,
            "text": target.tokenizer.decode(tokens),
        }


def _record(
    subject: Subject,
    runs: dict[str, list[list[Timed]]],
    target: Target,
    sampling: Sampling,
    protocol: Protocol,
) -> Record:
    own, yardstick = runs[subject.point.name], runs[YARDSTICK]
    metrics: dict = subject.tally.metrics()
    metrics |= _speed(own, yardstick)
    metrics |= _prediction(subject, metrics)
    if HUGGING_FACE in runs:
        hugging_face = runs[HUGGING_FACE]
        metrics["hf_generate_ms_per_token"] = statistics.median(_end_to_end_ms(repeat) for repeat in hugging_face)
    if sampling.greedy:
        prompts = [list(prompt.tokens) for prompt in protocol.prompts]
        got = _tokens(own[0])
        num_tokens = sum(len(tokens) for tokens in got)
        for name, key in ((YARDSTICK, "tokens_equal_yardstick"), (HUGGING_FACE, "tokens_equal_hf")):
            if name in runs:
                metrics[key] = within_float32(differences(target, prompts, _tokens(runs[name][0]), got), num_tokens)
    stages: dict[str, float] = defaultdict(float)
    for run in own[0]:
        for stage, seconds in run.stages.items():
            stages[stage] += seconds
    num_passes = float(subject.tally.passes.sum())
    accepted = subject.tally.accepted.sum(0).tolist()
    return {
        "name": subject.point.name,
        "study": subject.point.study,
        "point": subject.point.settings,
        "config": subject.point.config,
        "seeds": [protocol.seed + row for row in range(len(protocol.prompts))],
        "counts": subject.tally.counts()
        | {
            "prompts": len(protocol.prompts),
            "prompts_truncated": protocol.prompt_set.num_truncated,
            "prompts_skipped": protocol.prompt_set.num_skipped,
        },
        "metrics": metrics,
        "stages": dict(stages),
        "stages_ms_per_round": {
            stage: 1000 * seconds / num_passes
            for stage, seconds in stages.items()
            if num_passes and stage not in ("prefill", "begin")
        },
        "rounds_histogram": {"accepted": accepted},
        "prompts": subject.rows,
    }


def _tokens(batches: list[Timed]) -> list[list[int]]:
    return [tokens for run in batches for tokens in run.generation.tokens]


def _decode_ms(batches: list[Timed]) -> float:
    """Milliseconds per decoded token, prompts' reading excluded."""
    return 1000 * sum(run.decode_seconds for run in batches) / max(1, sum(run.num_decoded for run in batches))


def _end_to_end_ms(batches: list[Timed]) -> float:
    """Milliseconds per token, prompts' reading included."""
    return 1000 * sum(run.seconds for run in batches) / sum(len(tokens) for tokens in _tokens(batches))


def _speed(own: list[list[Timed]], yardstick: list[list[Timed]]) -> dict:
    """Ratios per repeat, because a machine that is slow in one repeat is slow for both; then their median."""
    ratios = [_decode_ms(theirs) / _decode_ms(ours) for ours, theirs in zip(own, yardstick, strict=True)]
    end_to_end = [_end_to_end_ms(theirs) / _end_to_end_ms(ours) for ours, theirs in zip(own, yardstick, strict=True)]
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
        "ms_per_token": statistics.median(_decode_ms(repeat) for repeat in own),
        "yardstick_ms_per_token": statistics.median(_decode_ms(repeat) for repeat in yardstick),
        "yardstick_end_to_end_ms_per_token": statistics.median(_end_to_end_ms(repeat) for repeat in yardstick),
        "latency/p50": p50,
        "latency/p90": p90,
        "latency/p99": p99,
    }


def _prediction(subject: Subject, metrics: dict) -> dict:
    """What theory predicts from the measured alpha and cost, and what a loop of zero cost would reach."""
    parts, tally, gamma = subject.parts, subject.tally, subject.tally.max_gamma
    assert parts is not None
    c = parts.d / gamma if gamma else 0.0
    prediction: dict = {"c": c, "d": parts.d, "v": parts.v(gamma), "one_row_ms": 1000 * parts.one_row}
    alpha, tau = metrics["alpha/overlap"], metrics["tau"]
    if alpha is not None:
        alpha = min(alpha, 1.0)
        prediction["speedup/theorem"] = theory.speedup(alpha, gamma, c)
        prediction["operations"] = theory.operations_factor(alpha, gamma, parts.operations)
    passes = tally.passes.tolist()
    if tau and sum(passes):
        rows_time = sum(count * parts.v(nodes) for nodes, count in enumerate(passes)) / sum(passes)
        attainable = theory.attainable_speedup(tau, parts.d, rows_time)
        prediction["speedup/attainable"] = attainable
        prediction["efficiency"] = metrics["speedup/measured"] / attainable
        prediction["overhead"] = 1 - prediction["efficiency"]
    return prediction
