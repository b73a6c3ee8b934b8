"""The step `graphs`: CUDA graphs of compiled rounds, their tokens and their memory."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch._dynamo.utils import counters

from experiments.gpu.findings import Findings
from experiments.gpu.profiling import memory, profiled
from experiments.gpu.random_models import drafter_for, random_prompts, random_target
from experiments.gpu.rounds import PEAKED, begin_decoding, engine_of, run_rounds, tokens_of
from experiments.measurement.timing import Decoder
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.metrics.graph_counts import counted_graphs

MIB = 2**20
WARM_UP = 4  # rounds before memory and launches are counted


def run(findings: Findings, sizes: Mapping[str, Any], device: torch.device) -> None:
    counters.clear()
    graphs = Graphs(findings, sizes, device)
    with counted_graphs() as made:
        for name in sizes["drafters"]:
            findings.attempt(name, partial(graphs.check, name))
    findings.measure("compiled graphs: CUDA graphs skipped", made.skipped)
    findings.note(made=asdict(made), counters={kind: dict(counts) for kind, counts in counters.items()})


class Graphs:
    """Checks of one target's compiled rounds, with eager rounds and the baseline in between."""

    def __init__(self, findings: Findings, sizes: Mapping[str, Any], device: torch.device):
        self._findings, self._sizes = findings, sizes
        # In single precision, the rounding of other kernels changes a draw in some thousands of tokens.
        self._target = random_target(sizes["target"], device=device, dtype="float64")
        self._prompts = random_prompts(self._target, sizes["prompt_tokens"])

    def check(self, name: str) -> None:
        """Decode with a drafter at both widths, and watch its rounds."""
        drafter = drafter_for(name, self._sizes["drafter"], self._target)
        eager, compiled = (engine_of(self._target, drafter, PEAKED, compiled=mode) for mode in (False, True))
        self._check_tokens(name, eager, compiled)
        self._check_rounds(name, compiled)

    def _check_tokens(self, name: str, eager: Engine, compiled: Engine) -> None:
        narrow, wide = self._sizes["new_tokens"]
        expected = {budget: self._tokens(eager, budget) for budget in (narrow, wide)}
        plain, graph = (Autoregressive(target=self._target, sampling=PEAKED, compiled=mode) for mode in (False, True))
        turns: list[tuple[str, Decoder, int, list[list[int]]]] = [
            ("narrow", compiled, narrow, expected[narrow]),
            ("wide", compiled, wide, expected[wide]),
            ("baseline in between", graph, narrow, self._tokens(plain, narrow)),
            ("narrow again", compiled, narrow, expected[narrow]),
            ("eager after compiled", eager, narrow, expected[narrow]),
            ("wide again", compiled, wide, expected[wide]),
        ]
        for turn, decoder, budget, tokens in turns:
            self._findings.require_equal(f"{name}, {turn}: tokens by seed", self._tokens(decoder, budget), tokens)

    def _tokens(self, decoder: Decoder, budget: int) -> list[list[int]]:
        return tokens_of(decoder, self._prompts, Stopping(max_new_tokens=budget))

    def _check_rounds(self, name: str, engine: Engine) -> None:
        device, rounds, watched = self._target.device, self._sizes["rounds"], self._sizes["profiled_rounds"]
        # One generation of the wide budget, so that nothing is compiled anew.
        decoding = begin_decoding(engine, self._prompts, rounds=WARM_UP + watched + rounds)
        run_rounds(engine, decoding, WARM_UP)()
        work = profiled(run_rounds(engine, decoding, watched), device)
        self._findings.measure(f"{name}: graph launches per round", work.graph_launches / watched)
        self._findings.measure(f"{name}: kernels per round", work.kernels.total() / watched)
        before = memory(device)
        run_rounds(engine, decoding, rounds)()
        grown = {kind: size - before[kind] for kind, size in memory(device).items()}
        for kind, size in grown.items():
            self._findings.measure(f"{name}: growth of {kind} memory", size / MIB, f"MiB in {rounds} rounds")
