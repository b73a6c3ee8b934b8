"""Clocks around decoding: whole generations, and the parts of a round alone."""

import statistics
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from framework.cached_lm import CachedLM
from framework.compiled import Compiled, drafts_outside, reach_as_input
from framework.draft import Draft, Law, Outcome, Shape, TargetRows
from framework.drafter import most_nodes
from framework.engine import Engine
from framework.gamma_policies.fixed import Fixed
from framework.gamma_policies.gamma_policy import Costs
from framework.generation import Generation
from framework.sampling import Sampling
from framework.sequences import Prompt, Sequences
from framework.stopping import Stopping
from framework.stopwatch import Stopwatch
from framework.target import Target
from framework.tree import Tree

PLAIN = Sampling()
BLOCKS = 3  # a part is timed at so many moments, because the machine's pace changes
WARM_UP_SECONDS = 0.05


class Decoder(Protocol):
    """Anything that decodes: the engine, the yardstick, Hugging Face."""

    def generate(
        self, prompts: Sequence[Prompt], *, stopping: Stopping, seeds: list[int], stopwatch: Stopwatch | None = None
    ) -> Generation: ...


@dataclass(frozen=True)
class Timed:
    """One timed generation.

    Attributes:
        generation: what came out.
        seconds: all of it.
        decode_seconds: without reading the prompts, be it by the target or by the drafter.
        stages: seconds by stage.
    """

    generation: Generation
    seconds: float
    decode_seconds: float
    stages: dict[str, float]

    @property
    def num_decoded(self) -> int:
        """Tokens that decode_seconds bought: the first of every row came with reading the prompt."""
        return sum(len(tokens) - 1 for tokens in self.generation.tokens)

    @property
    def num_places(self) -> int:
        """Rows that the target's passes after the prompts' held, those of rows that were finished included."""
        tally, tokens = self.generation.tally, self.generation.tokens
        num_passes = max(map(len, tokens)) - 1 if tally is None else int(tally.num_passes)
        return len(tokens) * num_passes


def timed(
    decoder: Decoder, prompts: Sequence[Prompt], stopping: Stopping, seeds: list[int], device: torch.device
) -> Timed:
    stopwatch = Stopwatch(device)
    _wait(device)
    start = time.perf_counter()
    generation = decoder.generate(prompts, stopping=stopping, seeds=seeds, stopwatch=stopwatch)
    _wait(device)
    seconds = time.perf_counter() - start
    stages = stopwatch.seconds()
    reading = stages.get("prefill", 0.0) + stages.get("begin", 0.0)
    return Timed(generation=generation, seconds=seconds, decode_seconds=seconds - reading, stages=stages)


@dataclass(frozen=True)
class Parts:
    """The parts of a round, each timed alone.

    Attributes:
        one_row: seconds of a target pass over pending alone.
        nodes: how many nodes a draft of depth 0, 1, ... gamma has. A drafter may go no deeper than some depth: then
            the later ones have as many as that one.
        rows: seconds of a target pass over pending and so many nodes.
        draft: seconds of proposing as deep as gamma allows, and of asking the gamma policy after each whether to go on.
        draft_operations: arithmetic operations of proposing as deep as gamma allows.
        row_operations: of a target pass over pending alone.
    """

    one_row: float
    nodes: list[int]
    rows: list[float]
    draft: float
    draft_operations: int
    row_operations: int

    @classmethod
    def middle(cls, several: Sequence["Parts"]) -> "Parts":
        """Of the same parts timed at several moments, medians: of times in one-row times, since the pace changes."""
        one_row, last = statistics.median(parts.one_row for parts in several), several[-1]
        rows = [
            statistics.median(parts.rows[place] / parts.one_row for parts in several) for place in range(len(last.rows))
        ]
        draft = statistics.median(parts.draft / parts.one_row for parts in several)
        return replace(last, one_row=one_row, rows=[one_row * row for row in rows], draft=one_row * draft)

    @property
    def deepest(self) -> int:
        """The depth from which on drafts have no more nodes."""
        return self.nodes.index(self.nodes[-1])

    @property
    def c(self) -> float:
        """Time of drafting one token deep, in one-row target times."""
        return self.draft / self.deepest / self.one_row if self.deepest else 0.0

    @property
    def operations(self) -> float:
        """Arithmetic operations of drafting one token deep, over those of one target row."""
        return self.draft_operations / self.deepest / self.row_operations if self.deepest else 0.0

    @property
    def costs(self) -> Costs:
        """What a gamma policy may know of them."""
        return Costs(c=self.c, target_times=tuple(seconds / self.one_row for seconds in self.rows))

    def v(self, num_nodes: float) -> float:
        """Target time of a pass over num_nodes + 1 rows, in one-row target times."""
        depths = slice(self.deepest + 1)
        return float(np.interp(num_nodes, self.nodes[depths], self.rows[depths])) / self.one_row

    def depth(self, num_nodes: float) -> float:
        """How deep a draft of so many nodes is."""
        return float(np.interp(num_nodes, self.nodes[: self.deepest + 1], range(self.deepest + 1)))


