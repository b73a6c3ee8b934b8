"""Rollouts for reinforcement learning: `python -m experiments.rl_rollouts`.

The target is a policy, whose weights change in every step: it continues prompts, a reward scores the texts, and
REINFORCE (Williams, 1992) raises the probability of those above the mean. Every drafter decodes the same prompts in
every step, beside plain decoding.
"""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("rl_rollouts")
    raise SystemExit

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_method
from omegaconf import DictConfig
from rich.console import Console
from torch import Tensor, nn

from experiments.config.builders import (
    DrafterFactory,
    build_engine,
    build_prompts,
    build_stopping,
    build_target,
    build_with_target,
    check_basics,
    check_parts,
)
from experiments.config.cli_errors import one_line_errors, status
from experiments.config.command import command
from experiments.config.progress import Steps
from experiments.reporting.plots.rollouts import draw_rollouts
from experiments.reporting.tables.text_table import markdown, shown
from framework.core.drafter import Drafter
from framework.core.sampling import Sampling
from framework.core.validation import check_number, check_whole
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.models.target import Target
from framework.training.trainable import FILLER, ids_of

COLUMNS = ["steps", "reward", "drafter", "α", "τ", "ms per token", "speedup", "equal"]
SPANS = 5  # rows of the table per drafter


@dataclass(frozen=True)
class Rollout:
    """A drafter's share of a step.

    Attributes:
        alpha: accepted ÷ tested; None: nothing was tested.
        tau: tokens per round.
        ms_per_token: milliseconds per new token, learning included.
        equal: share of prompts whose greedy tokens are those of plain decoding with the same weights.
    """

    alpha: float | None
    tau: float | None
    ms_per_token: float
    equal: float


@dataclass(frozen=True)
class Step:
    """A step of reinforcement learning.

    Attributes:
        reward: mean reward of plain decoding's texts.
        plain_ms: milliseconds per token of plain decoding.
        rollouts: by drafter.
    """

    reward: float
    plain_ms: float
    rollouts: dict[str, Rollout]


class Policy:
    """A target that learns from the rewards of its texts; its weights change in place."""

    def __init__(self, target: Target, *, temperature: float, learning_rate: float):
        """
        Args:
            temperature: of the texts' sampling.
            learning_rate: of AdamW.
        """
        self._model, self._temperature = target.model.model, temperature
        self._vocabulary_size, self._device = target.vocabulary_size, target.device
        self._model.requires_grad_(True)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=learning_rate, weight_decay=0.0)

    def learn(self, prompts: list[list[int]], new: list[list[int]], rewards: list[float]) -> None:
        """Take one step: minus the mean of (reward - mean reward) · log p over all new tokens.

        Args:
            prompts: token ids.
            new: token ids sampled after each.
            rewards: one per text.
        """
        texts = [start + more for start, more in zip(prompts, new, strict=True)]
        width = max(map(len, texts))
        tokens = torch.full((len(texts), width), FILLER)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = torch.tensor(text)
        tokens = tokens.to(self._device)
        place = torch.arange(1, width, device=self._device)
        starts = torch.tensor([len(start) for start in prompts], device=self._device).unsqueeze(1)
        is_new = (place >= starts) & (tokens[:, 1:] != FILLER)
        gained = torch.tensor(rewards, device=self._device)
        with torch.enable_grad():
            loss = -((gained - gained.mean()).unsqueeze(1) * self._log_p(tokens)).where(is_new, 0.0).sum()
            self._optimizer.zero_grad()
            (loss / is_new.sum()).backward()
            nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            self._optimizer.step()

    def _log_p(self, tokens: Tensor) -> Tensor:
        """[B, T - 1] log-probabilities of all tokens [B, T] but the first."""
        ids = ids_of(tokens)
        logits = self._model(input_ids=ids, attention_mask=(tokens != FILLER).long(), use_cache=False).logits
        log_p = (logits[:, :-1, : self._vocabulary_size].float() / self._temperature).log_softmax(-1)
        return log_p.gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2)


class Rollouts:
    """Plain decoding and every drafter, on the prompts of one step after another."""

    def __init__(self, cfg: DictConfig, target: Target, drafters: Mapping[str, Drafter]):
        """
        Args:
            cfg: config of the command.
            target: the policy.
            drafters: by name.
        """
        self._stopping: Stopping = build_stopping(cfg, target)
        self._checked: int = cfg.checked
        samplings = {"sampled": Sampling(temperature=cfg.temperature), "greedy": Sampling(temperature=0)}
        self._plain = {name: Autoregressive(target=target, sampling=each) for name, each in samplings.items()}
        self._engines: dict[str, dict[str, Engine]] = {
            drafter: {name: build_engine(cfg, built, target, each, compiled=False) for name, each in samplings.items()}
            for drafter, built in drafters.items()
        }

    def step(self, prompts: list[list[int]], seeds: list[int]) -> tuple[list[list[int]], float, dict[str, Rollout]]:
        """Decode with the weights as they are.

        Returns:
            Plain decoding's new tokens; its milliseconds per token; the rollouts by drafter.
        """
        begin = time.perf_counter()
        new = self._plain["sampled"].generate(prompts, stopping=self._stopping, seeds=seeds).tokens
        plain_ms = _ms(begin, new)
        few, few_seeds = prompts[: self._checked], seeds[: self._checked]
        expected = self._plain["greedy"].generate(few, stopping=self._stopping, seeds=few_seeds).tokens
        found = {}
        for name, engines in self._engines.items():
            begin = time.perf_counter()
            generated = engines["sampled"].generate(prompts, stopping=self._stopping, seeds=seeds)
            ms = _ms(begin, generated.tokens)
            greedy = engines["greedy"].generate(few, stopping=self._stopping, seeds=few_seeds).tokens
            same = [got == want for got, want in zip(greedy, expected, strict=True)]
            assert generated.tally is not None
            metrics = generated.tally.metrics()
            found[name] = Rollout(metrics["alpha/empirical"], metrics["tau"], ms, sum(same) / len(same))
        return new, plain_ms, found


