"""Measure points side by side: the yardstick and every drafter on the same prompts, interleaved, in one process."""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import numpy as np
import torch
from rich.progress import Progress

from experiments.divergence import Divergence
from experiments.hugging_face import HuggingFaceGenerate
from experiments.kept import Kept
from experiments.metrics import (
    HUGGING_FACE,
    YARDSTICK,
    Runs,
    all_metrics,
    inner_metrics,
    parted_from,
    stage_times,
    walltime,
)
from experiments.provenance import peak_memory_mb, provenance
from experiments.quality import quality
from experiments.records import Record
from experiments.timing import (
    Alone,
    Decoder,
    Parts,
    Timed,
    drafting_nothing,
    new_target_passes,
    time_parts_amid,
    timed,
)
from experiments.traced_text import traced_text
from framework.autoregressive import Autoregressive
from framework.draft import Outcome
from framework.drafter import learning_undone
from framework.engine import Engine
from framework.prompts.prompt_set import PromptSet
from framework.sampling import Sampling
from framework.stopping import Stopping
from framework.tally import Tally
from framework.target import Target
from framework.token_trace import TokenTrace
from framework.tracker import JsonlTracker, Point
from framework.verifiers.verifier import Guarantee

PART_BATCHES = 8  # beside so many batches at most, spread over all, the parts of a round are timed alone
PART_REPEATS = 9  # how often each of them
COSTS_REPEATS = 25  # and for gamma policies, which are told once
WARM_UP_TOKENS = 8
TRACED_PROMPTS, TRACED_TOKENS = 8, 128  # a record says of so many prompts, and tokens of each, who produced them


@dataclass(frozen=True)
class Plan:
    """How much is measured, the same for every point.

    Attributes:
        prompt_set: what is decoded, in this order, and how much was cut or left out.
        batch_size: rows decoded together.
        stopping: what ends a row.
        repeats: how often every batch is timed.
        seed: row i of the prompts decodes with seed + i.
        hugging_face: whether Hugging Face's generate is timed beside the yardstick (batch size 1 only).
        compiled: whether rounds and the yardstick's steps are programs.
    """

    prompt_set: PromptSet
    batch_size: int
    stopping: Stopping
    repeats: int
    seed: int
    hugging_face: bool
    compiled: bool = False

    def batches(self) -> list["Batch"]:
        """The prompts in order, batch_size of them at a time."""
        prompts = self.prompt_set.prompts
        rows = list(range(len(prompts)))
        return [
            Batch(
                number=number,
                rows=chunk,
                prompts=[list(prompts[row].tokens) for row in chunk],
                seeds=[self.seed + row for row in chunk],
            )
            for number, chunk in enumerate(rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size))
        ]


@dataclass(frozen=True)
class Batch:
    """Prompts decoded together: which they are, their token ids, and one seed each."""

    number: int
    rows: list[int]
    prompts: list[list[int]]
    seeds: list[int]


class Subject:
    """One point under measurement: its engine, and what was seen of it so far."""

    def __init__(self, point: Point, engine: Engine):
        self.point = point
        self.engine = engine
        self.tracker = JsonlTracker()
        self.tally = engine.new_tally(detailed=True)
        self.inner_tally: Tally | None = None  # of a drafter that runs rounds of its own
        self.divergence = Divergence(engine.verifier) if engine.verifier.guarantee is Guarantee.LOSSY else None
        self.counted: list[dict] = []  # what the untimed pass saw of every prompt
        self.rows: list[dict] = []
        self.record: Record | None = None
        self.error: Exception | None = None

    def raise_error(self) -> None:
        """Raise what ended this subject, if anything did: at the end, when the others have been measured."""
        if self.error:
            raise self.error


