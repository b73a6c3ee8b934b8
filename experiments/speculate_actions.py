"""Speculative execution of a policy and a simulator: `python -m experiments.speculate_actions`.

A queue is controlled by a slow policy. Its step runs on an action of a fast policy while the slow one is computed in a
worker. Both policies are tables; their times and the simulator's are waited for.
"""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("speculate_actions")
    raise SystemExit

import json
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from torch import Tensor

from experiments.config.cli_errors import one_line_errors
from experiments.config.command import command
from experiments.config.progress import Steps
from experiments.reporting.tables.text_table import markdown, shown
from experiments.simulators.queue import Queue
from framework.core.validation import check_whole
from framework.decoding.speculative_execution import Execution, execute, execute_plainly
from framework.metrics.theory import execution_speedup

COLUMNS = ["fast policy", "steps ahead", "α", "accepted", "ms per step", "speedup", "predicted", "cost per step"]


@dataclass(frozen=True)
class Row:
    """One way to run the steps.

    Attributes:
        sweeps: sweeps of value iteration of the fast policy; None: plain execution.
        ahead: longest run of unverified steps; 0: plain execution.
        alpha: mean overlap of the two policies at the verified steps.
        accepted: share of accepted actions.
        ms_per_step: milliseconds per step.
        speedup: time of plain execution over ours.
        predicted: the same by `theory.execution_speedup`; None: no prediction.
        cost: mean cost of a step.
    """

    sweeps: int | None
    ahead: int
    alpha: float | None
    accepted: float | None
    ms_per_step: float
    speedup: float
    predicted: float | None
    cost: float

    @property
    def cells(self) -> list[str]:
        """Formatted cells in the order of COLUMNS."""

        def number(value: float | None, digits: int) -> str:
            return "" if value is None else f"{value:.{digits}f}"

        fast = "none: one after another" if self.sweeps is None else f"{self.sweeps} sweeps"
        return [
            fast, str(self.ahead or ""), number(self.alpha, 3), number(self.accepted, 3), number(self.ms_per_step, 2),
            number(self.speedup, 2), number(self.predicted, 2), number(self.cost, 2),
        ]  # fmt: skip


def measure(cfg: DictConfig) -> list[Row]:
    """Run plain execution, then every fast policy with every number of steps ahead."""
    queue = queue_of(cfg)
    settings = {"discount": cfg.discount, "temperature": cfg.temperature}
    target = queue.policy(cfg.slow_sweeps, **settings)
    seconds = cfg.seconds

    def after(waiting: float, result: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*arguments: Any) -> Any:
            time.sleep(waiting)
            return result(*arguments)

        return wait

    slow, step = after(seconds.slow, lambda state: target[state]), after(seconds.step, queue.step)
    ways = [(sweeps, ahead) for sweeps in cfg.fast_sweeps for ahead in cfg.ahead]
    rows: list[Row] = []

    def add(run: Callable[[], Execution[int]], sweeps: int | None, ahead: int) -> None:
        begin = time.perf_counter()
        done = run()
        ms = 1e3 * (time.perf_counter() - begin) / cfg.steps
        costs = [queue.cost(state, action) for state, action in zip(done.states, done.values, strict=False)]
        alpha = done.alpha if ahead else None
        predicted = (
            execution_speedup(done.alpha, slow=seconds.slow, fast=seconds.fast, step=seconds.step)
            if ahead == 1
            else None
        )
        rows.append(
            Row(
                sweeps=sweeps,
                ahead=ahead,
                alpha=alpha,
                accepted=sum(done.accepted) / cfg.steps if ahead else None,
                ms_per_step=ms,
                speedup=rows[0].ms_per_step / ms if rows else 1.0,
                predicted=predicted,
                cost=sum(costs) / cfg.steps,
            )
        )

    with Steps(1 + len(ways)) as progress, ThreadPoolExecutor(2 * max(cfg.ahead)) as workers:
        progress.update("one after another", completed=0)
        add(lambda: execute_plainly(0, slow=slow, step=step, num_steps=cfg.steps, seed=cfg.seed), None, 0)
        for sweeps, ahead in ways:
            progress.update(f"{sweeps} sweeps, {ahead} steps ahead", completed=len(rows))
            table = queue.policy(sweeps, **settings)
            fast = after(seconds.fast, lambda state, table=table: table[state])

            def run(fast: Callable[[int], Tensor] = fast, ahead: int = ahead) -> Execution[int]:
                return execute(
                    0, slow=slow, fast=fast, step=step, num_steps=cfg.steps, ahead=ahead, seed=cfg.seed, workers=workers
                )  # fmt: skip

            add(run, sweeps, ahead)
    return rows


def queue_of(cfg: DictConfig) -> Queue:
    """Build the queue of the config.

    Raises:
        ValueError: an option is outside its range; the message names the yaml key.
    """
    for key, least in (("steps", 1), ("seed", 0), ("slow_sweeps", 0)):
        check_whole(key, cfg[key], least=least)
    for key, least in (("fast_sweeps", 0), ("ahead", 1)):
        values = OmegaConf.to_container(cfg[key]) if OmegaConf.is_list(cfg[key]) else None
        if not values or any(type(value) is not int or value < least for value in values):
            raise ValueError(f"{key} is {cfg[key]}; allowed: a list of whole numbers >= {least}")
    for name, value in cfg.seconds.items():
        _require(f"seconds.{name}", value, lambda number: 0 <= number < math.inf, "a number >= 0")
    _require("seconds.slow", cfg.seconds.slow, lambda number: number > 0, "a number > 0")
    _require("discount", cfg.discount, lambda number: 0 <= number < 1, "a number in [0, 1)")
    _require("temperature", cfg.temperature, lambda number: 0 < number < math.inf, "a number > 0")
    check_whole("queue.capacity", cfg.queue.capacity, least=1)
    _require("queue.arrivals", cfg.queue.arrivals, lambda number: 0 <= number <= 1, "a number in [0, 1]")
    speeds, prices = list(cfg.queue.speeds), list(cfg.queue.prices)
    for speed in speeds:
        _require("queue.speeds", speed, lambda number: 0 <= number <= 1, "a list of numbers in [0, 1]")
    if len(prices) != len(speeds) or not speeds:
        raise ValueError(f"queue.prices is {prices}; allowed: one number for each of queue.speeds, {len(speeds)}")
    return Queue(cfg.queue.capacity, cfg.queue.arrivals, tuple(speeds), tuple(prices), cfg.seed)


def _require(key: str, value: Any, holds: Callable[[float], bool], allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not holds(value):
        raise ValueError(f"{key} is {value!r}; allowed: {allowed}")


@command("speculate_actions")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was kept"):
        rows = measure(cfg)
        folder = Path(HydraConfig.get().runtime.output_dir)
        cells = [COLUMNS, *(row.cells for row in rows)]
        caption = (
            f"{cfg.steps} steps; f, its approximation and g take {cfg.seconds.slow:g}, {cfg.seconds.fast:g} and "
            f"{cfg.seconds.step:g} s, by waiting; α: mean overlap of the policies; predicted: for one step ahead"
        )
        Console(width=150).print(shown(cells, title="Speculative execution of a queue's control", caption=caption))
        (folder / "actions.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
        (folder / "actions.md").write_text(f"{markdown(cells)}\n{caption}.\n", encoding="utf-8")
        print(f"actions.json and actions.md: {folder}")
