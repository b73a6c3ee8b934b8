"""Rollouts for reinforcement learning: `python -m experiments.rl_rollouts`.

The target is the policy. In every step it continues prompts, a reward function scores the texts, and REINFORCE
(Williams, 1992) updates its weights. Every drafter decodes the same prompts, beside plain decoding.
"""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("rl_rollouts")
    raise SystemExit

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from pkgutil import resolve_name

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

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
from experiments.reporting.tables.rollout_table import rollout_table
from experiments.reporting.tables.text_table import markdown, shown
from experiments.simulators.rollouts import Policy, Rollouts, Step
from framework.core.sampling import Sampling
from framework.core.validation import check_number, check_whole


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
    policy = Policy(target, temperature=cfg.temperature, learning_rate=cfg.learning_rate)
    sampling, engines = Sampling(temperature=cfg.temperature), {}
    for name, factory in factories.items():
        with status(f"building {name}"):
            drafter = build_with_target(factory, cfg.drafters[name], target)
        sampled, greedy = (
            build_engine(cfg, drafter, target, each, compiled=False) for each in (sampling, Sampling(temperature=0))
        )
        engines[name] = (sampled, greedy)
    rollouts = Rollouts(target, engines, stopping=build_stopping(cfg, target), sampling=sampling, checked=cfg.checked)
    found = []
    with Steps(cfg.steps, "rollouts") as progress:
        progress.update("first round", completed=0)
        rollouts.warm_up(prompts[: cfg.batch_size])
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
        reward = resolve_name(cfg.reward)
    except (ImportError, AttributeError, ValueError, TypeError):
        reward = None
    if not callable(reward):
        raise ValueError(
            f"reward is {cfg.reward!r}; allowed: the path of a function from a text to a number, such as "
            "experiments.simulators.rewards.comments or experiments.simulators.rewards.short_lines"
        )
    return check_parts(cfg, cfg.drafters), reward


@command("rl_rollouts")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was kept"):
        steps = measure(cfg)
        folder = Path(HydraConfig.get().runtime.output_dir)
        cells = rollout_table(steps)
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
