"""Timings of whole generations and of the separate parts of a round."""

import math
import statistics
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice, pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from experiments.measurement.experts import NO_EXPERTS, ExpertCounter, TouchedExperts
from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.drafter import ShouldContinue, hidden_layers_of, most_nodes, proposal
from framework.core.sequences import Prompt, Sequences, text_of
from framework.core.tree import Tree
from framework.decoding.compiled_round import can_be_queued, drafts_outside, longest_as_input
from framework.decoding.engine import Engine
from framework.decoding.generation import Generation
from framework.decoding.refill import Queue
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.gamma_policies.gamma_policy import Costs, GammaPolicy
from framework.kernels.compiled_graphs import Compiled
from framework.metrics.graph_counts import GraphCounts, counted_graphs
from framework.metrics.stopwatch import Block, Clock, Stopwatch
from framework.models.cached_lm import CachedLM
from framework.models.forward_output import ForwardOutput
from framework.models.target import Target
from framework.models.tensor_parallel import agreed

BLOCKS = 3  # each part is timed in this many separate blocks, because the machine's speed drifts
WARM_UP_SECONDS = 0.05
WARM_UP_RUNS = 3  # a CUDA graph is replayed from the third run on
ATTENTION_KERNELS = (
    torch.ops.aten._scaled_dot_product_cudnn_attention,
    torch.ops.aten._scaled_dot_product_efficient_attention,
    torch.ops.aten._scaled_dot_product_flash_attention,
)
READING = ("prefill", "begin")  # stages before the first round


class Decoder(Protocol):
    """Interface of everything that decodes: the engine, the baseline, Hugging Face's `generate`."""

    def generate(
        self, prompts: Sequence[Prompt], *, stopping: Stopping, seeds: list[int], stopwatch: Stopwatch | None = None
    ) -> Generation: ...


def in_rows(queue: Queue | None) -> dict[str, Any]:
    """The further argument of a decoder with a queue; other decoders do not know it."""
    return {} if queue is None else {"queue": queue}


@dataclass(frozen=True)
class Timed:
    """One timed generation.

    Attributes:
        generation: decoded tokens and their counts.
        seconds: total time.
        decode_seconds: total time without the prefill of target and drafter.
        stages: seconds by stage; on a GPU, only those of reading the prompt unless all were timed.
        graphs: graphs compiled or captured in this time.
        num_rows: rows that decoded at the same time; None: one per prompt.
        seconds_in_row: per prompt, seconds from its beginning in a row to its end; None: those of the generation.
        round_seconds: seconds of every round or step, by the host's clock; empty for decoders without rounds.
        blocks: the single runs of the stages, in order, if they were kept.
    """

    generation: Generation
    seconds: float
    decode_seconds: float
    stages: dict[str, float]
    graphs: GraphCounts
    num_rows: int | None = None
    seconds_in_row: list[float] | None = None
    round_seconds: list[float] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    @property
    def latencies(self) -> list[float]:
        """Seconds per prompt, prefill included."""
        return self.seconds_in_row or [self.seconds] * len(self.generation.tokens)

    @property
    def num_decoded(self) -> int:
        """Tokens decoded in `decode_seconds`: the first token of every row comes from prefill."""
        return sum(len(tokens) - 1 for tokens in self.generation.tokens)

    @property
    def num_places(self) -> int:
        """Row slots of all target passes after prefill, rows already finished included."""
        return (self.num_rows or len(self.generation.tokens)) * self.generation.num_passes


class TimedQueue(Queue):
    """A queue that times every prompt from its beginning in a row to its end.

    Attributes:
        seconds: per prompt, that time; complete once all are finished.
    """

    def __init__(self, num_prompts: int, num_rows: int):
        """As `Queue`; the first prompts begin now."""
        super().__init__(num_prompts, num_rows)
        self._begun = [time.perf_counter()] * num_prompts
        self.seconds = [0.0] * num_prompts

    def finish(self, number: int) -> None:
        self.seconds[number] = time.perf_counter() - self._begun[number]

    def take(self, row: int) -> bool:
        is_taken = super().take(row)
        if is_taken:
            self._begun[self.in_row[row]] = time.perf_counter()
        return is_taken


