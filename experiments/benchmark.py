"""Benchmark all decoders in one process: `python -m experiments.benchmark` prints ms per token."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("benchmark")
    raise SystemExit

import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.compare import at_temperature, check_temperatures
from experiments.config.builders import build, build_engine, build_sampling
from experiments.config.cli_errors import announce, one_line_errors
from experiments.config.command import command
from experiments.config.fitting_drafters import prepare_comparison
from experiments.config.option_checks import check_kind
from experiments.config.progress import Steps
from experiments.measurement.metrics import BASELINE, all_metrics, decode_ms, end_to_end_ms, parted_from
from experiments.measurement.plan import Batch, Plan
from experiments.measurement.resource_cache import ResourceCache
from experiments.measurement.round_timing import provide_profile, recorded_profile, run_every_gamma
from experiments.measurement.timing import (
    Decoder,
    PartTimer,
    PartTimes,
    Timed,
    drafting_nothing,
    time_parts,
    time_parts_amid,
    timed,
)
from experiments.peers.engines import RunningPeer, check_peers, decoders_at, running_peers
from experiments.peers.hugging_face import HuggingFaceGenerate
from experiments.reporting.tables.text_table import ALARM, Cells, markdown, shown
from experiments.results.model_names import facts, in_words
from experiments.results.provenance import peak_memory, provenance
from framework.core.drafter import Drafter, models_of
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.gamma_policies.gamma_policy import is_cost_aware
from framework.gamma_policies.round_profile import is_profiled
from framework.kernels.compiled_graphs import why_not
from framework.metrics.equality import within_float32
from framework.models.cached_lm import CachedLM
from framework.models.pretrained import device_named
from framework.models.target import Target

PART_REPEATS = 9  # timings of each part per repeat
GAMMA_BESIDE_PROFILES = 4  # of Hugging Face's loops, if ours choose gamma by a profile
MODES = ("eager", "compiled")
COLUMNS = [
    "T", "decoder", "mode", "ms/token", "decode ms", "HF generate", "HF assisted", "baseline",
    "zero-overhead", "efficiency", "γ", "τ", "d", "v", "compile s", "equal",
]  # fmt: skip


@dataclass
class Entry:
    """One decoder and its timings.

    Attributes:
        name: baseline, a drafter, or a decoder of Hugging Face or of a peer.
        mode: eager, compiled, or "" for decoders of others.
        decoder: the decoder.
        loop: engine whose parts are timed: the decoder itself, or for the baseline an engine at gamma 0.
        is_peer: whether it is a decoder of a peer, such as OpenVINO.
        runs: timed batches, `runs[repeat][batch]`.
        with_parts: every run with the times of the loop's parts, taken right after it.
        stages: seconds by stage, `stages[repeat][batch]`; on a GPU, of one run that is not timed otherwise.
        compile_seconds: extra time of the first generations over the second ones, and time to make the graphs of all
            gammas that a policy may choose; 0 if nothing is compiled.
        options: options of drafter and verifier, which identify a stored profile of rounds.
    """

    name: str
    mode: str
    decoder: Decoder
    loop: Engine | None = None
    is_peer: bool = False
    runs: list[list[Timed]] = field(default_factory=list)
    with_parts: list[tuple[Timed, PartTimes]] = field(default_factory=list)
    stages: list[list[dict[str, float]]] = field(default_factory=list)
    compile_seconds: float = 0.0
    options: Any = None


@dataclass(frozen=True)
class Row:
    """Results of one entry. Speedups above 1 mean that it is faster; None: not available.

    Attributes:
        temperature: sampling temperature.
        name: name of the entry.
        mode: mode of the entry.
        ms: milliseconds per token, prefill included; median over repeats.
        low: ms of the fastest repeat.
        high: ms of the slowest repeat.
        decode_ms: milliseconds per token without prefill; median over repeats.
        over: speedups over others: end to end over HF generate, HF assisted (equal gamma) and every decoder of a peer,
            and without prefill, as in all records, over the baseline in the same mode.
        zero_overhead: zero-overhead speedup over that baseline.
        efficiency: measured over zero-overhead speedup. Each loop is compared with its own parts, timed right after
            it, because the machine's speed drifts within seconds.
        gamma: gamma of a round, mean.
        tau: tokens per round.
        d: drafting time per round in one-row target passes.
        v: time of a round's target pass in one-row target passes.
        compile_seconds: as in `Entry`.
        round_profile: profile that the gamma policy decided by; None: it decides by none.
        stages_ms: milliseconds by stage over all prompts.
        tokens_equal: whether greedy tokens equal those of the first baseline, as `within_float32` defines it; None:
            not greedy, not in float32, or that baseline itself.
        is_peer: as in `Entry`.
    """

    temperature: float
    name: str
    mode: str
    ms: float
    low: float
    high: float
    decode_ms: float
    over: dict[str, float]
    zero_overhead: float | None = None
    efficiency: float | None = None
    gamma: float | None = None
    tau: float | None = None
    d: float | None = None
    v: float | None = None
    compile_seconds: float = 0.0
    round_profile: dict[str, Any] | None = None
    stages_ms: dict[str, float] = field(default_factory=dict)
    tokens_equal: bool | None = None
    is_peer: bool = False

    @property
    def cells(self) -> list[str]:
        """Formatted cells in the order of COLUMNS."""
        figures = [self.over.get("hf_generate"), self.over.get("hf_assisted"), self.over.get("baseline")]
        figures += [self.zero_overhead, self.efficiency, self.gamma, self.tau, self.d, self.v]
        return [
            f"{self.temperature:g}",
            self.name,
            self.mode,
            f"{self.ms:.2f} [{self.low:.2f}–{self.high:.2f}]",
            f"{self.decode_ms:.2f}",
            *("" if figure is None else f"{figure:.2f}" for figure in figures),
            f"{self.compile_seconds:.0f}" if self.compile_seconds else "",
            {None: "", True: "yes", False: f"{ALARM} NO"}[self.tokens_equal],
        ]


def entries(
    cfg: DictConfig,
    target: Target,
    drafters: dict[str, Drafter],
    sampling: Sampling,
    peers: Sequence[RunningPeer] = (),
) -> Iterator[Entry]:
    """Build all entries at one temperature."""
    for mode in cfg.modes:
        compiled = mode == "compiled"
        plain = Autoregressive(target=target, sampling=sampling, compiled=compiled)
        engines = {
            name: build_engine(cfg, drafter, target, sampling, compiled=compiled) for name, drafter in drafters.items()
        }
        loop = drafting_nothing(next(iter(engines.values()))) if engines else None
        yield Entry(BASELINE, mode, plain, loop=loop)
        for name, engine in engines.items():
            options = [OmegaConf.to_container(part, resolve=True) for part in (cfg.drafters[name], cfg.verifier)]
            yield Entry(name, mode, engine, loop=engine, options=options)
    for name, decoder in decoders_at(peers, sampling):
        yield Entry(name, "", decoder, is_peer=True)
    # Hugging Face pads batches and handles stop strings differently.
    if cfg.hugging_face and cfg.batch_size == 1 and not cfg.refill and not cfg.stop_strings:
        policy = build(cfg.gamma)
        gamma = GAMMA_BESIDE_PROFILES if is_profiled(policy) else policy.max_gamma
        yield Entry("hf_generate", "", HuggingFaceGenerate(target=target, sampling=sampling))
        if not gamma:
            return
        if (small := draft_model_of(drafters)) is not None:
            yield Entry(
                "hf_assisted", "", HuggingFaceGenerate(target=target, sampling=sampling, drafter=small, gamma=gamma)
            )
            yield Entry("hf_assisted_default", "", HuggingFaceGenerate(target=target, sampling=sampling, drafter=small))
        yield Entry("hf_prompt_lookup", "", HuggingFaceGenerate(target=target, sampling=sampling, copied_tokens=gamma))


def draft_model_of(drafters: Mapping[str, Drafter]) -> CachedLM | None:
    """The model of the first drafter that is a small language model."""
    models = [getattr(drafter, "model", None) for drafter in drafters.values()]
    return next((model for model in models if isinstance(model, CachedLM)), None)


class Benchmark:
    """Interleaved timing of all entries at one temperature on the same prompts."""

    def __init__(self, entries: list[Entry], target: Target, sampling: Sampling, plan: Plan):
        self.entries = entries
        self._target, self._sampling, self._plan = target, sampling, plan
        self._timers = {mode: PartTimer(target, compiled=mode == "compiled") for mode in MODES}

    def run(self) -> list[Row]:
        """Warm up, time the entries interleaved with their parts, and return a row for each."""
        batches, at = self._plan.batches(), f"T={self._sampling.temperature:g}"
        for entry in self.entries:
            announce(f"{at} {entry.name} {entry.mode}: first generations")
            self._warm_up(entry, batches)
        with Steps(self._plan.repeats * len(batches) * len(self.entries), is_timed=True) as steps:
            for repeat in range(self._plan.repeats):
                # Rotate and reverse the order, so that no entry is always first.
                order = self.entries[repeat:] + self.entries[:repeat]
                for entry in self.entries:
                    entry.runs.append([])
                for batch in batches:
                    for entry in order if repeat % 2 == 0 else reversed(order):
                        self._time(entry, batch)
                        doing = f"{at}, repeat {repeat + 1} of {self._plan.repeats}, {entry.name} {entry.mode}"
                        steps.update(doing, advance=1)
        return [self._row(entry) for entry in self.entries]

    def _warm_up(self, entry: Entry, batches: Sequence[Batch]) -> None:
        """Generate every batch twice; the difference is the time of compiling."""
        begun = time.perf_counter()
        self._measure_costs(entry, batches)
        if entry.mode == "compiled" and entry.loop and is_profiled(entry.loop.gamma_policy):
            for batch in batches:
                run_every_gamma(entry.loop, batch, self._plan.stopping)
            entry.compile_seconds += time.perf_counter() - begun
        with Steps(len(batches), is_timed=True) as steps:
            for batch in batches:
                first = self._timed(entry, batch)
                again = self._timed(entry, batch, every_stage=True)
                if self._target.device.type != "cpu":
                    entry.stages = [[*(entry.stages or [[]])[0], again.stages]]
                if entry.mode == "compiled":
                    entry.compile_seconds += max(0.0, first.seconds - again.seconds)
                if entry.loop:
                    self._parts(entry, entry.loop, batch, again)
                steps.update(f"first generations of {entry.name} {entry.mode}", advance=1)

    def _time(self, entry: Entry, batch: Batch) -> None:
        """Time a batch, and right after it the parts of the entry's loop."""
        entry.runs[-1].append(run := self._timed(entry, batch))
        if entry.loop:
            entry.with_parts.append((run, self._parts(entry, entry.loop, batch, run)))

    def _measure_costs(self, entry: Entry, batches: Sequence[Batch]) -> None:
        """Pass costs of the parts, timed after the prompts, or a profile of rounds to a policy that decides by them."""
        if entry.loop:
            provide_profile(entry.loop, batches, stopping=self._plan.stopping, options=entry.options)
        if entry.loop and is_cost_aware(entry.loop.gamma_policy):
            timer, room = self._timers[entry.mode], self._plan.stopping.max_new_tokens
            batch = batches[0].beginning
            prompts = [self._target.as_prompt(prompt) for prompt in batch.prompts]
            parts = time_parts(entry.loop, prompts, seeds=batch.seeds, repeats=PART_REPEATS, timer=timer, room=room)
            entry.loop.gamma_policy.use_costs(parts.costs)

    def _parts(self, entry: Entry, loop: Engine, batch: Batch, run: Timed) -> PartTimes:
        """Time the parts of a round in the middle of the tokens just decoded."""
        beginning = batch.beginning
        return time_parts_amid(
            loop,
            beginning.prompts,
            run.generation.tokens[: len(beginning.prompts)],
            seeds=beginning.seeds,
            repeats=PART_REPEATS,
            timer=self._timers[entry.mode],
            max_new_tokens=self._plan.stopping.max_new_tokens,
        )

    def _timed(self, entry: Entry, batch: Batch, *, every_stage: bool = False) -> Timed:
        arguments = (entry.decoder, batch.prompts, self._plan.stopping, batch.seeds, self._target.device)
        return timed(*arguments, num_rows=batch.num_rows, every_stage=every_stage)

    def _row(self, entry: Entry) -> Row:
        ms = [end_to_end_ms(repeat) for repeat in entry.runs]
        explained = self._explained(entry, entry.decoder) if isinstance(entry.decoder, Engine) else {}
        return Row(
            temperature=self._sampling.temperature,
            name=entry.name,
            mode=entry.mode,
            ms=statistics.median(ms),
            low=min(ms),
            high=max(ms),
            decode_ms=statistics.median(map(decode_ms, entry.runs)),
            over=self._over(entry),
            compile_seconds=entry.compile_seconds,
            round_profile=self._round_profile(entry),
            stages_ms=_stages_ms(entry.stages or [[run.stages for run in repeat] for repeat in entry.runs]),
            tokens_equal=self._tokens_equal(entry),
            is_peer=entry.is_peer,
            **explained,
        )

    def _tokens_equal(self, entry: Entry) -> bool | None:
        """Whether the greedy tokens are those of the first entry, a baseline; None: not comparable."""
        first, target = self.entries[0], self._target
        if entry is first or not self._sampling.greedy or target.model.model.dtype != torch.float32:
            return None
        prompts = [prompt for batch in self._plan.batches() for prompt in batch.prompts]
        runs = {"first": first.runs, "other": entry.runs}
        parted = parted_from(("first",), "other", runs, target, prompts, self._plan.stopping)["first"]
        num_tokens = sum(len(tokens) for run in entry.runs[0] for tokens in run.generation.tokens)
        return within_float32(parted, num_tokens)

    def _round_profile(self, entry: Entry) -> dict[str, Any] | None:
        loop, (first, *_) = entry.loop, self._plan.batches()
        return None if loop is None else recorded_profile(loop, entry.options, first, self._plan.stopping)

    def _over(self, entry: Entry) -> dict[str, float]:
        """Speedups over other entries: medians of ratios per repeat, which cancel machine drift."""
        ratios = {}
        for other in self.entries:
            if other is entry or not (other.is_peer or other.name in ("hf_generate", "hf_assisted", BASELINE)):
                continue
            if other.name == BASELINE and other.mode != (entry.mode or "eager"):
                continue
            ms = decode_ms if other.name == BASELINE else end_to_end_ms
            pairs = zip(other.runs, entry.runs, strict=True)
            ratios[other.name] = statistics.median(ms(theirs) / ms(ours) for theirs, ours in pairs)
        return ratios

    def _explained(self, entry: Entry, engine: Engine) -> dict[str, float | None]:
        """Zero-overhead speedup, efficiency, gamma, tau, d and v, from counts and part times."""
        tally = engine.new_tally(detailed=False)
        for run in entry.runs[0]:
            assert run.generation.tally is not None
            tally.add(run.generation.tally)
        baseline = next(c for c in self.entries if (c.name, c.mode) == (BASELINE, entry.mode))
        loops = (baseline, entry)
        metrics = all_metrics(
            entry.name,
            tally,
            {each.name: each.with_parts for each in loops},
            {each.name: each.runs for each in loops},
            {},
        )
        names = {"zero_overhead": "speedup/zero_overhead", "efficiency": "efficiency", "gamma": "gamma/chosen"}
        names |= {name: name for name in ("tau", "d", "v")}
        return {ours: metrics.get(name) for ours, name in names.items()}