class Alone:
    """Parts of a round to be run alone, in the mode that rounds run in: as programs of their own, or call by call."""

    def __init__(self, target: Target, *, compiled: bool, target_passes: Compiled | None = None):
        """
        Args:
            target_passes: programs of this target's passes that were made before, to be used and added to.
        """
        self.compiled = compiled
        self._pass = target_passes or new_target_passes(target)
        self._propose = Compiled(_propose, target.device)

    def target_pass(self, model: CachedLM, sequences: Sequences, draft: Draft) -> Callable[[], object]:
        """A pass over pending and the draft's nodes; chains of one length share a program."""
        tokens = torch.cat([sequences.pending.unsqueeze(1), draft.tokens], 1)
        if not self.compiled:
            return lambda: _pass(model, sequences, tokens, draft.tree)
        tree, shape = None if draft.tree.is_chain else draft.tree, (*tokens.shape, *sequences.shape)
        return self._as_program(self._pass, (shape, tree is None), sequences, model, sequences, tokens, tree)

    def drafting(self, engine: Engine, sequences: Sequences, gamma: int, uniforms: Tensor) -> Callable[[], object]:
        """Proposing gamma deep, and hearing that nothing came of it."""
        if not self.compiled or drafts_outside(engine.drafter, engine.gamma_policy):
            return lambda: _propose(engine, sequences, gamma, uniforms)
        shape = (engine, gamma, *sequences.shape)
        return self._as_program(self._propose, shape, sequences, engine, sequences, gamma, uniforms)

    @staticmethod
    def _as_program(
        program: Compiled, shape: Hashable, sequences: Sequences, *arguments: object
    ) -> Callable[[], object]:
        def run() -> object:
            with reach_as_input(sequences):
                return program(shape, *arguments)

        return run


def new_target_passes(target: Target) -> Compiled:
    """Programs of a target's passes, none of which is made yet."""
    return Compiled(_pass, target.device)


def _pass(model: CachedLM, sequences: Sequences, tokens: Tensor, tree: Tree | None) -> Tensor:
    visible = sequences.longest + tokens.shape[1] - 1
    return model.forward(tokens, sequences.lengths - 1, visible=visible, tree=tree)


def _propose(engine: Engine, sequences: Sequences, gamma: int, uniforms: Tensor) -> tuple[Tensor, Tensor | None]:
    draft = engine.drafter.propose(sequences, gamma, uniforms)
    engine.drafter.observe(sequences, _nothing_came_of(draft, sequences, engine.target.model.hidden))
    return draft.tokens, draft.probs


def _nothing_came_of(draft: Draft, sequences: Sequences, hidden: Tensor) -> Outcome:
    """As if no node had been kept and nothing committed: the drafter stands where it stood, and may draft again."""
    nothing = torch.zeros_like(sequences.lengths)
    return Outcome(
        draft=draft,
        stop_law=torch.zeros(sequences.num_rows, draft.num_nodes + 1, device=nothing.device),
        stop=nothing,
        num_accepted=nothing,
        next_token=sequences.pending,
        num_committed=nothing,
        active=sequences.active,
        target=TargetRows(hidden, draft, PLAIN, hidden),
    )


