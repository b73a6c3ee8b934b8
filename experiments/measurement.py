"""Measure points side by side: the yardstick and every drafter on the same prompts, interleaved, in one process."""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
import torch
from rich.progress import Progress

from experiments.divergence import POSITIONS, Divergence
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
from experiments.ranks import Ranks
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
from framework.drafter import learning_undone, remembers
from framework.engine import Engine
from framework.prompts.prompt_set import PromptSet
from framework.sampling import Sampling
from framework.stopping import Stopping
from framework.tally import Tally
from framework.target import Target
from framework.token_trace import TokenTrace
from framework.tracker import JsonlTracker, NoTracker, Point, Tracker, describe
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


@dataclass
class Seen:
    """What a rank saw of a batch, ready to be handed to the others; by names of decoders, which are the points' own.

    Attributes:
        runs: timed runs, one per repeat.
        parts: the parts of a loop's round, timed right after the first run.
        tallies: of the untimed pass.
        inner_tallies: of the drafters that run rounds of their own.
        divergences: of a lossy rule, position by position.
        counted: what the untimed pass saw of every prompt.
        errors: what ended a decoder.
    """

    batch: Batch
    runs: dict[str, list[Timed]] = field(default_factory=dict)
    parts: dict[str, Parts] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)
    inner_tallies: dict[str, Tally] = field(default_factory=dict)
    divergences: dict[str, list[float]] = field(default_factory=dict)
    counted: dict[str, list[dict]] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)


class Subject:
    """One point under measurement: its engine, and what was seen of it so far."""

    def __init__(self, point: Point, engine: Engine):
        self.point = point
        self.engine = engine
        self.tracker: Tracker = JsonlTracker()
        self.tally = engine.new_tally(detailed=True)
        self.inner_tally: Tally | None = None  # of a drafter that runs rounds of its own
        self.divergences: list[float] = []
        self.rows: list[dict] = []
        self.record: Record | None = None
        self.error: Exception | None = None

    def raise_error(self) -> None:
        """Raise what ended this subject, if anything did: at the end, when the others have been measured."""
        if self.error:
            raise self.error


def measure(
    subjects: Sequence[Subject],
    target: Target,
    sampling: Sampling,
    plan: Plan,
    kept: Kept,
    ranks: Ranks | None = None,
) -> list[Record]:
    """Measure subjects that share target and sampling; write their records as they come.

    A subject that raises keeps its error, and the others go on without it.

    Args:
        kept: what was made for this target before, such as programs; gets those that are made now.
        ranks: who measures: batches are dealt out in turn, whole, so that rows have the neighbours they always have.
            All see what each of them saw, in the batches' order, and rank 0 writes the records. None is this process.

    Returns:
        the records of those that finished, in their order; none on other ranks than 0.

    Raises:
        ValueError: there are more ranks than batches.
        ConnectionError: a rank is lost.
    """
    ranks = ranks or Ranks()
    batches = plan.batches()
    if ranks.size > len(batches):
        raise ValueError(
            f"{ranks.size} ranks share {len(batches)} batches; allowed: a batch for each at least. Start fewer, or set "
            "prompts.count higher or batch_size lower"
        )
    started, start = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    origin = provenance(target.device) | {"started": started, "ranks": ranks.size}
    for subject in subjects:
        if ranks.size > 1 and remembers(subject.engine.drafter):
            raise ValueError(
                f"{subject.point.name} learns from every prompt, and {ranks.size} ranks would see some of them each; "
                "measure it with one, or choose another drafter"
            )
    bench = _Bench(subjects, target, sampling, plan, kept, ranks)
    # No refreshing thread: it would take its share of what is being timed.
    with Progress(transient=True, auto_refresh=False, disable=ranks.number > 0) as progress, ExitStack() as knew:
        own = batches[ranks.number :: ranks.size]
        bar = progress.add_task("", total=len(own) * (len(subjects) + plan.repeats * len(bench.decoders)))
        try:
            for subject in subjects:
                if ranks.number > 0:
                    subject.tracker = NoTracker()
                subject.tracker.start(subject.point)
                knew.enter_context(learning_undone(subject.engine.drafter))  # which later points may share
            for wave in (batches[place : place + ranks.size] for place in range(0, len(batches), ranks.size)):
                seen = Seen(wave[ranks.number]) if ranks.number < len(wave) else None
                for doing in bench.take(seen) if seen else ():
                    progress.update(bar, description=f"T={sampling.temperature:g} {doing}", advance=1, refresh=True)
                for each in ranks.all(seen):
                    if each:
                        bench.keep(each)
                if not bench.alive:
                    break
            most_memory = max(ranks.all(peak_memory_mb(target.device)))
            for subject in bench.alive if ranks.number == 0 else ():
                with bench.ends_only(subject):
                    record = bench.record(subject) | origin
                    record["metrics"]["peak_memory_mb"] = most_memory
                    subject.tracker.finish(record | {"measuring_seconds": time.perf_counter() - start})
                    subject.record = record
        except BaseException as error:  # an interrupt, or the yardstick itself: every point says what ended it
            for subject in bench.alive:
                subject.tracker.fail(error)
            raise
    return [subject.record for subject in subjects if subject.record]


