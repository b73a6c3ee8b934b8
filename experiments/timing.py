"""Clocks around decoding: whole generations, and the parts of a round alone."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.utils.flop_counter import FlopCounterMode

from framework.engine import Engine
from framework.gamma_policies.gamma_policy import Costs
from framework.generation import Generation
from framework.stopping import Stopping
from framework.stopwatch import Stopwatch


class Decoder(Protocol):
    """Anything that decodes: the engine, the yardstick, Hugging Face."""

    def generate(
        self, prompts: list[list[int]], *, stopping: Stopping, seeds: list[int], stopwatch: Stopwatch | None = None
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


def timed(
    decoder: Decoder, prompts: list[list[int]], stopping: Stopping, seeds: list[int], device: torch.device
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
        rows: seconds of a target pass over pending and n nodes, for n = 0 to gamma.
        draft: seconds of proposing gamma tokens, and of asking the gamma policy after each whether to go on.
        operations: arithmetic operations of one drafted token over those of one target row.
    """

    one_row: float
    rows: list[float]
    draft: float
    operations: float

    @property
    def c(self) -> float:
        """Time of drafting one token, in one-row target times."""
        gamma = len(self.rows) - 1
        return self.draft / gamma / self.one_row if gamma else 0.0

    @property
    def costs(self) -> Costs:
        """What a gamma policy may know of them."""
        return Costs(c=self.c, target_times=tuple(map(self.v, range(len(self.rows)))))

    def v(self, num_nodes: int) -> float:
        """Target time of a pass over num_nodes + 1 rows, in one-row target times."""
        return self.rows[num_nodes] / self.one_row


@torch.no_grad()
def time_parts(engine: Engine, contexts: list[list[int]], *, seeds: list[int], repeats: int) -> Parts:
    """Time the parts of one engine in the middle of a generation, interleaved; medians of `repeats`.

    Args:
        engine: its state is begun anew.
        contexts: token ids per row: prompts and what was generated so far.
        seeds: one per row.
        repeats: how often each part is run.
    """
    gamma, device = engine.gamma_policy.max_gamma, engine.target.device
    stopping = Stopping(max_new_tokens=gamma + 3)
    decoding = engine.begin(contexts, stopping=stopping, seeds=seeds, detailed=False, stopwatch=Stopwatch(device))
    sequences = decoding.sequences
    uniforms = decoding.uniforms.next_round()[:, 2 : 2 + engine.drafter.num_uniforms(gamma)]
    tokens = sequences.pending.unsqueeze(1).expand(-1, gamma + 1)
    if asked := getattr(engine.drafter, "keep_drafting", None):
        # A draft that ended early would not show what gamma tokens take. The next generation sets this anew.
        engine.drafter.keep_drafting = lambda confidence: torch.ones_like(asked(confidence))  # type: ignore[attr-defined]

    def target_pass(num_nodes: int) -> Callable[[], object]:
        return lambda: engine.target.model.forward(
            tokens[:, : num_nodes + 1], sequences.lengths - 1, visible=sequences.longest + num_nodes
        )

    parts = [target_pass(num_nodes) for num_nodes in range(gamma + 1)]
    if gamma:
        parts.append(lambda: engine.drafter.propose(sequences, gamma, uniforms))
    seconds: list[list[float]] = [[] for _ in parts]
    for repeat in range(repeats + 2):
        for part, run in enumerate(parts):
            _wait(device)
            start = time.perf_counter()
            run()
            _wait(device)
            if repeat >= 2:  # the first ones warm up
                seconds[part].append(time.perf_counter() - start)
    medians = [statistics.median(taken) for taken in seconds]
    per_row = _operations(parts[0])
    return Parts(
        one_row=medians[0],
        rows=medians[: gamma + 1],
        draft=medians[-1] if gamma else 0.0,
        operations=_operations(parts[-1]) / gamma / per_row if gamma and per_row else 0.0,
    )


def _operations(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