def _stages_ms(repeats: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Milliseconds by stage, summed over all prompts; medians over repeats."""
    stages = sorted({stage for repeat in repeats for batch in repeat for stage in batch})
    return {
        stage: 1000 * statistics.median(sum(batch.get(stage, 0.0) for batch in repeat) for repeat in repeats)
        for stage in stages
    }


def table(rows: list[Row]) -> Cells:
    return [COLUMNS, *(row.cells for row in rows)]


def peers_table(rows: list[Row]) -> Cells:
    """Speedups of our decoders over each decoder of a peer; without peers, the heading alone."""
    peers = list(dict.fromkeys(row.name for row in rows if row.is_peer))
    ours = [row for row in rows if peers and row.mode]
    heading = ["T", "decoder", "mode", *peers]
    return [heading, *([f"{row.temperature:g}", row.name, row.mode, *_ratios(row, peers)] for row in ours)]


def _ratios(row: Row, names: Sequence[str]) -> list[str]:
    return [f"{row.over[name]:.2f}" if name in row.over else "" for name in names]


def check_before_loading(cfg: DictConfig) -> None:
    """
    Raises:
        ValueError: the message names the yaml key.
    """
    if not OmegaConf.is_list(cfg.modes) or not cfg.modes or not set(cfg.modes) <= set(MODES):
        raise ValueError(f"modes is {cfg.modes!r}; allowed: a list of {', '.join(MODES)}, at least one")
    if len(set(cfg.modes)) < len(cfg.modes):
        raise ValueError(f"modes is {cfg.modes!r}; allowed: each of {', '.join(MODES)} at most once")
    if cfg.engine.compile != "auto":
        raise ValueError(
            f"engine.compile is {cfg.engine.compile!r}, and modes decides here; allowed: auto, with modes=[eager] or "
            "modes=[compiled]"
        )
    check_temperatures(cfg)
    check_kind("hugging_face", cfg.hugging_face, [bool])
    check_peers(cfg)
    if "compiled" in cfg.modes and (reason := why_not(device_named(cfg.device))):
        raise ValueError(f"modes is {cfg.modes!r}, but {reason}; or set modes=[eager]")
    if "compiled" not in cfg.modes and cfg.target.get("compile_prefill"):
        raise ValueError(
            f"target.compile_prefill is true, and modes is {cfg.modes!r}; allowed: false, or modes=[compiled]"
        )


@command("benchmark")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was kept"):
        check_before_loading(cfg)
        started = time.perf_counter()
        samplings = [build_sampling(at_temperature(cfg, temperature)) for temperature in cfg.temperatures]
        target, plan, drafters = prepare_comparison(cfg, ResourceCache())
        models = {"target": facts([target.model.model])}
        models |= {name: facts(models_of(drafter)) for name, drafter in drafters.items()}
        rows: list[Row] = []
        gammas = cfg.peers_gamma or [build(cfg.gamma).max_gamma]
        with running_peers(cfg.peers, target, draft_model_of(drafters), plan, gammas=gammas) as peers:
            for sampling in samplings:
                rows += Benchmark(list(entries(cfg, target, drafters, sampling, peers)), target, sampling, plan).run()
                torch._dynamo.reset()  # frees the compiled graphs of this temperature
        folder = Path(HydraConfig.get().runtime.output_dir)
        about = provenance(target.device) | {
            "seconds": time.perf_counter() - started,
            "models": models,
            "peers": {peer.process.name: peer.process.version for peer in peers},
        }
        about |= peak_memory(target.device)
        write(rows, folder, about, OmegaConf.to_container(cfg, resolve=True))
        console = Console(width=None if sys.stdout.isatty() else 180)
        console.print(shown(table(rows), title=f"{in_words(models, 'target')}: ms per token, and speedups over others"))
        if peers:
            console.print(shown(peers_table(rows), title="speedups over the decoders of peers, prefill included"))
        print(f"benchmark.json, benchmark.md, benchmark.png: {folder}")


def write(rows: list[Row], folder: Path, about: dict, config: object) -> None:
    """Write the rows as JSON, as Markdown and as a plot."""
    from experiments.reporting.plots.benchmark_picture import draw_benchmark  # matplotlib takes a second

    record = {"about": about, "config": config, "rows": [asdict(row) for row in rows]}
    (folder / "benchmark.json").write_text(json.dumps(record, indent=1))
    tables = [table(rows), peers_table(rows)]
    text = "\n".join(markdown(cells) for cells in tables if cells[1:])
    (folder / "benchmark.md").write_text(text, encoding="utf-8")
    labelled = [(f"{row.name} {row.mode}", row) for row in rows]
    draw_benchmark(labelled, folder / "benchmark.png")
