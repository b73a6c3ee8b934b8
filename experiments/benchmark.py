"""Every way to decode beside every other, in one process: `python -m experiments.benchmark` prints ms per token."""

import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.assemble import build, build_engine, build_sampling, prepare, register_resolvers
from experiments.benchmark_picture import draw_benchmark
from experiments.cells import Cells, markdown, shown
from experiments.compare import at_temperature, check_temperatures
from experiments.entry_point import announce, one_line_errors
from experiments.hugging_face import HuggingFaceGenerate
from experiments.kept import Kept
from experiments.knobs import check_kind
from experiments.measurement import Batch, Plan
from experiments.metrics import YARDSTICK, all_metrics, decode_ms, end_to_end_ms
from experiments.provenance import peak_memory_mb, provenance
from experiments.timing import Alone, Decoder, Parts, Timed, drafting_nothing, time_parts, time_parts_amid, timed
from framework.autoregressive import Autoregressive
from framework.cached_lm import CachedLM
from framework.compiled import why_not
from framework.drafter import Drafter
from framework.engine import Engine
from framework.pretrained import device_named
from framework.sampling import Sampling
from framework.target import Target

PART_REPEATS = 9  # in every repeat
MODES = ("eager", "compiled")
COLUMNS = [
    "T", "decoder", "mode", "ms/token", "decode ms", "HF generate", "HF assisted", "yardstick",
    "attainable", "efficiency", "τ", "d", "v", "compile s",
]  # fmt: skip

register_resolvers()


@dataclass
class Contender:
    """One way to decode, and what was seen of it.

    Attributes:
        name: of the decoder: yardstick, a drafter, or one of Hugging Face's.
        mode: eager, compiled, or "" for Hugging Face's.
        decoder: what decodes.
        loop: the engine whose parts are timed beside it: itself, or for the yardstick one that drafts nothing.
        runs: [repeat][batch].
        beside: every run with the parts of the loop's round, timed right after it.
        compile_seconds: what its first generation took beyond the second; 0 where nothing is compiled.
    """

    name: str
    mode: str
    decoder: Decoder
    loop: Engine | None = None
    runs: list[list[Timed]] = field(default_factory=list)
    beside: list[tuple[Timed, Parts]] = field(default_factory=list)
    compile_seconds: float = 0.0


@dataclass(frozen=True)
class Row:
    """One contender's figures. Ratios are above 1 where it is the faster one; None where there is none.

    Attributes:
        ms: milliseconds per token, prompts' reading included; median over repeats.
        low, high: the fastest and the slowest repeat.
        decode_ms: the same without reading the prompts.
        over: ratio to others of this run, end to end: HF generate, HF assisted at the same gamma, and the yardstick in
            the same mode, whose ratio is without reading the prompts, as everywhere.
        attainable: what a loop without cost would reach over that yardstick.
        efficiency: measured over attainable. Either loop is held against its own parts, timed right after it, so that
            the machine's pace, which changes within seconds, is the same for both.
        stages_ms: by stage over all prompts; medians.
    """

    temperature: float
    name: str
    mode: str
    ms: float
    low: float
    high: float
    decode_ms: float
    over: dict[str, float]
    attainable: float | None = None
    efficiency: float | None = None
    tau: float | None = None
    d: float | None = None
    v: float | None = None
    compile_seconds: float = 0.0
    stages_ms: dict[str, float] = field(default_factory=dict)

    @property
    def cells(self) -> list[str]:
        """As it is shown, under the headings of COLUMNS."""
        figures = [self.over.get("hf_generate"), self.over.get("hf_assisted"), self.over.get("yardstick")]
        figures += [self.attainable, self.efficiency, self.tau, self.d, self.v]
        return [
            f"{self.temperature:g}",
            self.name,
            self.mode,
            f"{self.ms:.2f} [{self.low:.2f}–{self.high:.2f}]",
            f"{self.decode_ms:.2f}",
            *("" if figure is None else f"{figure:.2f}" for figure in figures),
            f"{self.compile_seconds:.0f}" if self.compile_seconds else "",
        ]