class _Bench:
    """All decoders that are compared, and every timed run of theirs."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        target: Target,
        sampling: Sampling,
        plan: Plan,
        kept: Kept,
        ranks: Ranks,
    ):
        self.target, self.sampling, self.plan, self.ranks = target, sampling, plan, ranks
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
    def ends_only(self, subject: Subject) -> Iterator[None]:
        """What a subject raises ends that subject."""
        try:
            yield
        except Exception as error:
            self._end(subject, error)

    def _end(self, subject: Subject, error: Exception) -> None:
        subject.error = error
        subject.tracker.fail(error)
        del self.decoders[subject.point.name]

    @contextmanager
    def _catching(self, name: str, seen: Seen) -> Iterator[None]:
        """What a decoder raises is for all ranks to know."""
        try:
            yield
        except Exception as error:
            if self.ranks.size > 1:  # not every error can be sent
                told = describe(error)
                error = RuntimeError(f"on rank {self.ranks.number}: {told['error']}\n{told['traceback']}")
            seen.errors[name] = error

    def _once(self, name: str, *, is_last: bool) -> AbstractContextManager[None]:
        """Let a drafter that learns do so from the last of all passes over a batch: a user decodes a prompt once."""
        subject = self.subjects.get(name)
        return nullcontext() if subject is None or is_last else learning_undone(subject.engine.drafter)

    def take(self, seen: Seen) -> Iterator[str]:
        """Count and time a batch with everyone; says after each step what was done. The yardstick's error ends it."""
        batch = seen.batch
        is_first = batch.number == self.ranks.number
        if is_first:
            self._tell_costs(seen)
        if YARDSTICK in seen.errors:
            return
        for subject in self.alive:
            if subject.point.name not in seen.errors:
                with self._catching(subject.point.name, seen):
                    self._count(subject, seen)
            yield f"counted {subject.point.name}"
        if is_first or self.plan.compiled:
            self._warm_up(seen)
        for repeat in range(self.plan.repeats):
            # Whoever comes first in one repeat comes last in another.
            names = list(self.decoders)[repeat:] + list(self.decoders)[:repeat]
            for name in names if repeat % 2 == 0 else reversed(names):
                if any(failed not in self.subjects for failed in seen.errors):
                    return
                if name not in seen.errors:
                    with self._catching(name, seen), self._once(name, is_last=repeat == self.plan.repeats - 1):
                        self._time(name, seen)
                yield f"timed {name}"

    def keep(self, seen: Seen) -> None:
        """Add what was seen of the next batch, by whichever rank, and log its prompts.

        Raises:
            Exception: what ended the yardstick, or what a tracker raised.
        """
        for name, error in seen.errors.items():
            if name not in self.subjects:
                raise error
            if name in self.decoders:
                self._end(self.subjects[name], error)
        for name, runs in seen.runs.items():
            for repeat, run in enumerate(runs):
                self.runs[name][repeat].append(run)
            if name in seen.parts:
                self.beside[name].append((runs[0], seen.parts[name]))
        for subject in self.alive:
            name = subject.point.name
            subject.tally.add(seen.tallies[name])
            if name in seen.inner_tallies:
                inner = seen.inner_tallies[name]
                subject.inner_tally = subject.inner_tally or inner.emptied()
                subject.inner_tally.add(inner)
            # As many as one rank alone would have looked at.
            subject.divergences += seen.divergences[name][: POSITIONS - len(subject.divergences)]
            for row in self._prompt_rows(name, seen):
                subject.rows.append(row)
                subject.tracker.log_prompt(row)

    def _time(self, name: str, seen: Seen) -> None:
        batch, runs = seen.batch, seen.runs.setdefault(name, [])
        decoder, stopping = self.decoders[name], self.plan.stopping
        runs.append(timed(decoder, batch.prompts, stopping, batch.seeds, self.target.device))
        if len(runs) == 1 and name in self._loops and batch.number in self._beside_parts:
            seen.parts[name] = self._parts(self._loops[name], batch, runs[0].generation.tokens, PART_REPEATS)

    def _tell_costs(self, seen: Seen) -> None:
        """Let gamma policies that ask know what drafting and the target's passes cost, in the middle of a text."""
        asking = [subject for subject in self.alive if hasattr(subject.engine.gamma_policy, "use_costs")]
        if not asking:
            return
        batch = seen.batch
        with self._catching(YARDSTICK, seen):
            plain = self.decoders[YARDSTICK].generate(batch.prompts, stopping=self.plan.stopping, seeds=batch.seeds)
        if YARDSTICK in seen.errors:
            return
        for subject in asking:
            with self._catching(subject.point.name, seen):
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

    def _count(self, subject: Subject, seen: Seen) -> None:
        """The untimed pass, whose sums need every law in full."""
        batch, name, verifier = seen.batch, subject.point.name, subject.engine.verifier
        lossy = verifier.guarantee is Guarantee.LOSSY
        divergence = Divergence(verifier, most=POSITIONS - len(subject.divergences) if lossy else 0)
        traced = min(batch.rows) < TRACED_PROMPTS
        trace = TokenTrace(len(batch.rows), most_tokens=TRACED_TOKENS if traced else 0)

        def watch(outcome: Outcome) -> None:
            trace.watch(outcome)
            divergence.watch(outcome)

        with self._once(subject.point.name, is_last=False):
            generation = subject.engine.generate(
                batch.prompts, stopping=self.plan.stopping, seeds=batch.seeds, detailed=True, watch=watch
            )
        assert generation.tally is not None
        seen.tallies[name], seen.divergences[name] = generation.tally, divergence.found
        if inner := getattr(subject.engine.drafter, "inner_tally", None):
            seen.inner_tallies[name] = inner
        seen.counted[name] = [
            {"accepted": trace.accepted[row], "tested": trace.tested[row]}
            | ({"tokens": traced_text(tokens, self.target.tokenizer)} if batch.rows[row] < TRACED_PROMPTS else {})
            for row, tokens in enumerate(trace.tokens(generation.tokens))
        ]

    def _warm_up(self, seen: Seen) -> None:
        batch, stopping = seen.batch, self.plan.stopping
        # A program is made for rows of one width, which depends on how much may be added to a prompt.
        few = stopping.max_new_tokens if self.plan.compiled else min(WARM_UP_TOKENS, stopping.max_new_tokens)
        short = replace(stopping, max_new_tokens=few)
        for name, decoder in self.decoders.items():
            if name in seen.errors:
                continue
            with self._catching(name, seen), self._once(name, is_last=False):
                timed(decoder, batch.prompts, short, batch.seeds, self.target.device)

    def _prompt_rows(self, name: str, seen: Seen) -> Iterator[dict]:
        """What is known of each prompt of a batch; seconds are those of its batch, in lists of every repeat."""
        batch, own, yardstick = seen.batch, seen.runs[name], seen.runs[YARDSTICK]
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
                **seen.counted[name][index],
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
        if found := subject.divergences:
            metrics["divergence/total_variation"] = sum(found) / len(found)
        metrics |= inner_metrics(subject.inner_tally, tally) if subject.inner_tally else {}
        stages, stages_per_round = stage_times(
            self.runs[name][0],
            num_passes=tally.num_passes,
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