@torch.no_grad()
def time_parts(
    engine: Engine,
    contexts: Sequence[Prompt],
    *,
    seeds: list[int],
    repeats: int,
    alone: Alone | None = None,
    room: int = 0,
    every_depth: bool = True,
) -> Parts:
    """Time the parts of one engine in the middle of a generation, in turns as they come there; medians of `repeats`.

    Args:
        engine: its state is begun anew.
        alone: how the parts are run; engines of one target may share it, and the programs it holds.
        every_depth: whether passes over drafts of every depth are timed. Else, and of programs, it is those over the
            shallowest and the deepest, and the others are taken to lie on a line.
        room: how many more tokens the rows have room for, as in the generations whose programs are to be timed.
        contexts: token ids per row: prompts and what was generated so far.
        seeds: one per row.
        repeats: how often each part is run.
    """
    alone = alone or Alone(engine.target, compiled=False)
    gamma, drafter, device = engine.gamma_policy.max_gamma, engine.drafter, engine.target.device
    stopping = Stopping(max_new_tokens=max(room, gamma + 3))
    decoding = engine.begin(contexts, stopping=stopping, seeds=seeds, detailed=False, stopwatch=Stopwatch(device))
    sequences = decoding.sequences
    uniforms = decoding.uniforms.next_round()[:, 2 : 2 + drafter.num_uniforms(gamma)]
    if asked := getattr(drafter, "keep_drafting", None):
        # A draft that ended early would not show what gamma tokens take. The next generation sets this anew.
        drafter.keep_drafting = lambda node: torch.ones_like(asked(node))  # type: ignore[attr-defined]

    def propose(depth: int) -> Draft:
        return drafter.propose(sequences, depth, uniforms[:, : drafter.num_uniforms(depth)])

    def draft_of(depth: int) -> Draft:
        if drafter.shape is Shape.CHAIN:  # any tokens will do, where a drafter may find fewer
            return Draft.chain(sequences.pending.unsqueeze(1).expand(-1, most_nodes(drafter, depth)), Law.ONE_HOT)
        return propose(depth) if depth else Draft.empty(sequences.num_rows, device)

    drafts = [draft_of(depth) for depth in range(gamma + 1)]
    nodes = [draft.num_nodes for draft in drafts]
    ends = sorted({0, nodes.index(nodes[-1])})
    timed_depths = ends if alone.compiled or not every_depth else range(gamma + 1)
    model = engine.target.model
    passes = [alone.target_pass(model, sequences, drafts[depth]) for depth in timed_depths]
    proposing = [alone.drafting(engine, sequences, gamma, uniforms)] if gamma else []
    # Passes of one row follow one another in plain decoding; drafting and the deepest pass take turns in rounds.
    turns = [[run] for run in passes[:-1]] + [passes[-1:] + proposing]
    blocks = [[_in_turns(turn, device, -(-repeats // BLOCKS)) for turn in turns] for _ in range(BLOCKS)]
    medians = [
        statistics.median(second for block in blocks for second in block[turn][place])
        for turn, runs in enumerate(turns)
        for place in range(len(runs))
    ]
    timed_nodes = [nodes[depth] for depth in timed_depths]
    eager = Alone(engine.target, compiled=False)  # operations are counted call by call
    return Parts(
        one_row=medians[0],
        nodes=nodes,
        rows=np.interp(nodes, timed_nodes, medians[: len(timed_nodes)]).tolist(),
        draft=medians[-1] if gamma else 0.0,
        draft_operations=_operations(eager.drafting(engine, sequences, gamma, uniforms)) if gamma else 0,
        row_operations=_operations(eager.target_pass(model, sequences, drafts[0])),
    )


def time_parts_amid(
    engine: Engine,
    prompts: Sequence[Prompt],
    tokens: Sequence[list[int]],
    *,
    seeds: list[int],
    repeats: int,
    alone: Alone,
    max_new_tokens: int,
    every_depth: bool = True,
) -> Parts:
    """Time the parts in the middle of what was decoded: behind each prompt with half of its new tokens."""
    target = engine.target
    half = [target.as_prompt(prompt) + row[: len(row) // 2] for prompt, row in zip(prompts, tokens, strict=True)]
    return time_parts(
        engine, half, seeds=seeds, repeats=repeats, alone=alone, room=max_new_tokens // 2, every_depth=every_depth
    )


def drafting_nothing(engine: Engine) -> Engine:
    """The same loop at a gamma of 0: its only part is a target pass over pending, as it is plain decoding's."""
    return Engine(
        target=engine.target,
        drafter=engine.drafter,
        verifier=engine.verifier,
        gamma_policy=Fixed(gamma=0),
        sampling=engine.sampling,
    )


def _in_turns(runs: list[Callable[[], object]], device: torch.device, times: int) -> list[list[float]]:
    """Seconds of each run, `times` in a row, once its weights are in the cache: in a loop they are, time after time."""
    seconds: list[list[float]] = [[] for _ in runs]
    begun, is_warm = time.perf_counter(), False
    while len(seconds[-1]) < times:
        for run, taken in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run()
            _wait(device)
            if is_warm:
                taken.append(time.perf_counter() - start)
        is_warm = is_warm or time.perf_counter() - begun >= WARM_UP_SECONDS
    return seconds


def _operations(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