def _ms(begin: float, new: list[list[int]]) -> float:
    return 1e3 * (time.perf_counter() - begin) / sum(map(len, new))


def measure(cfg: DictConfig) -> list[Step]:
    """Run all steps.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    factories, reward = check_before_loading(cfg)
    with status("loading the target"):
        target = build_target(cfg)
    if target.model.text_start:
        raise ValueError("target has an encoder; allowed: one without, whose texts continue their prompts")
    with status("reading the prompts"):
        prompts = [list(prompt.tokens) for prompt in build_prompts(cfg, target).prompts]
    drafters = {}
    for name, factory in factories.items():
        with status(f"building {name}"):
            drafters[name] = build_with_target(factory, cfg.drafters[name], target)
    policy = Policy(target, temperature=cfg.temperature, learning_rate=cfg.learning_rate)
    rollouts, found = Rollouts(cfg, target, drafters), []
    with Steps(cfg.steps, "rollouts") as progress:
        for step in range(cfg.steps):
            # Seeds of their own in every step, since a drafter that learns must not meet a seed twice.
            seeds = [cfg.seed + step * cfg.batch_size + row for row in range(cfg.batch_size)]
            batch = [prompts[(step * cfg.batch_size + row) % len(prompts)] for row in range(cfg.batch_size)]
            new, plain_ms, by_drafter = rollouts.step(batch, seeds)
            rewards = [float(reward(text)) for text in target.tokenizer.batch_decode(new, skip_special_tokens=True)]
            found.append(Step(sum(rewards) / len(rewards), plain_ms, by_drafter))
            policy.learn(batch, new, rewards)
            progress.update(f"reward {found[-1].reward:.2f}", advance=1)
    return found


def check_before_loading(cfg: DictConfig) -> tuple[dict[str, DrafterFactory], Callable[[str], float]]:
    """Run all checks that need no model; return the drafters' factories and the reward.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    check_basics(
        cfg,
        {"steps": 1, "batch_size": 2, "checked": 1, "seed": 0, "max_new_tokens": 1},
        or_null=("prompts.count", "prompts.max_prompt_tokens", "target.context"),
    )
    check_whole("checked", cfg.checked, least=1, most=cfg.batch_size)
    check_number("temperature", cfg.temperature, lambda value: value > 0, "a number > 0")
    check_number("learning_rate", cfg.learning_rate, lambda value: 0 <= value <= 1, "a number in [0, 1]")
    if cfg.engine.compile is not False:
        raise ValueError(f"engine.compile is {cfg.engine.compile!r}; allowed: false, since the weights change")
    if not cfg.drafters:
        raise ValueError("drafters is empty; allowed: at least one, such as +drafter@drafters.yours=prompt_lookup")
    try:
        reward = get_method(cfg.reward)
    except Exception as error:  # Hydra's error names neither the key nor what is allowed
        raise ValueError(
            f"reward is {cfg.reward!r}; allowed: the path of a function from a text to a number, such as "
            "experiments.simulators.rewards.comments"
        ) from error
    return check_parts(cfg, cfg.drafters), reward


def cells_of(steps: list[Step]) -> list[list[str]]:
    """The table: means over spans of steps, by drafter."""
    rows, spans = [], min(SPANS, len(steps))
    for span in range(spans):
        first, last = (len(steps) * edge // spans for edge in (span, span + 1))
        some = steps[first:last]
        reward, plain_ms = _mean([step.reward for step in some]), _mean([step.plain_ms for step in some])
        for name in some[0].rollouts:
            own = [step.rollouts[name] for step in some]
            ms = _mean([each.ms_per_token for each in own])
            rows.append([
                f"{first + 1} to {last}", f"{reward:.2f}", name, f"{_mean([each.alpha for each in own]):.2f}",
                f"{_mean([each.tau for each in own]):.2f}", f"{ms:.2f}", f"{plain_ms / ms:.2f}",
                f"{_mean([each.equal for each in own]):.0%}",
            ])  # fmt: skip
    return [COLUMNS, *rows]


def _mean(values: Sequence[float | None]) -> float:
    """Mean of the known values; NaN without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


@command("rl_rollouts")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was kept"):
        steps = measure(cfg)
        folder = Path(HydraConfig.get().runtime.output_dir)
        cells = cells_of(steps)
        caption = (
            f"{cfg.steps} steps of {cfg.batch_size} texts at temperature {cfg.temperature:g}; speedup over plain "
            "decoding of the same step; equal: greedy texts equal to plain decoding's with the same weights"
        )
        Console(width=150).print(shown(cells, title="Rollouts for reinforcement learning", caption=caption))
        (folder / "rollouts.json").write_text(json.dumps([asdict(step) for step in steps], indent=1))
        (folder / "rollouts.md").write_text(f"{markdown(cells)}\n{caption}.\n", encoding="utf-8")
        series = {
            name: [(step.rollouts[name].alpha, step.plain_ms / step.rollouts[name].ms_per_token) for step in steps]
            for name in steps[0].rollouts
        }
        draw_rollouts([step.reward for step in steps], series).savefig(folder / "rollouts.png", dpi=150)
        print(f"rollouts.json, rollouts.md and rollouts.png: {folder}")
