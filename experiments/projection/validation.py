"""Predicted against measured times of target passes, those recorded on this project's machine or those timed here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from experiments.gpu.parts import drafter_named
from experiments.gpu.random_models import random_prompts, random_target
from experiments.gpu.rounds import DRAWN, engine_of
from experiments.measurement.timing import PartTimer, time_parts
from experiments.projection.hardware import Hardware
from experiments.projection.model_size import ModelSize
from experiments.projection.presets import check_keys, names, read_preset
from experiments.projection.roofline import Roofline

NEEDED = ("name", "source", "hardware", "config", "context", "milliseconds")
REPEATS = 9  # timings of each pass


@dataclass(frozen=True)
class MeasuredPasses:
    """Times of passes of one model over 1 and more tokens of one text.

    Attributes:
        model: its sizes.
        config: entries of its config.json.
        hardware: name of the preset of the machine.
        context: tokens before the pass.
        milliseconds: times by number of tokens.
        source: where they are stated.
    """

    model: ModelSize
    config: Mapping[str, Any]
    hardware: str
    context: int
    milliseconds: Mapping[int, float]
    source: str


@dataclass(frozen=True)
class Comparison:
    """A predicted and a measured time.

    Attributes:
        model: name of the model.
        tokens: tokens of the pass.
        measured_ms: measured milliseconds.
        overlapping_ms: predicted, with reading and arithmetic at the same time: the roofline, a lower bound.
        successive_ms: predicted, with one after the other.
        bound: the largest cause of the predicted time.
    """

    model: str
    tokens: int
    measured_ms: float
    overlapping_ms: float
    successive_ms: float
    bound: str

    @property
    def overlapping_error(self) -> float:
        """Predicted over measured time, minus one."""
        return self.overlapping_ms / self.measured_ms - 1

    @property
    def successive_error(self) -> float:
        """The same for the time without overlap."""
        return self.successive_ms / self.measured_ms - 1


def recorded_passes() -> list[MeasuredPasses]:
    """The passes in conf/presets/passes, smallest model first."""
    found = []
    for name in names("passes"):
        content = read_preset("passes", "passes", name)
        check_keys(f"passes {name}", content, NEEDED, ())
        model = ModelSize.of_values(content["config"], name=content["name"], source=content["source"], key="passes")
        others = {key: content[key] for key in ("config", "hardware", "context", "milliseconds", "source")}
        found.append(MeasuredPasses(model=model, **others))
    return sorted(found, key=lambda passes: passes.model.parameters)


def timed_here(passes: MeasuredPasses, device: torch.device, dtype: str, *, compiled: bool) -> MeasuredPasses:
    """The same passes, timed on a device with random weights."""
    sizes = {key: value for key, value in passes.config.items() if key != "model_type"}
    target = random_target(sizes, device=device, dtype=dtype)
    timer, text = PartTimer(target, compiled=compiled), random_prompts(target, [passes.context])
    milliseconds = dict[int, float]()
    for tokens in sorted(set(passes.milliseconds) - {1}):
        engine = engine_of(target, drafter_named("prompt_lookup", target), DRAWN, gamma=tokens - 1)
        parts = time_parts(engine, text, seeds=[0], repeats=REPEATS, timer=timer, room=2 * tokens, every_depth=False)
        milliseconds |= {1: 1000 * parts.one_row, parts.nodes[-1] + 1: 1000 * parts.rows[-1]}
    return replace(passes, milliseconds=milliseconds, source="timed here")


def compare_passes(
    passes: Iterable[MeasuredPasses], hardware: Hardware, dtype: str, *, kernels_per_layer: int
) -> list[Comparison]:
    """Predict every measured pass, with and without overlap of reading and arithmetic."""
    roofline = Roofline(hardware, dtype, kernels_per_layer=kernels_per_layer)
    found = []
    for each in passes:
        for tokens, milliseconds in sorted(each.milliseconds.items()):
            predicted = roofline.pass_time(each.model, batch=1, tokens=tokens, context=each.context)
            found.append(
                Comparison(
                    model=each.model.name,
                    tokens=tokens,
                    measured_ms=milliseconds,
                    overlapping_ms=1000 * predicted.seconds,
                    successive_ms=1000 * replace(predicted, overlap=False).seconds,
                    bound=predicted.bound,
                )
            )
    return found