def contenders(
    cfg: DictConfig, target: Target, drafters: dict[str, Drafter], sampling: Sampling
) -> Iterator[Contender]:
    """All that are to be compared at one temperature."""
    for mode in cfg.modes:
        compiled = mode == "compiled"
        plain = Autoregressive(target=target, sampling=sampling, compiled=compiled)
        engines = {
            name: build_engine(cfg, drafter, target, sampling, compiled=compiled) for name, drafter in drafters.items()
        }
        loop = drafting_nothing(next(iter(engines.values()))) if engines else None
        yield Contender(YARDSTICK, mode, plain, loop=loop)
        for name, engine in engines.items():
            yield Contender(name, mode, engine, loop=engine)
    # Hugging Face would need padding for a batch, and ends rows at other strings than ours.
    if cfg.hugging_face and cfg.batch_size == 1 and not cfg.stop_strings:
        gamma = build(cfg.gamma).max_gamma
        yield Contender("hf_generate", "", HuggingFaceGenerate(target=target, sampling=sampling))
        if not gamma:
            return
        models = [getattr(drafter, "model", None) for drafter in drafters.values()]
        small = next((model for model in models if isinstance(model, CachedLM)), None)
        if small is not None:
            yield Contender(
                "hf_assisted", "", HuggingFaceGenerate(target=target, sampling=sampling, drafter=small, gamma=gamma)
            )
            yield Contender(
                "hf_assisted_default", "", HuggingFaceGenerate(target=target, sampling=sampling, drafter=small)
            )
        yield Contender(
            "hf_prompt_lookup", "", HuggingFaceGenerate(target=target, sampling=sampling, copied_tokens=gamma)
        )


class Contest:
    """The contenders at one temperature, taking turns on the same prompts."""

    def __init__(self, all_of_them: list[Contender], target: Target, sampling: Sampling, plan: Plan):
        self.contenders = all_of_them
        self._target, self._sampling, self._plan = target, sampling, plan
        self._alone = {mode: Alone(target, compiled=mode == "compiled") for mode in MODES}

    def run(self) -> list[Row]:
        """Warm up, time interleaved, each beside its parts; the figures of each."""
        batches = self._plan.batches()
        for contender in self.contenders:
            announce(f"T={self._sampling.temperature:g} {contender.name} {contender.mode}: first generations")
            self._tell_costs(contender, batches[0])
            for batch in batches:
                first, again = (self._timed(contender, batch) for _ in range(2))
                if contender.mode == "compiled":
                    contender.compile_seconds += max(0.0, first.seconds - again.seconds)
                if contender.loop:
                    self._parts(contender, contender.loop, batch, again)
        for repeat in range(self._plan.repeats):
            # Whoever comes first in one repeat comes last in another.
            order = self.contenders[repeat:] + self.contenders[:repeat]
            for contender in self.contenders:
                contender.runs.append([])
            announce(f"T={self._sampling.temperature:g}, repeat {repeat + 1} of {self._plan.repeats}")
            for batch in batches:
                for contender in order if repeat % 2 == 0 else reversed(order):
                    contender.runs[-1].append(run := self._timed(contender, batch))
                    if contender.loop:
                        contender.beside.append((run, self._parts(contender, contender.loop, batch, run)))
        return [self._row(contender) for contender in self.contenders]

    def _tell_costs(self, contender: Contender, batch: Batch) -> None:
        """Let a gamma policy that asks know what drafting and the target's passes cost, after the prompts."""
        if contender.loop and (use_costs := getattr(contender.loop.gamma_policy, "use_costs", None)):
            alone, room = self._alone[contender.mode], self._plan.stopping.max_new_tokens
            prompts = [self._target.as_prompt(prompt) for prompt in batch.prompts]
            parts = time_parts(contender.loop, prompts, seeds=batch.seeds, repeats=PART_REPEATS, alone=alone, room=room)
            use_costs(parts.costs)

    def _parts(self, contender: Contender, loop: Engine, batch: Batch, run: Timed) -> Parts:
        """The parts of a round, in the middle of what was just decoded."""
        return time_parts_amid(
            loop,
            batch.prompts,
            run.generation.tokens,
            seeds=batch.seeds,
            repeats=PART_REPEATS,
            alone=self._alone[contender.mode],
            max_new_tokens=self._plan.stopping.max_new_tokens,
        )

    def _timed(self, contender: Contender, batch: Batch) -> Timed:
        return timed(contender.decoder, batch.prompts, self._plan.stopping, batch.seeds, self._target.device)

    def _row(self, contender: Contender) -> Row:
        ms = [end_to_end_ms(repeat) for repeat in contender.runs]
        explained = self._explained(contender, contender.decoder) if isinstance(contender.decoder, Engine) else {}
        return Row(
            temperature=self._sampling.temperature,
            name=contender.name,
            mode=contender.mode,
            ms=statistics.median(ms),
            low=min(ms),
            high=max(ms),
            decode_ms=statistics.median(map(decode_ms, contender.runs)),
            over=self._over(contender),
            compile_seconds=contender.compile_seconds,
            stages_ms=_stages_ms(contender.runs),
            **explained,
        )

    def _over(self, contender: Contender) -> dict[str, float]:
        """Ratios repeat by repeat, because a machine that is slow in one is slow for all; then their medians."""
        ratios = {}
        for other in self.contenders:
            if other is contender or other.name not in ("hf_generate", "hf_assisted", YARDSTICK):
                continue
            if other.name == YARDSTICK and other.mode != (contender.mode or "eager"):
                continue
            ms = decode_ms if other.name == YARDSTICK else end_to_end_ms
            pairs = zip(other.runs, contender.runs, strict=True)
            ratios[other.name] = statistics.median(ms(theirs) / ms(ours) for theirs, ours in pairs)
        return ratios

    def _explained(self, contender: Contender, engine: Engine) -> dict[str, float | None]:
        """What theory makes of the parts of its rounds."""
        tally = engine.new_tally(detailed=False)
        for run in contender.runs[0]:
            assert run.generation.tally is not None
            tally.add(run.generation.tally)
        yardstick = next(c for c in self.contenders if (c.name, c.mode) == (YARDSTICK, contender.mode))
        loops = (yardstick, contender)
        metrics = all_metrics(
            contender.name,
            tally,
            {each.name: each.beside for each in loops},
            {each.name: each.runs for each in loops},
            {},
        )
        names = {"attainable": "speedup/attainable", "efficiency": "efficiency", "tau": "tau", "d": "d", "v": "v"}
        return {ours: metrics.get(name) for ours, name in names.items()}


