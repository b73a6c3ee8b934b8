"""The step `speed`: plain decoding and rounds in half precision, against memory bandwidth, parts and Hugging Face."""

import statistics
from collections.abc import Mapping
from typing import Any

import torch

from drafters.small_transformer import SmallTransformer
from experiments.gpu.findings import Findings
from experiments.gpu.parts import drafter_named
from experiments.gpu.profiling import copied_bytes_per_second
from experiments.gpu.random_models import random_pair, random_prompts
from experiments.gpu.rounds import DRAWN, engine_of
from experiments.measurement.metrics import BASELINE, all_metrics, decode_ms
from experiments.measurement.timing import (
    Decoder,
    PartTimer,
    PartTimes,
    Timed,
    drafting_nothing,
    time_parts_amid,
    timed,
)
from experiments.peers.hugging_face import HuggingFaceGenerate
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping

PART_REPEATS = 9  # timings of each part
DRAFTER, ASSISTED = "small_transformer", "Hugging Face's assisted generation"
OF_PARTS = ("tau", "c", "d", "v", "efficiency")


def run(findings: Findings, sizes: Mapping[str, Any], device: torch.device) -> None:
    bandwidth = copied_bytes_per_second(sizes["copied_mib"], device)
    speeds = {name: Speed(findings, name, sizes, model, device, bandwidth) for name, model in sizes["targets"].items()}
    for name, speed in speeds.items():
        findings.attempt(f"{name}: plain decoding", speed.check_plain)
    for name, speed in speeds.items():
        findings.attempt(f"{name}: {DRAFTER}", speed.check_drafter)


class Speed:
    """Timings of one target's loops; every check times its loops interleaved."""

    def __init__(
        self,
        findings: Findings,
        name: str,
        sizes: Mapping[str, Any],
        target: Mapping[str, Any],
        device: torch.device,
        bandwidth: float,
    ):
        self._findings, self._name, self._sizes, self._bandwidth = findings, name, sizes, bandwidth
        self._sizes_of_target, self._device = target, device
        self._is_built = False

    def _build(self) -> None:
        """Build the target with the first check that needs it."""
        if self._is_built:
            return
        self._target, self._small = random_pair(
            self._sizes_of_target, **self._sizes["drafter"], device=self._device, dtype=self._sizes["dtype"]
        )
        self._prompts = random_prompts(self._target, [self._sizes["prompt_tokens"]])
        self._stopping = Stopping(max_new_tokens=self._sizes["new_tokens"])
        self._timer = PartTimer(self._target, compiled=True)
        self._baseline = Autoregressive(target=self._target, sampling=DRAWN, compiled=True)
        self._is_built = True

    def check_plain(self) -> None:
        """Time the baseline, compiled and eager, Hugging Face's loop, and a pass over gamma nodes."""
        self._build()
        decoders: dict[str, Decoder] = {
            "compiled": self._baseline,
            "eager": Autoregressive(target=self._target, sampling=DRAWN),
            "Hugging Face": HuggingFaceGenerate(target=self._target, sampling=DRAWN),
        }
        runs = self._runs(decoders)
        ms = {name: statistics.median(decode_ms([each]) for each in several) for name, several in runs.items()}
        measure = self._findings.measure
        measure(f"{self._name}: compiled baseline", ms["compiled"], "ms per token")
        measure(f"{self._name}: floor, by the weights and the copy bandwidth", 1000 * self._floor(), "ms per token")
        measure(f"{self._name}: eager baseline", ms["eager"], "ms per token")
        measure(f"{self._name}: Hugging Face's loop", ms["Hugging Face"], "ms per token")
        measure(f"{self._name}: compiled baseline over Hugging Face's loop", ms["compiled"] / ms["Hugging Face"])
        measure(f"{self._name}: eager baseline over Hugging Face's loop", ms["eager"] / ms["Hugging Face"])
        loop = engine_of(self._target, drafter_named("prompt_lookup", self._target), DRAWN, gamma=self._sizes["gamma"])
        parts = self._parts(loop, runs["compiled"][-1])
        measure(f"{self._name}: one-row pass, compiled", 1000 * parts.one_row, "ms")
        measure(f"{self._name}: v of {1 + self._sizes['gamma']} rows", parts.v(self._sizes["gamma"]))

    def check_drafter(self) -> None:
        """Compare a compiled loop, and the baseline, with the sum of their parts, and with assisted generation."""
        self._build()
        gamma = self._sizes["gamma"]
        drafter = SmallTransformer(self._target, model=lambda target: self._small)
        engine = engine_of(self._target, drafter, DRAWN, compiled=True, gamma=gamma)
        assisted = HuggingFaceGenerate(target=self._target, sampling=DRAWN, drafter=self._small, gamma=gamma)
        loops = {BASELINE: drafting_nothing(engine), DRAFTER: engine}
        runs = self._runs({BASELINE: self._baseline, DRAFTER: engine, ASSISTED: assisted})
        parts = {each: self._parts(loop, runs[each][-1]) for each, loop in loops.items()}
        tally = engine.new_tally(detailed=False)
        for each in runs[DRAFTER]:
            assert each.generation.tally is not None
            tally.add(each.generation.tally)
        metrics = all_metrics(
            DRAFTER,
            tally,
            {each: [(run, parts[each]) for run in runs[each]] for each in loops},
            {each: [[run] for run in runs[each]] for each in loops},
            {},
        )

        def measure(quantity: str, value: float, unit: str = "") -> None:
            self._findings.measure(f"{self._name}, {DRAFTER}: {quantity}", value, unit)

        for quantity, metric in (("alpha", "alpha/empirical"), *((same, same) for same in OF_PARTS)):
            measure(quantity, metrics[metric])
        measure("speedup", metrics["speedup/measured"], "over the baseline")
        ms = {name: statistics.median(decode_ms([each]) for each in several) for name, several in runs.items()}
        measure("time per token", ms[DRAFTER], "ms")
        measure(ASSISTED, ms[ASSISTED], "ms per token")
        measure(f"over {ASSISTED}", ms[DRAFTER] / ms[ASSISTED])

    def _runs(self, decoders: Mapping[str, Decoder]) -> dict[str, list[Timed]]:
        """Timed generations by decoder, after two that compile and warm up."""
        runs: dict[str, list[Timed]] = {name: [] for name in decoders}
        for repeat in range(2 + self._sizes["repeats"]):
            for name, decoder in decoders.items():
                run = timed(decoder, self._prompts, self._stopping, [0], self._device)
                if repeat >= 2:
                    runs[name].append(run)
        return runs

    def _parts(self, loop: Engine, run: Timed) -> PartTimes:
        """Times of a loop's parts in the middle of the tokens just decoded."""
        return time_parts_amid(
            loop,
            self._prompts,
            run.generation.tokens,
            seeds=[0],
            repeats=PART_REPEATS,
            timer=self._timer,
            max_new_tokens=self._stopping.max_new_tokens,
        )

    def _floor(self) -> float:
        """Seconds to read the weights of a step once: all but embeddings that are not the output layer, too."""
        model = self._target.model.model
        read = sum(each.nbytes for each in model.parameters())
        if not model.config.tie_word_embeddings:
            read -= model.get_input_embeddings().weight.nbytes
        return read / self._bandwidth
