"""Acceptance rules side by side on the same drafts: `python -m experiments.compare_rules` prints tokens per round."""

import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.assemble import (
    build,
    build_prompts,
    build_stopping,
    build_target,
    check_basics,
    check_tree,
    register_resolvers,
    rules,
)
from experiments.cells import markdown, shown
from experiments.entry_point import one_line_errors, status
from framework.draft import Outcome
from framework.drafter import Drafter
from framework.engine import Engine
from framework.gamma_policies.fixed import Fixed
from framework.sampling import Sampling
from framework.sequences import Sequences
from framework.stopping import Stopping
from framework.target import Target
from framework.verifiers.verifier import Verifier
from framework.whole_numbers import check_whole

COLUMNS = ["drafter", "T", "γ", "rule", "tokens per round", "gain"]
OF_A_ROW = ("drafter", "knobs", "temperature", "gamma", "rules")

register_resolvers()


class Judged:
    """A drafter whose every draft is judged by several rules: what each expects to commit, not what was drawn.

    Σ stop_law (depth + 1) is a rule's expected number of tokens from a draft, so that rules are compared without the
    luck of the draws, and on the same drafts.
    """

    def __init__(self, drafter: Drafter, judges: dict[str, Verifier]):
        self._drafter = drafter
        self._judges = judges
        self._expected = dict.fromkeys(judges, 0.0)
        self._rounds = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def tokens_per_round(self, rule: str) -> float:
        """What a rule expected to commit, over all rounds of all rows."""
        return self._expected[rule] / self._rounds

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        active = outcome.active
        tokens = outcome.draft.tree.depth[active] + 1
        self._rounds += int(active.sum())
        for name, rule in self._judges.items():
            self._expected[name] += float((rule.stop_law(outcome.target, outcome.draft)[active] * tokens).sum())
        self._drafter.observe(sequences, outcome)


@dataclass(frozen=True)
class Row:
    """One rule on the drafts of one drafter.

    Attributes:
        expected: tokens per round, mean over seeds.
        standard_error: of that mean.
        gain: expected less that of the first rule on the same drafts, mean over seeds; None for the first rule.
        gain_error: standard error of the gain, seed by seed.
    """

    drafter: str
    knobs: str
    temperature: float
    gamma: int
    rule: str
    expected: float
    standard_error: float
    gain: float | None
    gain_error: float | None

    @property
    def cells(self) -> list[str]:
        """As it is shown, under the headings of COLUMNS."""
        return [
            f"{self.drafter} {self.knobs}",
            f"{self.temperature:g}",
            str(self.gamma),
            self.rule,
            f"{self.expected:.3f} ± {self.standard_error:.3f}",
            "" if self.gain is None else f"{self.gain:+.4f} ± {self.gain_error:.4f}",
        ]


def judge(
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
) -> dict[str, list[float]]:
    """Expected tokens per round of every rule, one figure per seed; the first rule is the one that decodes."""
    judges = {name: rules()[name] for name in names}
    found: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(seeds):
        judged = Judged(drafter, judges)
        engine = Engine(
            target=target,
            drafter=judged,
            verifier=judges[names[0]],
            gamma_policy=Fixed(gamma=gamma),
            sampling=sampling,
        )
        row_seeds = [first_seed + seed * len(prompts) + row for row in range(len(prompts))]
        engine.generate(prompts, stopping=stopping, seeds=row_seeds)
        for name in names:
            found[name].append(judged.tokens_per_round(name))
    return found


def rows_of(setting: DictConfig, found: dict[str, list[float]]) -> Iterator[Row]:
    """The figures of one drafter as rows, its first rule first."""
    (first, *_) = found
    for rule, values in found.items():
        gains = [mine - theirs for mine, theirs in zip(values, found[first], strict=True)]
        yield Row(
            drafter=setting.drafter,
            knobs=" ".join(f"{key}={value}" for key, value in setting.knobs.items()),
            temperature=setting.temperature,
            gamma=setting.gamma,
            rule=rule,
            expected=statistics.mean(values),
            standard_error=_standard_error(values),
            gain=None if rule == first else statistics.mean(gains),
            gain_error=None if rule == first else _standard_error(gains),
        )