def measure(subjects: Sequence[Subject], target: Target, sampling: Sampling, plan: Plan, kept: Kept) -> list[Record]:
    """Measure subjects that share target and sampling; write their records as they come.

    A subject that raises keeps its error, and the others go on without it.

    Args:
        kept: what was made for this target before, such as programs; gets those that are made now.

    Returns:
        the records of those that finished, in their order.
    """
    started, start = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    origin = provenance(target.device) | {"started": started}
    bench = _Bench(subjects, target, sampling, plan, kept)
    # No refreshing thread: it would take its share of what is being timed.
    with Progress(transient=True, auto_refresh=False) as progress, ExitStack() as knew:
        batches = plan.batches()
        bar = progress.add_task("", total=len(batches) * (len(subjects) + plan.repeats * len(bench.decoders)))
        try:
            for subject in subjects:
                subject.tracker.start(subject.point)
                knew.enter_context(learning_undone(subject.engine.drafter))  # which later points may share
            for batch in batches:
                for doing in bench.take(batch):
                    progress.update(bar, description=f"T={sampling.temperature:g} {doing}", advance=1, refresh=True)
            for subject in bench.alive:
                with bench.ends_only(subject):
                    record = bench.record(subject) | origin
                    record["metrics"]["peak_memory_mb"] = peak_memory_mb(target.device)
                    subject.tracker.finish(record | {"measuring_seconds": time.perf_counter() - start})
                    subject.record = record
        except BaseException as error:  # an interrupt, or the yardstick itself: every point says what ended it
            for subject in bench.alive:
                subject.tracker.fail(error)
            raise
    return [subject.record for subject in subjects if subject.record]


