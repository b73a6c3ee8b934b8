"""Plot of a search for layers to skip: alpha against cost of every set, and the best value by trial."""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from optuna.trial import FrozenTrial

from experiments.reporting.plots.picture_style import GREY, INK, WIDTH, clear_frame, look_of
from experiments.tuning.layer_objectives import StepCosts
from experiments.tuning.layer_search import bits_of

FOUND, UNIFORM = look_of("layer_skip").colour, GREY
VALUES = {"zero_overhead": "zero-overhead speedup, by Eq. 1", "measured": "milliseconds per token"}


def draw_search(
    trials: Sequence[FrozenTrial],
    uniform: Collection[tuple[int, ...]],
    costs: StepCosts,
    objective: str,
    path: Path,
) -> Path:
    """Plot a search and save the picture to a file.

    Args:
        trials: evaluated trials, in order.
        uniform: bits of the sets of uniform skipping.
        costs: step costs, which give the break-even alpha at every cost.
        objective: "zero_overhead" or "measured", the value of the trials.
        path: the file to write.

    Returns:
        path.
    """
    figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
    figure.suptitle("Search for the sub-layers to skip")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    best = max if objective == "zero_overhead" else min
    _draw_sets(left, trials, uniform, costs, best(trials, key=lambda trial: trial.values[0]))
    _draw_progress(right, trials, uniform, objective)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160, facecolor="white")
    return path


def _draw_sets(
    ax: Axes,
    trials: Sequence[FrozenTrial],
    uniform: Collection[tuple[int, ...]],
    costs: StepCosts,
    found: FrozenTrial,
) -> None:
    points = [(trial.user_attrs["c"], trial.user_attrs["alpha"]) for trial in trials]
    ax.scatter(
        [c for c, _ in points],
        [alpha for _, alpha in points],
        s=12,
        color="#6E6E6E",
        linewidths=0,
        label="evaluated sets",
        zorder=5,
    )
    even = sorted(point for point, trial in zip(points, trials, strict=True) if bits_of(trial) in uniform)
    if even:
        ax.scatter(
            [c for c, _ in even],
            [alpha for _, alpha in even],
            s=42,
            marker="s",
            facecolors="none",
            edgecolors=UNIFORM,
            linewidths=1.4,
            label="uniform skipping",
            zorder=3,
        )
    ax.step(*zip(*pareto_front(points), strict=True), where="post", color=INK, linewidth=1, label="Pareto front")
    at = (found.user_attrs["c"], found.user_attrs["alpha"])
    ax.scatter(*at, s=260, marker="*", facecolors="none", edgecolors=FOUND, linewidths=1.6, zorder=4, label="best set")
    cs = np.linspace(0, 1.05 * max(c for c, _ in points), 200)
    paying = [alpha_that_pays(costs, c) for c in cs]
    ax.plot(cs, paying, color=INK, linewidth=1, linestyle=":", label="no faster than plain decoding")
    ax.set(xlabel="c: draft step ÷ one-row target pass", ylabel="α", ylim=(-0.02, 1.02), xlim=(0, cs[-1]))
    ax.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
    clear_frame(ax, "both")


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Pareto-optimal points (c, alpha), ascending in c; lower c and higher alpha are better."""
    front: list[tuple[float, float]] = []
    for c, alpha in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or alpha > front[-1][1]:
            front.append((c, alpha))
    return front


def alpha_that_pays(costs: StepCosts, c: float) -> float:
    """Break-even alpha at cost c, to 1e-3: the least at which the best gamma is as fast as plain decoding.

    NaN if no alpha suffices.
    """
    max_gamma = len(costs.target_times) - 1
    alphas = np.linspace(0, 1, 1001)
    first = bisect_left(alphas, True, key=lambda alpha: costs.zero_overhead([alpha] * max_gamma, c)[0] >= 1)
    return float(alphas[first]) if first < len(alphas) else float("nan")


def _draw_progress(
    ax: Axes, trials: Sequence[FrozenTrial], uniform: Collection[tuple[int, ...]], objective: str
) -> None:
    best = max if objective == "zero_overhead" else min
    values = [trial.value or 0.0 for trial in trials]
    at = range(1, len(values) + 1)
    ax.plot(at, values, ".", color="#6E6E6E", markersize=4)
    ax.step(at, list(accumulate(values, best)), where="post", color=FOUND, linewidth=1.8, label="best so far")
    even = [value for value, trial in zip(values, trials, strict=True) if bits_of(trial) in uniform]
    if even:
        ax.axhline(best(even), color=UNIFORM, linewidth=1.2, linestyle="--", label="best uniform skipping")
    ax.set(xlabel="evaluated sets", ylabel=VALUES[objective])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    clear_frame(ax, "both")
