"""Compare speculative with plain beam search, in results and speed: `python -m experiments.beam_search`."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("beam_search")
    raise SystemExit

import itertools
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.config.builders import (
    build,
    build_prompts,
    build_stopping,
    build_target,
    check_basics,
)
from experiments.config.cli_errors import announce, one_line_errors, status
from experiments.config.command import command
from experiments.config.option_checks import check_kind
from experiments.config.progress import Steps
from experiments.measurement.timing import Decoder, Timed, timed
from experiments.peers.hugging_face import HuggingFaceGenerate
from experiments.reporting.tables.text_table import Cells, markdown, shown
from experiments.results.provenance import provenance
from framework.core.option_error import options_under
from framework.core.sampling import Sampling
from framework.core.validation import check_whole
from framework.decoding.beam_search import BeamGeneration, BeamSearch
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.gamma_policies.gamma_policy import LARGEST
from framework.metrics.equality import TORN
from framework.metrics.tally import Tally
from framework.models.cached_lm import CachedLM
from framework.models.target import Target
from framework.prompts.prompt_set import PromptSet

COLUMNS = ["beams", "decoder", "drafted", "γ", "same texts", "score gap", "passes", "α", "τ", "ms/token", "speedup"]
MOST_BEAMS = 1000
WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Row:
    """Results of one decoder, compared with plain beam search with the same number of beams.

    Attributes:
        beams: number of beams.
        decoder: plain, speculative or hf_generate.
        drafted: beams of the draft model; None without drafting.
        gamma: steps that the draft model goes ahead; None without drafting.
        same: number of prompts whose finished texts all equal those of plain beam search.
        torn: number of prompts whose texts differ but whose scores agree up to rounding (1e-4), so that they tie.
        prompts: number of prompts.
        score_gap: largest difference from the score of plain beam search at the same rank.
        counts: counts of the tally; empty for Hugging Face.
        alpha: accepted over tested levels of the drafts.
        tau: search steps per target pass.
        passes: target passes without prefill.
        ms: milliseconds per step of plain beam search, without prefill.
        speedup: time of plain beam search over this decoder's time.
        texts: best text of every prompt.
    """

    beams: int
    decoder: str
    drafted: int | None
    gamma: int | None
    same: int
    torn: int
    prompts: int
    score_gap: float
    counts: dict[str, object]
    alpha: float | None
    tau: float | None
    passes: float | None
    ms: float
    speedup: float
    texts: list[str]

    @property
    def cells(self) -> list[str]:
        """Formatted cells in the order of COLUMNS."""
        torn = f" + {self.torn} as good" if self.torn else ""
        return [
            str(self.beams),
            self.decoder,
            *("" if number is None else str(number) for number in (self.drafted, self.gamma)),
            f"{self.same}/{self.prompts}{torn}",
            f"{self.score_gap:.0e}",
            "" if self.passes is None else f"{self.passes:.0f}",
            *("" if ratio is None else f"{ratio:.2f}" for ratio in (self.alpha, self.tau)),
            f"{self.ms:.2f}",
            f"{self.speedup:.2f}",
        ]


class BeamBenchmark:
    """Plain, speculative and Hugging Face's beam search with equal beams, interleaved on the same prompts."""

    def __init__(self, cfg: DictConfig, target: Target, drafter: CachedLM, num_beams: int):
        rule = {
            "num_beams": num_beams,
            "length_penalty": float(cfg.length_penalty),
            "early_stopping": cfg.early_stopping,
        }
        self._target, self._num_beams = target, num_beams
        self._decoders: dict[tuple[str, int | None, int | None], Decoder] = {
            ("plain", None, None): BeamSearch(target=target, **rule)
        }
        if cfg.hugging_face and num_beams > 1:
            self._decoders["hf_generate", None, None] = HuggingFaceGenerate(
                target=target, sampling=Sampling(temperature=0), beams=rule
            )
        for times, gamma in itertools.product(cfg.drafted, cfg.gammas):
            policy, drafted = Fixed(gamma=gamma), times * num_beams
            self._decoders["speculative", drafted, gamma] = BeamSearch(
                target=target, drafter=drafter, drafted_beams=drafted, gamma_policy=policy, **rule
            )

    def rows(self, prompts: PromptSet, stopping: Stopping) -> Iterator[Row]:
        """Decode all prompts with every decoder; yield a row per decoder, plain beam search first."""
        runs: dict[Any, list[Timed]] = {key: [] for key in self._decoders}
        short = Stopping(max_new_tokens=min(WARM_UP_TOKENS, stopping.max_new_tokens), eos_ids=stopping.eos_ids)
        for decoder in self._decoders.values():
            self._timed(decoder, list(prompts.prompts[0].tokens), short)
        with Steps(len(prompts.prompts), is_timed=True) as steps:
            for number, prompt in enumerate(prompts.prompts):
                # Reverse the order at every prompt, so that no decoder is always first.
                for key in list(runs) if number % 2 == 0 else reversed(list(runs)):
                    runs[key].append(self._timed(self._decoders[key], list(prompt.tokens), stopping))
                    steps.update(f"{self._num_beams} beams, {key[0]}", advance=1 / len(runs))
        plain = runs["plain", None, None]
        for key, its in runs.items():
            yield self._row(key, its, plain)

    def _timed(self, decoder: Decoder, prompt: list[int], stopping: Stopping) -> Timed:
        return timed(decoder, [prompt], stopping, [0], self._target.device)

    def _row(self, key: tuple[str, int | None, int | None], runs: list[Timed], plain: list[Timed]) -> Row:
        pairs = [(_beams(run), _beams(other)) for run, other in zip(runs, plain, strict=True)]
        same = [[tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs] for ours, theirs in pairs]
        gaps = [
            max(abs(mine - other) for (_, mine), (_, other) in zip(ours, theirs, strict=False))
            for ours, theirs in pairs
        ]
        tally = _added(runs) if key[0] != "hf_generate" else None
        metrics = tally.metrics() if tally else {}
        seconds, plain_seconds = (sum(run.decode_seconds for run in each) for each in (runs, plain))
        return Row(
            beams=self._num_beams,
            decoder=key[0],
            drafted=key[1],
            gamma=key[2],
            same=sum(same),
            torn=sum(not equal and gap < TORN for equal, gap in zip(same, gaps, strict=True)),
            prompts=len(pairs),
            score_gap=max(gaps),
            counts=tally.counts() if tally else {},
            alpha=metrics.get("alpha/empirical"),
            tau=metrics.get("tau"),
            passes=tally.num_rounds if tally else None,
            ms=1000 * seconds / max(1, _added(plain).committed),
            speedup=plain_seconds / seconds if seconds else 1.0,
            texts=[self._target.tokenizer.decode(run.generation.tokens[0]) for run in runs],
        )