def timed(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    stopping: Stopping,
    seeds: list[int],
    device: torch.device,
    *,
    num_rows: int | None = None,
    every_stage: bool = False,
    keep_blocks: bool = False,
) -> Timed:
    """Time one generation; the device is synchronised before and after.

    Args:
        num_rows: rows that decode at the same time and, once finished, take the next prompt; None: one per prompt.
        every_stage: whether to time all stages of a round on a GPU, too, where the events lengthen the rounds.
        keep_blocks: whether to keep the single runs of the stages.
    """
    clock = Clock(device)
    stopwatch = Stopwatch(device, only=None if every_stage or device.type == "cpu" else READING)
    clock.wait()
    with counted_graphs() as graphs:
        start = time.perf_counter()
        queue = None if num_rows is None else TimedQueue(len(prompts), num_rows)
        generation = decoder.generate(prompts, stopping=stopping, seeds=seeds, stopwatch=stopwatch, **in_rows(queue))
        clock.wait()
        seconds = time.perf_counter() - start
    stages = stopwatch.seconds()
    reading = sum(stages.get(stage, 0.0) for stage in READING)
    return Timed(
        generation,
        seconds,
        decode_seconds=seconds - reading,
        stages=stages,
        graphs=graphs,
        num_rows=None if queue is None else len(queue.in_row),
        seconds_in_row=None if queue is None else queue.seconds,
        round_seconds=stopwatch.round_seconds,
        blocks=stopwatch.blocks() if keep_blocks else [],
    )


@dataclass(frozen=True)
class PartTimes:
    """The parts of a round, each timed alone.

    Attributes:
        one_row: seconds of a target pass over pending alone.
        nodes: nodes of a draft of depth 0, 1, ... gamma; constant beyond the largest depth that the drafter reaches.
        rows: seconds of a target pass over pending and that many nodes, one entry per depth.
        draft: seconds of proposing to the depth that gamma allows, the gamma policy's `should_continue` included.
        draft_operations: arithmetic operations of proposing to that depth.
        row_operations: arithmetic operations of a target pass over pending alone.
        deepest_operations: arithmetic operations of a target pass over pending and the deepest draft.
        row_experts: distinct experts touched by a target pass over pending alone.
        deepest_experts: distinct experts touched by a target pass over the deepest draft.
    """

    one_row: float
    nodes: list[int]
    rows: list[float]
    draft: float
    draft_operations: int
    row_operations: int
    deepest_operations: int
    row_experts: TouchedExperts = NO_EXPERTS
    deepest_experts: TouchedExperts = NO_EXPERTS

    @classmethod
    def middle(cls, several: Sequence["PartTimes"]) -> "PartTimes":
        """Medians of the same parts timed at several moments; ratios to one_row cancel changes in machine speed."""
        one_row, last = statistics.median(parts.one_row for parts in several), several[-1]
        rows = [
            statistics.median(parts.rows[place] / parts.one_row for parts in several) for place in range(len(last.rows))
        ]
        draft = statistics.median(parts.draft / parts.one_row for parts in several)
        return replace(
            last,
            one_row=one_row,
            rows=[one_row * row for row in rows],
            draft=one_row * draft,
            row_experts=sum((parts.row_experts for parts in several), NO_EXPERTS),
            deepest_experts=sum((parts.deepest_experts for parts in several), NO_EXPERTS),
        )

    @property
    def deepest(self) -> int:
        """The smallest depth at which a draft has its maximum number of nodes."""
        return self.nodes.index(self.nodes[-1])

    @property
    def c(self) -> float:
        """Drafting time per level of depth, in one-row target passes."""
        return self.draft / self.deepest / self.one_row if self.deepest else 0.0

    @property
    def operations(self) -> float:
        """Arithmetic operations of drafting per level of depth, relative to those of a one-row target pass."""
        return self.draft_operations / self.deepest / self.row_operations if self.deepest else 0.0

    def pass_operations(self, num_nodes: float) -> float:
        """Arithmetic operations of a target pass over pending and num_nodes nodes, relative to those of one row.

        Interpolated: each node adds the same number of products, apart from attention between nodes.
        """
        most = self.nodes[-1]
        share = num_nodes / most if most else 0.0
        return 1 + share * (self.deepest_operations / self.row_operations - 1)

    @property
    def costs(self) -> Costs:
        """Costs passed to gamma policies."""
        return Costs(c=self.c, target_times=tuple(seconds / self.one_row for seconds in self.rows))

    def v(self, num_nodes: float) -> float:
        """Time of a target pass over pending and num_nodes nodes, in one-row target passes; interpolated."""
        depths = slice(self.deepest + 1)
        return float(np.interp(num_nodes, self.nodes[depths], self.rows[depths])) / self.one_row

    def depth(self, num_nodes: float) -> float:
        """Depth of a draft with num_nodes nodes, interpolated."""
        return float(np.interp(num_nodes, self.nodes[: self.deepest + 1], range(self.deepest + 1)))


