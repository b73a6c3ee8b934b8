"""Compare acceptance rules on equal drafts: `python -m experiments.compare_rules` prints tokens per round."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("compare_rules")
    raise SystemExit

import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.config.builders import (
    build,
    build_prompts,
    build_stopping,
    build_target,
    check_basics,
    check_tree,
    rules,
)
from experiments.config.cli_errors import one_line_errors, status
from experiments.config.command import command
from experiments.config.progress import Steps
from experiments.reporting.tables.text_table import markdown, shown
from framework.core.draft import Outcome
from framework.core.drafter import Drafter
from framework.core.option_error import OptionError, options_under
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.core.validation import check_whole
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.metrics.optimal_transport import optimum_after_pending
from framework.models.target import Target
from framework.verifiers.verifier import Verifier

COLUMNS = ["drafter", "T", "γ", "rule", "tokens per round", "gain", "depth 1", "below optimum"]
OF_A_ROW = ("drafter", "options", "temperature", "gamma", "rules")


@dataclass(frozen=True)
class Scores:
    """Means over the rounds of one decoding.

    Attributes:
        tokens: expected tokens per round by rule.
        kept_at_depth_1: probability that a child of pending is accepted, by rule.
        optimum: largest such probability of any exact rule, the optimal transport of the first level.
    """

    tokens: dict[str, float]
    kept_at_depth_1: dict[str, float]
    optimum: float


class Scored:
    """Drafter wrapper that scores every draft by the expected number of tokens that several rules commit.

    The expectation is Σ stop_probs (depth + 1). It compares rules on the same drafts and without the variance of
    sampled acceptances.
    """

    def __init__(self, drafter: Drafter, by_name: dict[str, Verifier]):
        self._drafter = drafter
        self._rules = by_name
        self._expected = dict.fromkeys(by_name, 0.0)
        self._kept = dict.fromkeys(by_name, 0.0)
        self._optimum = 0.0
        self._rounds = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    @property
    def scores(self) -> Scores:
        """Means over all rounds of all rows."""
        tokens, kept = (
            {rule: total / self._rounds for rule, total in totals.items()} for totals in (self._expected, self._kept)
        )
        return Scores(tokens, kept, self._optimum / self._rounds)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        active = outcome.active
        tokens = outcome.draft.tree.depth[active] + 1
        assert outcome.target is not None, "a round of the loop has the target's probabilities"
        self._rounds += int(active.sum())
        for name, rule in self._rules.items():
            stop_probs = rule.stop_probs(outcome.target, outcome.draft)[active]
            self._expected[name] += float((stop_probs * tokens).sum())
            self._kept[name] += float((1 - stop_probs[:, 0]).sum())
        if outcome.draft.num_nodes:
            self._optimum += float(optimum_after_pending(outcome.target, outcome.draft)[active].sum())
        self._drafter.observe(sequences, outcome)


@dataclass(frozen=True)
class Row:
    """One rule on the drafts of one drafter.

    Attributes:
        expected: expected tokens per round, mean over seeds.
        standard_error: standard error of that mean.
        gain: paired difference to the first rule on the same drafts, mean over seeds; None for the first rule.
        gain_error: standard error of the gain over seeds; None for the first rule.
        kept_at_depth_1: probability that a child of pending is accepted, mean over seeds.
        optimum: largest such probability of any exact rule (Sun et al., 2023), mean over seeds.
        below_optimum: paired difference of the two, mean over seeds.
        below_optimum_error: standard error of that difference.
    """

    drafter: str
    options: str
    temperature: float
    gamma: int
    rule: str
    expected: float
    standard_error: float
    gain: float | None
    gain_error: float | None
    kept_at_depth_1: float
    optimum: float
    below_optimum: float
    below_optimum_error: float

    @property
    def cells(self) -> list[str]:
        """Formatted cells in the order of COLUMNS."""
        return [
            f"{self.drafter} {self.options}",
            f"{self.temperature:g}",
            str(self.gamma),
            self.rule,
            f"{self.expected:.3f} ± {self.standard_error:.3f}",
            "" if self.gain is None else f"{self.gain:+.4f} ± {self.gain_error:.4f}",
            f"{self.kept_at_depth_1:.4f}",
            f"{self.below_optimum:.4f} ± {self.below_optimum_error:.4f}",
        ]


def score_rules(
    target: Target,
    drafter: Drafter,
    names: list[str],
    *,
    gamma: int,
    sampling: Sampling,
    prompts: list[list[int]],
    stopping: Stopping,
    first_seed: int,
    seeds: int,
) -> list[Scores]:
    """Scores of every rule, one for each seed; the first rule decodes."""
    by_name = {name: rules()[name] for name in names}
    found = []
    for seed in range(seeds):
        scored = Scored(drafter, by_name)
        engine = Engine(
            target=target,
            drafter=scored,
            verifier=by_name[names[0]],
            gamma_policy=Fixed(gamma=gamma),
            sampling=sampling,
        )
        row_seeds = [first_seed + seed * len(prompts) + row for row in range(len(prompts))]
        engine.generate(prompts, stopping=stopping, seeds=row_seeds)
        found.append(scored.scores)
    return found


def rows_of(setting: DictConfig, found: list[Scores]) -> Iterator[Row]:
    """Rows of one drafter, in the order of its rules; `found` has one entry for each seed."""
    first = setting.rules[0]
    for rule in setting.rules:
        values = [scores.tokens[rule] for scores in found]
        gains = [scores.tokens[rule] - scores.tokens[first] for scores in found]
        below = [scores.optimum - scores.kept_at_depth_1[rule] for scores in found]
        yield Row(
            drafter=setting.drafter,
            options=" ".join(f"{key}={value}" for key, value in setting.options.items()),
            temperature=setting.temperature,
            gamma=setting.gamma,
            rule=rule,
            expected=statistics.mean(values),
            standard_error=_standard_error(values),
            gain=None if rule == first else statistics.mean(gains),
            gain_error=None if rule == first else _standard_error(gains),
            kept_at_depth_1=statistics.mean(scores.kept_at_depth_1[rule] for scores in found),
            optimum=statistics.mean(scores.optimum for scores in found),
            below_optimum=statistics.mean(below),
            below_optimum_error=_standard_error(below),
        )


def _standard_error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def caption_of(cfg: DictConfig, num_prompts: int) -> str:
    return (
        f"± standard error over {cfg.seeds} seeds of {num_prompts} prompts, {cfg.max_new_tokens} tokens each; "
        "gain: over the first rule on the same drafts; depth 1: probability that a child of pending is accepted; below "
        "optimum: its distance from the optimal transport"
    )


def check_before_loading(cfg: DictConfig) -> None:
    """Run all checks that need no model.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    numbers = {"seed": 0, "seeds": 2, "max_new_tokens": 1}  # one seed has no standard error
    check_basics(cfg, numbers, or_null=("prompts.count", "prompts.max_prompt_tokens"))
    build(cfg.prompts.source)
    if not OmegaConf.is_list(cfg.rows) or not cfg.rows:
        raise ValueError(f"rows is {cfg.rows!r}; allowed: a list of rows, each with {', '.join(OF_A_ROW)}")
    for number, setting in enumerate(cfg.rows):
        _check_row(f"rows.{number}", setting, cfg.drafters)