def _beams(run: Timed) -> list[tuple[tuple[int, ...], float]]:
    """Finished hypotheses of a run, with their scores."""
    assert isinstance(run.generation, BeamGeneration)
    return [(text.tokens, text.score) for text in run.generation.beams[0]]


def _added(runs: list[Timed]) -> Tally:
    """Sum of the tallies of all prompts."""
    return Tally.total(run.generation.tally for run in runs if run.generation.tally is not None)


def check_before_loading(cfg: DictConfig) -> None:
    """Run all checks that need no model.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    check_basics(cfg, {"max_new_tokens": 1}, or_null=("prompts.count", "prompts.max_prompt_tokens", "target.context"))
    for key, most in (("beams", MOST_BEAMS), ("drafted", MOST_BEAMS), ("gammas", LARGEST)):
        if not OmegaConf.is_list(cfg[key]) or (not cfg[key] and key == "beams"):
            raise ValueError(f"{key} is {cfg[key]!r}; allowed: a list of whole numbers, such as [2, 4]")
        for number in cfg[key]:
            check_whole(key, number, least=1, most=most)
    for key in ("stop_at_eos", "early_stopping", "hugging_face"):
        check_kind(key, cfg[key], [bool])
    penalty = cfg.length_penalty
    if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not math.isfinite(penalty):
        raise ValueError(f"length_penalty is {penalty!r}; allowed: a number")
    if cfg.stop_strings != []:
        raise ValueError(f"stop_strings is {cfg.stop_strings!r}; allowed: [], since beam search does not support them")
    build(cfg.prompts.source), build(cfg.draft_model)


@command("beam_search")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was written"):
        check_before_loading(cfg)
        with status("loading the models"):
            target = build_target(cfg)
            with options_under("draft_model"):
                drafter: CachedLM = build(cfg.draft_model)(target)
            prompts, stopping = build_prompts(cfg, target), build_stopping(cfg, target)
        rows: list[Row] = []
        for num_beams in cfg.beams:
            announce(f"{num_beams} beams, {len(prompts.prompts)} prompts")
            rows += BeamBenchmark(cfg, target, drafter, num_beams).rows(prompts, stopping)
        write(cfg, rows, target, Path(HydraConfig.get().runtime.output_dir))


def write(cfg: DictConfig, rows: list[Row], target: Target, folder: Path) -> None:
    """Print the rows, and write them as Markdown and JSON."""
    cells: Cells = [COLUMNS, *(row.cells for row in rows)]
    caption = "same texts: all finished texts equal those of plain beam search; times: without prefill"
    Console(width=None if sys.stdout.isatty() else 150).print(shown(cells, title="Beam search", caption=caption))
    record = {
        "about": provenance(target.device),
        "config": OmegaConf.to_container(cfg, resolve=True),
        "rows": [asdict(row) for row in rows],
    }
    (folder / "beam_search.json").write_text(json.dumps(record, indent=1))
    (folder / "beam_search.md").write_text(markdown(cells), encoding="utf-8")
    print(f"beam_search.json and beam_search.md: {folder}")