def _standard_error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def caption_of(cfg: DictConfig) -> str:
    return (
        f"± standard error over {cfg.seeds} seeds of {cfg.prompts.count} prompts, {cfg.max_new_tokens} tokens each; "
        "gain: over the first rule on the same drafts"
    )


def check_before_loading(cfg: DictConfig) -> None:
    """Everything that can be wrong without a model.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    numbers = {"seed": 0, "seeds": 2, "max_new_tokens": 1}  # one seed has no standard error
    check_basics(cfg, numbers, or_null=("prompts.count", "prompts.first_tokens"))
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
    known = [str(knob) for knob in drafters[setting.drafter] if not str(knob).startswith("_")]
    if not OmegaConf.is_dict(setting.knobs) or not set(setting.knobs) <= set(known):
        raise ValueError(
            f"{key}.knobs is {setting.knobs!r}; allowed: some of {', '.join(known)}, each with a value, or {{}}"
        )
    named = setting.rules if OmegaConf.is_list(setting.rules) else []
    if not named or not set(named) <= rules().keys():
        raise ValueError(f"{key}.rules is {setting.rules!r}; allowed: a list of {', '.join(rules())}")
    check_whole(f"{key}.gamma", setting.gamma, least=1, most=10**9)
    with naming(f"{key}.temperature"):
        Sampling(temperature=setting.temperature)


def build_drafter(cfg: DictConfig, number: int, target: Target) -> Drafter:
    """That of a row, which all rules of the row can verify.

    Raises:
        ValueError: the message names the row.
    """
    setting, key = cfg.rows[number], f"rows.{number}"
    node: Any = OmegaConf.merge(cfg.drafters[setting.drafter], setting.knobs)
    with naming(f"{key}.knobs"):
        drafter: Drafter = build(node)(target=target)
    with naming(f"{key}.gamma"):
        check_tree(drafter, setting.gamma, target.model.context)
    with naming(f"{key}.rules"):
        for name in setting.rules:
            rules()[name].check(drafter.law, drafter.shape)
    return drafter


@contextmanager
def naming(key: str) -> Iterator[None]:
    """What is wrong is told with the key of this command."""
    try:
        yield
    except (ValueError, OSError, InstantiationException) as error:
        raise ValueError(f"{key}: {error.__cause__ or error}") from error


@hydra.main(version_base="1.3", config_path="../conf", config_name="compare_rules")
def main(cfg: DictConfig) -> None:
    with one_line_errors(), torch.no_grad():
        check_before_loading(cfg)
        if cfg.threads is not None:
            torch.set_num_threads(cfg.threads)
        with status("loading the target"):
            target = build_target(cfg)
        prompts = [list(prompt.tokens) for prompt in build_prompts(cfg, target).prompts]
        with status("trying the drafters"):
            for number in range(len(cfg.rows)):  # each is dropped again: they need not fit into the memory together
                build_drafter(cfg, number, target)
        rows: list[Row] = []
        for number, setting in enumerate(cfg.rows):
            with status(f"{setting.drafter}, T = {setting.temperature:g}, {', '.join(setting.rules)}"):
                found = judge(
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
        title = "Expected tokens per round: Σ stop_law · (depth + 1)"
        Console(width=None if sys.stdout.isatty() else 150).print(shown(cells, title=title, caption=caption_of(cfg)))
        (folder / "rules.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
        (folder / "rules.md").write_text(f"{markdown(cells)}\n{caption_of(cfg)}.\n", encoding="utf-8")
        print(f"rules.json and rules.md: {folder}")


if __name__ == "__main__":
    main()