def _check_row(key: str, setting: Any, drafters: DictConfig) -> None:
    if not OmegaConf.is_dict(setting) or set(setting) != set(OF_A_ROW):
        raise ValueError(f"{key} is {setting!r}; allowed: {', '.join(OF_A_ROW)}, all of them and no others")
    if setting.drafter not in drafters:
        raise ValueError(f"{key}.drafter is {setting.drafter!r}; allowed: {', '.join(map(str, drafters))}")
    known = [str(option) for option in drafters[setting.drafter] if not str(option).startswith("_")]
    if not OmegaConf.is_dict(setting.options) or not set(setting.options) <= set(known):
        raise ValueError(
            f"{key}.options is {setting.options!r}; allowed: some of {', '.join(known)}, each with a value, or {{}}"
        )
    named = setting.rules if OmegaConf.is_list(setting.rules) else []
    if not named or not set(named) <= rules().keys():
        raise ValueError(f"{key}.rules is {setting.rules!r}; allowed: a list of {', '.join(rules())}")
    check_whole(f"{key}.gamma", setting.gamma, least=1, most=10**9)
    with options_under(key):
        Sampling(temperature=setting.temperature)


def build_drafter(cfg: DictConfig, number: int, target: Target) -> Drafter:
    """Build the drafter of a row, and check that all rules of the row can verify its drafts.

    Raises:
        ValueError: the message names the row.
    """
    setting, key = cfg.rows[number], f"rows.{number}"
    merged = OmegaConf.merge(cfg.drafters[setting.drafter], setting.options)
    node: Any = OmegaConf.create(OmegaConf.to_container(merged, resolve=True))  # a root: errors name the row's keys
    with naming(f"{key}.options"), options_under(f"{key}.options"):
        drafter: Drafter = build(node)(target=target)
    with naming(f"{key}.gamma"):
        check_tree(drafter, setting.gamma, target.model.context)
    with naming(f"{key}.rules"):
        for name in setting.rules:
            rules()[name].check(drafter.scheme, drafter.shape)
    return drafter


@contextmanager
def naming(key: str) -> Iterator[None]:
    """Add a config key to the messages of errors that do not concern a single option."""
    try:
        yield
    except OptionError:
        raise
    except (ValueError, OSError, InstantiationException) as error:
        raise ValueError(f"{key}: {error.__cause__ or error}") from error


@command("compare_rules")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was kept"), torch.no_grad():
        check_before_loading(cfg)
        with status("loading the target"):
            target = build_target(cfg)
        prompts = [list(prompt.tokens) for prompt in build_prompts(cfg, target).prompts]
        with status("trying the drafters"):
            for number in range(len(cfg.rows)):  # drop each again: together they may not fit into memory
                build_drafter(cfg, number, target)
        rows: list[Row] = []
        with Steps(len(cfg.rows)) as steps:
            for number, setting in enumerate(cfg.rows):
                doing = f"{setting.drafter}, T = {setting.temperature:g}, {', '.join(setting.rules)}"
                steps.update(doing, completed=number)
                found = score_rules(
                    target,
                    build_drafter(cfg, number, target),
                    list(setting.rules),
                    gamma=setting.gamma,
                    sampling=Sampling(temperature=setting.temperature),
                    prompts=prompts,
                    stopping=build_stopping(cfg, target),
                    first_seed=cfg.seed,
                    seeds=cfg.seeds,
                )
                rows += rows_of(setting, found)
        folder = Path(HydraConfig.get().runtime.output_dir)
        cells = [COLUMNS, *(row.cells for row in rows)]
        title = "Expected tokens per round: Σ stop_probs · (depth + 1)"
        caption = caption_of(cfg, len(prompts))
        Console(width=None if sys.stdout.isatty() else 150).print(shown(cells, title=title, caption=caption))
        (folder / "rules.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
        (folder / "rules.md").write_text(f"{markdown(cells)}\n{caption}.\n", encoding="utf-8")
        print(f"rules.json and rules.md: {folder}")