class _Bench:
    """All decoders that are compared, and every timed run of theirs."""

    def __init__(self, subjects: Sequence[Subject], target: Target, sampling: Sampling, plan: Plan, kept: Kept):
        self.target, self.sampling, self.plan = target, sampling, plan
        plain = kept.part(
            f"plain decoding, {sampling}, compiled {plan.compiled}, ended by {plan.stopping.eos_ids}",
            lambda: Autoregressive(target=target, sampling=sampling, compiled=plan.compiled),
        )
        self.decoders: dict[str, Decoder] = {YARDSTICK: plain}
        # Hugging Face would need padding for a batch, and ends rows at other strings than ours.
        if plan.hugging_face and plan.batch_size == 1 and not plan.stopping.stop_strings:
            self.decoders[HUGGING_FACE] = HuggingFaceGenerate(target=target, sampling=sampling)
        self.decoders |= {subject.point.name: subject.engine for subject in subjects}
        self.subjects = {subject.point.name: subject for subject in subjects}
        passes = kept.part("target passes", lambda: new_target_passes(target))
        self._alone = Alone(target, compiled=plan.compiled, target_passes=passes)
        # Every loop is held against its own parts, timed beside it: the pace of a machine changes within seconds.
        self._loops = {YARDSTICK: drafting_nothing(subjects[0].engine)} if subjects else {}
        self._loops |= {subject.point.name: subject.engine for subject in subjects}
        self.beside: dict[str, list[tuple[Timed, Parts]]] = {name: [] for name in self._loops}
        num_batches = len(plan.batches())
        self._beside_parts = set(np.linspace(0, num_batches - 1, min(num_batches, PART_BATCHES)).astype(int).tolist())
        self.runs: Runs = {name: [[] for _ in range(plan.repeats)] for name in self.decoders}

    @property
    def alive(self) -> list[Subject]:
        """Subjects under measurement: not failed, not finished."""
        return [subject for subject in self.subjects.values() if not subject.error and not subject.record]

    @contextmanager
    def ends_only(self, subject: Subject | None) -> Iterator[None]:
        """What a subject raises ends that subject; what the yardstick raises (None) ends everything."""
        try:
            yield
        except Exception as error:
            if subject is None:
                raise
            subject.error = error
            subject.tracker.fail(error)
            del self.decoders[subject.point.name]

    def _once(self, name: str, *, is_last: bool) -> AbstractContextManager[None]:
        """Let a drafter that learns do so from the last of all passes over a batch: a user decodes a prompt once."""
        subject = self.subjects.get(name)
        return nullcontext() if subject is None or is_last else learning_undone(subject.engine.drafter)

    def take(self, batch: Batch) -> Iterator[str]:
        """Count and time one batch with everyone, and log its prompts; says after each step what was done."""
        if batch.number == 0:
            self._tell_costs(batch)
        for subject in self.alive:
            with self.ends_only(subject):
                self._count(subject, batch)
            yield f"counted {subject.point.name}"
        if batch.number == 0 or self.plan.compiled:
            self._warm_up(batch)
        for repeat in range(self.plan.repeats):
            # Whoever comes first in one repeat comes last in another.
            names = list(self.decoders)[repeat:] + list(self.decoders)[:repeat]
            for name in names if repeat % 2 == 0 else reversed(names):
                with self.ends_only(self.subjects.get(name)):
                    decoder, stopping = self.decoders[name], self.plan.stopping
                    with self._once(name, is_last=repeat == self.plan.repeats - 1):
                        run = timed(decoder, batch.prompts, stopping, batch.seeds, self.target.device)
                    self.runs[name][repeat].append(run)
                    if repeat == 0 and name in self._loops and batch.number in self._beside_parts:
                        parts = self._parts(self._loops[name], batch, run.generation.tokens, PART_REPEATS)
                        self.beside[name].append((run, parts))
                yield f"timed {name}"
        for subject in self.alive:
            for row in self._prompt_rows(subject, batch):
                subject.rows.append(row)
                subject.tracker.log_prompt(row)

    def _tell_costs(self, batch: Batch) -> None:
        """Let gamma policies that ask know what drafting and the target's passes cost, in the middle of a text."""
        asking = [subject for subject in self.alive if hasattr(subject.engine.gamma_policy, "use_costs")]
        if not asking:
            return
        plain = self.decoders[YARDSTICK].generate(batch.prompts, stopping=self.plan.stopping, seeds=batch.seeds)
        for subject in asking:
            with self.ends_only(subject):
                parts = self._parts(subject.engine, batch, plain.tokens, COSTS_REPEATS, every_depth=True)
                subject.engine.gamma_policy.use_costs(parts.costs)  # type: ignore[attr-defined]

    def _parts(
        self, loop: Engine, batch: Batch, tokens: list[list[int]], repeats: int, *, every_depth: bool = False
    ) -> Parts:
        """The parts of a loop's round, in the middle of what was decoded."""
        with learning_undone(loop.drafter):
            return time_parts_amid(
                loop,
                batch.prompts,
                tokens,
                seeds=batch.seeds,
                repeats=repeats,
                alone=self._alone,
                max_new_tokens=self.plan.stopping.max_new_tokens,
                every_depth=every_depth,
            )

    def _count(self, subject: Subject, batch: Batch) -> None:
        """The untimed pass, whose sums need every law in full."""
        traced = min(batch.rows) < TRACED_PROMPTS
        trace = TokenTrace(len(batch.rows), most_tokens=TRACED_TOKENS if traced else 0)

        def watch(outcome: Outcome) -> None:
            trace.watch(outcome)
            if subject.divergence:
                subject.divergence.watch(outcome)

        with self._once(subject.point.name, is_last=False):
            generation = subject.engine.generate(
                batch.prompts, stopping=self.plan.stopping, seeds=batch.seeds, detailed=True, watch=watch
            )
        assert generation.tally is not None
        subject.tally.add(generation.tally)
        if inner := getattr(subject.engine.drafter, "inner_tally", None):
            subject.inner_tally = subject.inner_tally or replace(inner)  # the same settings, and no counts yet
            subject.inner_tally.add(inner)
        for row, tokens in enumerate(trace.tokens(generation.tokens)):
            seen: dict = {"accepted": trace.accepted[row], "tested": trace.tested[row]}
            if batch.rows[row] < TRACED_PROMPTS:
                seen["tokens"] = traced_text(tokens, self.target.tokenizer)
            subject.counted.append(seen)

    def _warm_up(self, batch: Batch) -> None:
        stopping = self.plan.stopping
        # A program is made for rows of one width, which depends on how much may be added to a prompt.
        few = stopping.max_new_tokens if self.plan.compiled else min(WARM_UP_TOKENS, stopping.max_new_tokens)
        short = replace(stopping, max_new_tokens=few)
        for name, decoder in list(self.decoders.items()):
            with self.ends_only(self.subjects.get(name)), self._once(name, is_last=False):
                timed(decoder, batch.prompts, short, batch.seeds, self.target.device)

    def _prompt_rows(self, subject: Subject, batch: Batch) -> Iterator[dict]:
        """What is known of each prompt of a batch; seconds are those of its batch, in lists of every repeat."""
        own, yardstick = (
            [repeat[batch.number] for repeat in self.runs[name]] for name in (subject.point.name, YARDSTICK)
        )
        generation = own[0].generation
        ratios = generation.tally.metrics() if generation.tally and len(batch.rows) == 1 else {}
        for index, row in enumerate(batch.rows):
            prompt, tokens = self.plan.prompt_set.prompts[row], generation.tokens[index]
            yield {
                "name": prompt.name,
                "category": prompt.category,
                "prompt_tokens": len(prompt.tokens),
                "new_tokens": len(tokens),
                "seconds": statistics.median(run.seconds for run in own),
                "yardstick_seconds": statistics.median(run.seconds for run in yardstick),
                "decode_seconds": [run.decode_seconds for run in own],
                "yardstick_decode_seconds": [run.decode_seconds for run in yardstick],
                "yardstick_new_tokens": len(yardstick[0].generation.tokens[index]),
                "alpha": ratios.get("alpha/empirical"),
                "tau": ratios.get("tau"),
                "finish_reason": generation.finish_reasons[index],
                "seed": batch.seeds[index],
                "text": self.target.tokenizer.decode(tokens),
                **subject.counted[row],
            } | ({} if prompt.reference is None else {"reference": prompt.reference})

    def record(self, subject: Subject) -> Record:
        """Everything known of a subject once all batches were taken, but for where and when."""
        tally, prompt_set = subject.tally, self.plan.prompt_set
        prompts = [list(prompt.tokens) for prompt in prompt_set.prompts]
        name, parted = subject.point.name, {}
        # In half precision, passes of different shape break near-ties differently: equality is no test there.
        if self.sampling.greedy and self.target.model.model.dtype in (torch.float32, torch.float64):
            parted = parted_from((YARDSTICK, HUGGING_FACE), name, self.runs, self.target, prompts)
        metrics = all_metrics(name, tally, self.beside, self.runs, parted)
        answers = [tokens for run in self.runs[name][0] for tokens in run.generation.tokens]
        metrics |= quality(
            [self.target.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in answers],
            [prompt.reference for prompt in prompt_set.prompts],
        )
        metrics |= subject.divergence.metrics() if subject.divergence else {}
        metrics |= inner_metrics(subject.inner_tally, tally) if subject.inner_tally else {}
        stages, stages_per_round = stage_times(
            self.runs[name][0],
            num_passes=float(tally.passes.sum()),
            parts=Parts.middle([parts for _, parts in self.beside[name]]),
            num_nodes=metrics.get("nodes/mean", 0.0),
        )
        return {
            "name": name,
            "study": subject.point.study,
            "point": subject.point.settings,
            "config": subject.point.config,
            "seconds": walltime(self.runs[name]),
            "chat": prompt_set.chat,
            "seeds": [self.plan.seed + row for row in range(len(prompts))],
            "counts": tally.counts()
            | ({"inner": subject.inner_tally.counts()} if subject.inner_tally else {})
            | {
                "prompts": len(prompts),
                "prompts_truncated": prompt_set.num_truncated,
                "prompts_skipped": prompt_set.num_skipped,
            },
            "metrics": metrics,
            "differences": {other: [asdict(found) for found in places] for other, places in parted.items()},
            "stages": stages,
            "stages_ms_per_round": stages_per_round,
            "rounds_histogram": {"accepted": tally.accepted.sum(0).tolist()},
            "prompts": subject.rows,
        }