def _stages_ms(runs: list[list[Timed]]) -> dict[str, float]:
    """Milliseconds by stage over all prompts; medians over repeats."""
    stages = {stage for repeat in runs for run in repeat for stage in run.stages}
    return {
        stage: 1000 * statistics.median(sum(run.stages.get(stage, 0.0) for run in repeat) for repeat in runs)
        for stage in sorted(stages)
    }


def table(rows: list[Row]) -> Cells:
    return [COLUMNS, *(row.cells for row in rows)]


def check_before_loading(cfg: DictConfig) -> None:
    """
    Raises:
        ValueError: the message names the yaml key.
    """
    if not OmegaConf.is_list(cfg.modes) or not cfg.modes or not set(cfg.modes) <= set(MODES):
        raise ValueError(f"modes is {cfg.modes!r}; allowed: a list of {', '.join(MODES)}, at least one")
    if len(set(cfg.modes)) < len(cfg.modes):
        raise ValueError(f"modes is {cfg.modes!r}; allowed: each of {', '.join(MODES)} at most once")
    check_temperatures(cfg)
    check_kind("hugging_face", cfg.hugging_face, [bool])
    if "compiled" in cfg.modes and (reason := why_not(device_named(cfg.device))):
        raise ValueError(f"modes is {cfg.modes!r}, but {reason}; or set modes=[eager]")


@hydra.main(version_base="1.3", config_path="../conf", config_name="benchmark")
def main(cfg: DictConfig) -> None:
    with one_line_errors():
        check_before_loading(cfg)
        started = time.perf_counter()
        samplings = [build_sampling(at_temperature(cfg, temperature)) for temperature in cfg.temperatures]
        target, plan, drafters = prepare(cfg, {str(name): node for name, node in cfg.drafters.items()}, Kept())
        rows: list[Row] = []
        for sampling in samplings:
            field_of = list(contenders(cfg, target, drafters, sampling))
            rows += Contest(field_of, target, sampling, plan).run()
            torch._dynamo.reset()  # programs of this temperature are not needed again
        folder = Path(HydraConfig.get().runtime.output_dir)
        about = provenance(target.device) | {
            "seconds": time.perf_counter() - started,
            "peak_memory_mb": peak_memory_mb(target.device),
        }
        write(rows, folder, about, OmegaConf.to_container(cfg, resolve=True))
        console = Console(width=None if sys.stdout.isatty() else 170)
        console.print(shown(table(rows), title="ms per token, and how many times faster than others it is"))
        print(f"benchmark.json, benchmark.md, benchmark.png: {folder}")


def write(rows: list[Row], folder: Path, about: dict, config: object) -> None:
    """The rows as JSON, for a document, and as a picture."""
    record = {"about": about, "config": config, "rows": [asdict(row) for row in rows]}
    (folder / "benchmark.json").write_text(json.dumps(record, indent=1))
    (folder / "benchmark.md").write_text(markdown(table(rows)), encoding="utf-8")
    labelled = [(f"{row.name} {row.mode}", row) for row in rows]
    draw_benchmark(labelled, folder / "benchmark.png")


if __name__ == "__main__":
    main()