class PartTimer:
    """Runs of single parts of a round, each as its own compiled graph or eagerly."""

    def __init__(self, target: Target, *, compiled: bool, target_passes: Compiled | None = None):
        """
        Args:
            target_passes: cache of this target's compiled passes, which is used and extended; None: a new one.
        """
        self.compiled = compiled
        self._pass = target_passes or new_target_passes(target)
        self._propose = Compiled(_propose, target.device, name="a draft")

    def target_pass(self, model: CachedLM, sequences: Sequences, draft: Draft) -> Callable[[], object]:
        """Return a target pass over pending and the draft's nodes.

        Chains of equal length share a compiled graph.
        """
        tokens = _fed(sequences, draft)
        if not self.compiled:
            return lambda: _pass(model, sequences, tokens, draft.tree, sequences.longest)
        tree, shape = None if draft.tree.is_chain else draft.tree, (*tokens.shape, *sequences.shape)
        return self._run_graph(self._pass, (shape, tree is None), sequences, model, sequences, tokens, tree)

    def drafting(
        self, engine: Engine, sequences: Sequences, gamma: int, uniforms: Tensor, states: tuple[Tensor, ...]
    ) -> Callable[[], object]:
        """Return a proposal of depth gamma followed by an outcome with no accepted node.

        Args:
            states: the target's states after pending and after every node, as `ForwardOutput.by_token`.
        """
        if not self.compiled or drafts_outside(engine.drafter, engine.gamma_policy):
            return lambda: _propose(engine, sequences, gamma, uniforms, states, sequences.longest)
        shape = (engine, gamma, *sequences.shape)
        return self._run_graph(self._propose, shape, sequences, engine, sequences, gamma, uniforms, states)

    @staticmethod
    def _run_graph(graph: Compiled, shape: Hashable, sequences: Sequences, *arguments: object) -> Callable[[], object]:
        return lambda: graph(shape, *arguments, longest_as_input(sequences))


def new_target_passes(target: Target) -> Compiled:
    """Return an empty cache of compiled target passes."""
    return Compiled(_logits_and_states, target.device, name="a target pass")


def _fed(sequences: Sequences, draft: Draft) -> Tensor:
    """[B, N + 1] int64: pending and the draft's nodes."""
    return torch.cat([sequences.pending.unsqueeze(1), draft.tokens], 1)


def _pass(
    model: CachedLM,
    sequences: Sequences,
    tokens: Tensor,
    tree: Tree | None,
    longest: int,
    layers: Sequence[int] = (),
) -> ForwardOutput:
    visible = longest + tokens.shape[1] - 1
    return model.forward(tokens, sequences.lengths - 1, visible=visible, tree=tree, layers=layers)


def _logits_and_states(
    model: CachedLM, sequences: Sequences, tokens: Tensor, tree: Tree | None, longest: int
) -> tuple[Tensor, Tensor]:
    output = _pass(model, sequences, tokens, tree, longest)
    return output.logits, output.hidden_states


def _propose(
    engine: Engine, sequences: Sequences, gamma: int, uniforms: Tensor, states: tuple[Tensor, ...], longest: int
) -> tuple[Tensor, Tensor | None]:
    sequences = sequences.with_longest(longest)
    draft = proposal(engine.drafter, sequences, gamma, uniforms, _never_ending(engine.gamma_policy))
    engine.drafter.observe(sequences, _nothing_came_of(draft, sequences, *states))
    return draft.tokens, draft.probs


def _never_ending(policy: GammaPolicy) -> ShouldContinue | None:
    """Wrap the policy's `should_continue` to evaluate it but always continue, so that drafts reach depth gamma."""
    asked = policy.should_continue
    return None if asked is None else lambda node: torch.ones_like(asked(node))


def _nothing_came_of(draft: Draft, sequences: Sequences, hidden: Tensor, features: Tensor | None = None) -> Outcome:
    """Outcome with no accepted node and no committed token, after which the drafter can repeat its draft."""
    nothing = torch.zeros_like(sequences.lengths)
    return Outcome(
        draft=draft,
        stop=nothing,
        num_accepted=nothing,
        next_token=sequences.pending,
        num_committed=nothing,
        active=sequences.active,
        hidden=hidden,
        states=hidden,
        features=features,
    )


