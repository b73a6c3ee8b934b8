"""Counts and timings of one batch, for every compared decoder."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np

from experiments.measurement.divergence import POSITIONS, Divergence
from experiments.measurement.experts import NO_EXPERTS, ExpertCounter, TouchedExperts
from experiments.measurement.metrics import (
    BASELINE,
    HUGGING_FACE,
)
from experiments.measurement.plan import Arrivals, Batch, Candidate, Plan, alive
from experiments.measurement.ranks import Ranks
from experiments.measurement.resource_cache import ResourceCache
from experiments.measurement.round_timing import provide_profile, run_every_gamma
from experiments.measurement.serving import Served, serve
from experiments.measurement.timing import (
    Decoder,
    PartTimer,
    PartTimes,
    Timed,
    drafting_nothing,
    new_target_passes,
    time_parts_amid,
    timed,
)
from experiments.measurement.traced_text import traced_row
from experiments.peers.hugging_face import HuggingFaceGenerate
from experiments.tracking.tracker import describe
from framework.core.draft import Outcome, Shape
from framework.core.drafter import preserve_learned_state
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.refill import Queue
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.gamma_policies.gamma_policy import is_cost_aware
from framework.gamma_policies.round_profile import is_profiled
from framework.metrics.graph_counts import GraphCounts, counted_graphs
from framework.metrics.stopwatch import Block
from framework.metrics.tally import Tally
from framework.metrics.token_trace import TokenTrace
from framework.models.target import Target
from framework.models.tensor_parallel import agreed
from framework.verifiers.teacher_forced import TeacherForced
from framework.verifiers.verifier import Guarantee

PART_BATCHES = 8  # the parts of a round are timed next to at most this many batches, spread evenly over all batches
PART_REPEATS = 9  # timings of each part per batch
COSTS_REPEATS = 25  # timings for gamma policies, which get their costs once
WARM_UP_TOKENS = 8
TRACED_PROMPTS, TRACED_TOKENS = 8, 128  # prompts, and tokens of each, whose producer is recorded


@dataclass
class BatchResult:
    """Results of one batch on one rank, ready to be sent to the other ranks.

    Every mapping is keyed by decoder name; a candidate's decoder has the name of its point.

    Attributes:
        runs: timed runs, one per repeat.
        stages: seconds by stage.
        traces: the single runs of the stages, in the first batch.
        graphs: graphs that warming up compiled or captured.
        parts: times of a round's parts, taken right after the first run.
        tallies: counts of the untimed pass.
        inner_tallies: counts of drafters that run rounds of their own.
        teacher_forced: counts at every position of the target's text, if the plan asks for them.
        divergences: total variation of a lossy rule at each examined position.
        experts: distinct experts touched by the target in the untimed pass; zero for a model without experts.
        served: latencies of the prompts as they arrive, if the plan has arrivals.
        counted: per prompt, rounds, accepted and tested nodes of the untimed pass; traced tokens of the first prompts.
        errors: the exception that ended a decoder.
    """

    batch: Batch
    runs: dict[str, list[Timed]] = field(default_factory=dict)
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    traces: dict[str, list[Block]] = field(default_factory=dict)
    graphs: dict[str, GraphCounts] = field(default_factory=dict)
    parts: dict[str, PartTimes] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)
    inner_tallies: dict[str, Tally] = field(default_factory=dict)
    teacher_forced: dict[str, Tally] = field(default_factory=dict)
    divergences: dict[str, list[float]] = field(default_factory=dict)
    experts: dict[str, TouchedExperts] = field(default_factory=dict)
    served: dict[str, Served] = field(default_factory=dict)
    counted: dict[str, list[dict]] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)


class BatchRunner:
    """All compared decoders; counts and times a batch with each."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        target: Target,
        sampling: Sampling,
        plan: Plan,
        resources: ResourceCache,
        ranks: Ranks,
    ):
        self._target, self._plan, self._ranks = target, plan, ranks
        self._subjects = {candidate.point.name: candidate for candidate in candidates}
        self._decoders: dict[str, Decoder] = {BASELINE: _plain_decoding(target, sampling, plan, resources)}
        # Hugging Face pads batches and handles stop strings differently, and draws with each process's own generator.
        agrees = sampling.greedy or not target.model.is_sharded
        if plan.hugging_face and plan.batch_size == 1 and not plan.refill and not plan.stopping.stop_strings and agrees:
            self._decoders[HUGGING_FACE] = HuggingFaceGenerate(target=target, sampling=sampling)
        self._decoders |= {name: candidate.engine for name, candidate in self._subjects.items()}
        passes = resources.derived("target passes", lambda: new_target_passes(target))
        self._timer = PartTimer(target, compiled=plan.compiled, target_passes=passes)
        # A loop is compared with its own parts, timed right after it: the speed of a machine drifts within seconds.
        self.loops = {BASELINE: drafting_nothing(candidates[0].engine)} if candidates else {}
        self.loops |= {name: candidate.engine for name, candidate in self._subjects.items()}
        self._graphs_of_profiles: dict[str, GraphCounts] = {}
        num_batches = len(plan.batches())
        self._beside_parts = set(np.linspace(0, num_batches - 1, min(num_batches, PART_BATCHES)).astype(int).tolist())

    @property
    def decoders(self) -> dict[str, Decoder]:
        """Compared decoders by name, without failed candidates."""
        failed = {name for name, candidate in self._subjects.items() if candidate.error}
        return {name: decoder for name, decoder in self._decoders.items() if name not in failed}

    @contextmanager
    def _catching(self, name: str, result: BatchResult) -> Iterator[None]:
        """Store a decoder's exception in `result`, so that all ranks receive it."""
        try:
            yield
        except Exception as error:
            if self._target.model.is_sharded:
                raise  # the other processes are still in the pass that failed here; torchrun ends them
            if self._ranks.size > 1:  # not every exception can be pickled
                shown = describe(error)
                error = RuntimeError(f"on rank {self._ranks.number}: {shown['error']}\n{shown['traceback']}")
            result.errors[name] = error

    def _once(self, name: str, *, is_last: bool) -> AbstractContextManager[None]:
        """Undo a drafter's learning after every pass over a batch but the last: a user decodes a prompt once."""
        candidate = self._subjects.get(name)
        return nullcontext() if candidate is None or is_last else preserve_learned_state(candidate.engine.drafter)

    def run(self, result: BatchResult) -> Iterator[str]:
        """Count and time a batch with every decoder; yield a description after each step.

        A failing baseline ends the run.
        """
        is_first = result.batch.number == self._ranks.number
        if is_first:
            self._measure_costs(result)
        if BASELINE in result.errors:
            return
        yield from self._count_all(result)
        if is_first or self._plan.compiled:
            self._warm_up(result)
        if self._target.device.type != "cpu":
            self._time_stages(result)
        if self._plan.arrivals is not None:
            yield from self._serve_all(result, self._plan.arrivals)
        yield from self._time_all(result)

    def provide_profiles(self, batches: Sequence[Batch]) -> None:
        """Give profiles of rounds to the policies that decide by one: those of the first rank, for all ranks."""
        for candidate in alive(self._subjects.values()):
            engine, policy = candidate.engine, candidate.engine.gamma_policy
            if not is_profiled(policy):
                continue
            with candidate.ended_by_errors(), counted_graphs() as graphs:
                provide_profile(engine, batches, stopping=self._plan.stopping, options=candidate.options)
            self._graphs_of_profiles[candidate.point.name] = graphs
            profiles = self._ranks.all_gather(None if candidate.error else policy.profile)
            first = profiles[0]
            if first is not None and None not in profiles:
                policy.use_profile(first)
            elif not candidate.error:
                candidate.end(RuntimeError("another rank could not measure its rounds"))

    def _count_all(self, result: BatchResult) -> Iterator[str]:
        for candidate in alive(self._subjects.values()):
            if candidate.point.name not in result.errors:
                with self._catching(candidate.point.name, result):
                    self._count(candidate, result)
            yield f"counted {candidate.point.name}"

    def _serve_all(self, result: BatchResult, arrivals: Arrivals) -> Iterator[str]:
        for name, decoder in self.decoders.items():
            if name not in result.errors:
                with self._catching(name, result), self._once(name, is_last=False):
                    result.served[name] = serve(decoder, result.batch, self._plan.stopping, arrivals)
            yield f"served {name}"

    def _time_all(self, result: BatchResult) -> Iterator[str]:
        names = list(self.decoders)
        for repeat in range(self._plan.repeats):
            # Rotate and reverse the order, so that no decoder is always first.
            order = names[repeat:] + names[:repeat]
            for name in order if repeat % 2 == 0 else reversed(order):
                if any(failed not in self._subjects for failed in result.errors):
                    return
                if name not in result.errors:
                    with self._catching(name, result), self._once(name, is_last=repeat == self._plan.repeats - 1):
                        self._time(name, result)
                yield f"timed {name}"

    def _time(self, name: str, result: BatchResult) -> None:
        batch, runs = result.batch, result.runs.setdefault(name, [])
        decoder, stopping = self.decoders[name], self._plan.stopping
        given = (decoder, batch.prompts, stopping, batch.seeds, self._target.device)
        runs.append(timed(*given, num_rows=batch.num_rows, keep_blocks=batch.number == 0 and not runs))
        result.stages.setdefault(name, runs[0].stages)
        result.traces.setdefault(name, runs[0].blocks)
        if len(runs) == 1 and name in self.loops and batch.number in self._beside_parts:
            result.parts[name] = self._parts(self.loops[name], batch, runs[0].generation.tokens, PART_REPEATS)

    def _measure_costs(self, result: BatchResult) -> None:
        """Pass costs of drafting and of target passes, timed mid-generation, to policies with `use_costs`."""
        asking = [
            (candidate, policy)
            for candidate in alive(self._subjects.values())
            if is_cost_aware(policy := candidate.engine.gamma_policy)
        ]
        if not asking:
            return
        batch = result.batch.beginning
        with self._catching(BASELINE, result):
            plain = self.decoders[BASELINE].generate(batch.prompts, stopping=self._plan.stopping, seeds=batch.seeds)
        if BASELINE in result.errors:
            return
        for candidate, policy in asking:
            with self._catching(candidate.point.name, result):
                parts = self._parts(candidate.engine, batch, plain.tokens, COSTS_REPEATS, every_depth=True)
                costs = agreed(parts.costs, sharded=self._target.model.is_sharded)
                policy.use_costs(costs)

    def _parts(
        self, loop: Engine, batch: Batch, tokens: list[list[int]], repeats: int, *, every_depth: bool = False
    ) -> PartTimes:
        """Time the parts of a loop's round in the middle of the tokens with which a batch begins."""
        beginning = batch.beginning
        with preserve_learned_state(loop.drafter):
            return time_parts_amid(
                loop,
                beginning.prompts,
                tokens[: len(beginning.prompts)],
                seeds=beginning.seeds,
                repeats=repeats,
                timer=self._timer,
                max_new_tokens=self._plan.stopping.max_new_tokens,
                every_depth=every_depth,
            )

    def _count(self, candidate: Candidate, result: BatchResult) -> None:
        """Run the untimed pass: its detailed tally needs the full distributions."""
        batch, name, verifier = result.batch, candidate.point.name, candidate.engine.verifier
        lossy = verifier.guarantee is Guarantee.LOSSY
        divergence = Divergence(verifier, most=POSITIONS - len(candidate.divergences) if lossy else 0)
        traced = min(batch.rows) < TRACED_PROMPTS
        queue = Queue(len(batch.rows), batch.num_rows)
        trace = TokenTrace(len(batch.rows), most_tokens=TRACED_TOKENS if traced else 0, in_row=queue.in_row)

        experts = NO_EXPERTS

        def on_round(outcome: Outcome) -> None:
            nonlocal experts
            trace.on_round(outcome)
            divergence.on_round(outcome)
            experts += counter.latest_pass()  # the target pass, which follows drafting with the target's own layers

        with self._once(candidate.point.name, is_last=False), ExpertCounter(self._target.model.model) as counter:
            generation = candidate.engine.generate(
                batch.prompts,
                stopping=self._plan.stopping,
                seeds=batch.seeds,
                detailed=True,
                on_round=on_round,
                queue=queue,
            )
        assert generation.tally is not None
        self._check_agreement(generation.tokens)
        result.tallies[name], result.divergences[name], result.experts[name] = (
            generation.tally,
            divergence.found,
            experts,
        )
        if inner := getattr(candidate.engine.drafter, "inner_tally", None):
            result.inner_tallies[name] = inner
        if self._plan.teacher_forced and candidate.engine.drafter.shape is Shape.CHAIN:
            result.teacher_forced[name] = self._count_teacher_forced(candidate, batch)
        result.counted[name] = [
            {"accepted": trace.accepted[row], "tested": trace.tested[row], "rounds": trace.rounds[row]}
            | (traced_row(prompt, tokens, self._target.tokenizer) if batch.rows[row] < TRACED_PROMPTS else {})
            for row, (prompt, tokens) in enumerate(zip(batch.prompts, trace.tokens(generation.tokens), strict=True))
        ]

    def _count_teacher_forced(self, candidate: Candidate, batch: Batch) -> Tally:
        """Count overlaps at every position of the target's own text (`framework/verifiers/teacher_forced.py`)."""
        engine = Engine(
            target=self._target,
            drafter=candidate.engine.drafter,
            verifier=TeacherForced(),
            gamma_policy=Fixed(gamma=1),
            sampling=candidate.engine.sampling,
        )
        queue = Queue(len(batch.rows), batch.num_rows)
        with self._once(candidate.point.name, is_last=False):
            tally = engine.generate(
                batch.prompts, stopping=self._plan.stopping, seeds=batch.seeds, detailed=True, queue=queue
            ).tally
        assert tally is not None
        return tally

    def _check_agreement(self, tokens: list[list[int]]) -> None:
        """
        Raises:
            RuntimeError: processes that share the target decoded different tokens, so that its passes mixed texts.
        """
        if agreed(tokens, sharded=self._target.model.is_sharded) != tokens:
            raise RuntimeError("the processes that share the target decoded different tokens; set tensor_parallel=null")

    def _warm_up(self, result: BatchResult) -> None:
        stopping = self._plan.stopping
        # A graph is compiled for one buffer width, which depends on max_new_tokens.
        few = stopping.max_new_tokens if self._plan.compiled else min(WARM_UP_TOKENS, stopping.max_new_tokens)
        short = replace(stopping, max_new_tokens=few)
        result.graphs = {name: run.graphs for name, run in self._run_all(result, short).items()}
        if self._plan.compiled:
            self._make_graphs(result)

    def _make_graphs(self, result: BatchResult) -> None:
        """Make the graphs of all gammas that a policy may choose in a timed run."""
        for candidate in alive(self._subjects.values()):
            name = candidate.point.name
            if name not in result.errors:
                with self._catching(name, result), counted_graphs() as graphs:
                    run_every_gamma(candidate.engine, result.batch, self._plan.stopping)
                graphs += self._graphs_of_profiles.pop(name, GraphCounts())
                result.graphs[name] = result.graphs.get(name, GraphCounts()) + graphs

    def _time_stages(self, result: BatchResult) -> None:
        """Time the stages of every decoder in a run of their own."""
        runs = self._run_all(result, self._plan.stopping, every_stage=True)
        result.stages = {name: run.stages for name, run in runs.items()}
        result.traces = {name: run.blocks for name, run in runs.items()}

    def _run_all(self, result: BatchResult, stopping: Stopping, *, every_stage: bool = False) -> dict[str, Timed]:
        """Run every decoder once, without learning; decoders that fail are missing from the result."""
        batch, device, runs = result.batch, self._target.device, {}
        for name, decoder in self.decoders.items():
            if name not in result.errors:
                with self._catching(name, result), self._once(name, is_last=False):
                    given = (decoder, batch.prompts, stopping, batch.seeds, device)
                    keep = every_stage and batch.number == 0
                    runs[name] = timed(*given, num_rows=batch.num_rows, every_stage=every_stage, keep_blocks=keep)
        return runs


def _plain_decoding(target: Target, sampling: Sampling, plan: Plan, resources: ResourceCache) -> Autoregressive:
    return resources.derived(
        f"plain decoding, {sampling}, compiled {plan.compiled}, ended by {plan.stopping.eos_ids}",
        lambda: Autoregressive(target=target, sampling=sampling, compiled=plan.compiled),
    )