@torch.no_grad()
def time_parts(
    engine: Engine,
    contexts: Sequence[Prompt],
    *,
    seeds: list[int],
    repeats: int,
    following: Sequence[list[int]] | None = None,
    timer: PartTimer | None = None,
    room: int = 0,
    every_depth: bool = True,
) -> PartTimes:
    """Time the parts of a round in the middle of a generation, interleaved as in decoding.

    Times are medians over the repeats.

    Args:
        engine: engine to time; it begins a new generation.
        contexts: token ids per row: the prompt and the tokens generated so far.
        seeds: one per row.
        repeats: least number of runs of each part.
        following: token ids per row used as nodes of chains, cycled if too few, since a mixture of experts reads
            different weights for different tokens; None: those of the contexts.
        timer: runs the parts; engines of one target may share it and its compiled graphs.
        room: maximum of further tokens per row, equal to that of the generations whose compiled graphs are timed.
        every_depth: whether to time target passes over drafts of every depth. If False, and always for compiled
            graphs, only the shallowest and deepest are timed and the others are interpolated linearly.
    """
    timer = timer or PartTimer(engine.target, compiled=False)
    eager = PartTimer(engine.target, compiled=False)  # operations and experts are counted in eager mode
    begun = _Begun.of(engine, contexts, seeds=seeds, following=following, room=room)
    nodes = [draft.num_nodes for draft in begun.drafts]
    ends = sorted({0, nodes.index(nodes[-1])})
    depths = ends if timer.compiled or not every_depth else range(len(nodes))
    passes = [begun.target_pass(timer, depth) for depth in depths]
    proposing = [begun.drafting(timer)] if nodes[1:] else []
    queues = timer.compiled and can_be_queued(engine.drafter, engine.gamma_policy, engine.target.device)
    medians = _medians(passes, proposing, engine.target.model, repeats, waits=not queues)
    return PartTimes(
        one_row=medians[0],
        nodes=nodes,
        rows=np.interp(nodes, [nodes[depth] for depth in depths], medians[: len(depths)]).tolist(),
        draft=medians[-1] if proposing else 0.0,
        draft_operations=_operations(begun.drafting(eager)) if proposing else 0,
        row_operations=_operations(begun.target_pass(eager, 0)),
        deepest_operations=_operations(begun.target_pass(eager, -1)),
        row_experts=_experts(engine.target.model, begun.target_pass(eager, 0)),
        deepest_experts=_experts(engine.target.model, begun.target_pass(eager, -1)),
    )


@dataclass(frozen=True)
class _Begun:
    """A generation stopped at one round, whose parts are timed repeatedly without committing.

    Attributes:
        uniforms: [B, num_uniforms(gamma)] float64.
        drafts: drafts of depth 0, 1, ... gamma.
        states: the target's states after pending and the nodes of the deepest draft, as `ForwardOutput.by_token`.
    """

    engine: Engine
    sequences: Sequences
    uniforms: Tensor
    drafts: list[Draft]
    states: tuple[Tensor, ...]

    @classmethod
    def of(
        cls,
        engine: Engine,
        contexts: Sequence[Prompt],
        *,
        seeds: list[int],
        following: Sequence[list[int]] | None,
        room: int,
    ) -> "_Begun":
        """Begin with contexts; the other arguments are those of `time_parts`."""
        gamma, device = engine.gamma_policy.max_gamma, engine.target.device
        stopping = Stopping(max_new_tokens=max(room, gamma + 3))
        decoding = engine.begin(contexts, stopping=stopping, seeds=seeds, detailed=False, stopwatch=Stopwatch(device))
        sequences = decoding.sequences
        uniforms = decoding.uniforms.next_round().draft[:, : engine.drafter.num_uniforms(gamma)]
        texts = [
            row or text_of(context) for row, context in zip(following or [[]] * len(contexts), contexts, strict=True)
        ]
        drafts = _drafts(engine, sequences, uniforms, texts)
        deepest = drafts[-1]
        tokens, layers = _fed(sequences, deepest), hidden_layers_of(engine.drafter)
        output = _pass(engine.target.model, sequences, tokens, deepest.tree, sequences.longest, layers)
        return cls(engine, sequences, uniforms, drafts, output.by_token)

    def target_pass(self, timer: PartTimer, depth: int) -> Callable[[], object]:
        """Return a target pass over pending and the draft of this depth."""
        return timer.target_pass(self.engine.target.model, self.sequences, self.drafts[depth])

    def drafting(self, timer: PartTimer) -> Callable[[], object]:
        """Return a proposal to the depth that gamma allows."""
        gamma = self.engine.gamma_policy.max_gamma
        return timer.drafting(self.engine, self.sequences, gamma, self.uniforms, self.states)


def _drafts(engine: Engine, sequences: Sequences, uniforms: Tensor, texts: Sequence[list[int]]) -> list[Draft]:
    """Drafts of depth 0, 1, ... gamma: chains of the tokens of `texts`, or trees proposed by the drafter."""
    drafter, gamma = engine.drafter, engine.gamma_policy.max_gamma
    if drafter.shape is Shape.CHAIN:  # not proposed, since a drafter may propose fewer nodes
        nodes = [list(islice(cycle(text), most_nodes(drafter, gamma))) for text in texts]
        chains = torch.tensor(nodes, dtype=torch.int64, device=uniforms.device)
        return [
            Draft.chain(chains[:, : most_nodes(drafter, depth)], SamplingScheme.ONE_HOT) for depth in range(gamma + 1)
        ]
    drafts = [Draft.empty(sequences.num_rows, uniforms.device)]
    for depth in range(1, gamma + 1):
        numbers = uniforms[:, : drafter.num_uniforms(depth)]
        drafts.append(proposal(drafter, sequences, depth, numbers, _never_ending(engine.gamma_policy)))
    return drafts


def _medians(
    passes: list[Callable[[], object]],
    proposing: list[Callable[[], object]],
    model: CachedLM,
    repeats: int,
    *,
    waits: bool,
) -> list[float]:
    """Median seconds of each run, interleaved as in a decoding loop, whose host waits in every round or does not."""
    # Plain decoding repeats one-row passes; a round alternates drafting and the deepest pass.
    turns = [[run] for run in passes[:-1]] + [passes[-1:] + proposing]
    times = -(-repeats // BLOCKS)
    blocks = [[_in_turns(turn, model, times, waits=waits) for turn in turns] for _ in range(BLOCKS)]
    return [
        statistics.median(second for block in blocks for second in block[turn][place])
        for turn, runs in enumerate(turns)
        for place in range(len(runs))
    ]


def time_parts_amid(
    engine: Engine,
    prompts: Sequence[Prompt],
    tokens: Sequence[list[int]],
    *,
    seeds: list[int],
    repeats: int,
    timer: PartTimer,
    max_new_tokens: int,
    every_depth: bool = True,
) -> PartTimes:
    """Time the parts after half of each row's new tokens; chains hold tokens of the second half."""
    target = engine.target
    half = [target.as_prompt(prompt) + row[: len(row) // 2] for prompt, row in zip(prompts, tokens, strict=True)]
    # The first token of the second half is skipped: it, or another token drawn in its place, is pending.
    following = [row[len(row) // 2 + 1 :] + row[: len(row) // 2 + 1] for row in tokens]
    return time_parts(
        engine,
        half,
        seeds=seeds,
        repeats=repeats,
        following=following,
        timer=timer,
        room=max_new_tokens // 2,
        every_depth=every_depth,
    )


def drafting_nothing(engine: Engine) -> Engine:
    """Return the same engine at gamma 0, whose only part, as in plain decoding, is a target pass over pending."""
    return Engine(
        target=engine.target,
        drafter=engine.drafter,
        verifier=engine.verifier,
        gamma_policy=Fixed(gamma=0),
        sampling=engine.sampling,
    )


def _in_turns(runs: list[Callable[[], object]], model: CachedLM, times: int, *, waits: bool) -> list[list[float]]:
    """Run the parts in rotation, `times` each after a warm-up that fills the cache.

    Args:
        waits: whether the host waits for a GPU after each target pass, the first run of a rotation.

    Returns:
        Seconds of each run of each part.
    """
    clock = Clock(model.device)
    begun, num_runs, is_warm = time.perf_counter(), 0, False
    while not is_warm:
        for run in runs:
            run()
        clock.wait()
        num_runs += 1
        is_warm = num_runs >= WARM_UP_RUNS and time.perf_counter() - begun >= WARM_UP_SECONDS
        is_warm = agreed(is_warm, sharded=model.is_sharded)
    moments = [clock.now()]
    for number, run in enumerate(runs * times):
        run()
        moments.append(clock.now())
        if waits and number % len(runs) == 0:
            clock.wait()
    clock.wait()
    seconds = [clock.seconds(begin, end) for begin, end in pairwise(moments)]
    return [seconds[place :: len(runs)] for place in range(len(runs))]


def _operations(run: Callable[[], object]) -> int:
    formulas = dict.fromkeys(ATTENTION_KERNELS, attention_operations)
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        run()
    return counter.get_total_flops()


def attention_operations(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Operations of attention between tensors of these shapes; heads may share keys, as PyTorch counts since 2.13.

    Args:
        query: B, number of heads, M, D.
        key: B, number of key-value heads, W, D.
        value: B, number of key-value heads, W, E.
    """
    return 2 * math.prod(query[:3]) * key[2] * (query[3] + value[3])


def _experts(model: CachedLM, run: Callable[[], object]) -> TouchedExperts:
    with ExpertCounter(model.model) as counter:
        run()
    return counter.latest_pass()
