"""A search for layers as a picture: acceptance against cost of every set, and the best value trial by trial."""

from collections.abc import Collection, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from optuna.trial import FrozenTrial

from experiments.layer_objectives import StepCosts
from experiments.layer_search import bits_of
from experiments.picture_style import DRAFTER_COLOURS, INK, WIDTH, clear_frame

FOUND, UNIFORM = DRAFTER_COLOURS[1], DRAFTER_COLOURS[0]
VALUES = {"attainable": "attainable speedup, by Eq. 1", "measured": "milliseconds per token"}


def draw_search(
    trials: Sequence[FrozenTrial],
    uniform: Collection[tuple[int, ...]],
    costs: StepCosts,
    objective: str,
    path: Path,
) -> Path:
    """Draw a search.

    Args:
        trials: those judged, in their order.
        uniform: the bits of uniform skipping.
        costs: say which alpha pays at which cost.
        objective: "attainable" or "measured": what the trials' value is.
        path: the file to write.
    """
    figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
    figure.suptitle("Search for the sub-layers to skip")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    best = max if objective == "attainable" else min
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
        label="sets that were judged",
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
    ax.scatter(
        *at, s=260, marker="*", facecolors="none", edgecolors=FOUND, linewidths=1.6, zorder=4, label="the best one"
    )
    cs = np.linspace(0, 1.05 * max(c for c, _ in points), 200)
    paying = [alpha_that_pays(costs, c) for c in cs]
    ax.plot(cs, paying, color=INK, linewidth=1, linestyle=":", label="no faster than plain decoding")
    ax.set(xlabel="c: a draft step in one-row target passes", ylabel="α", ylim=(-0.02, 1.02), xlim=(0, cs[-1]))
    ax.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
    clear_frame(ax, "both")


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points (c, alpha) that no other one undercuts in c without losing alpha, by rising c."""
    front: list[tuple[float, float]] = []
    for c, alpha in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or alpha > front[-1][1]:
            front.append((c, alpha))
    return front


def alpha_that_pays(costs: StepCosts, c: float) -> float:
    """The least alpha, to 1e-3, at which the best gamma is as fast as plain decoding; NaN where none is."""
    max_gamma = len(costs.target_times) - 1
    alphas = np.linspace(0, 1, 1001)
    pays = [alpha for alpha in alphas if costs.attainable([alpha] * max_gamma, c)[0] >= 1]
    return float(pays[0]) if pays else float("nan")


def _draw_progress(
    ax: Axes, trials: Sequence[FrozenTrial], uniform: Collection[tuple[int, ...]], objective: str
) -> None:
    best = max if objective == "attainable" else min
    values = [trial.value or 0.0 for trial in trials]
    at = range(1, len(values) + 1)
    ax.plot(at, values, ".", color="#6E6E6E", markersize=4)
    ax.step(at, list(accumulate(values, best)), where="post", color=FOUND, linewidth=1.8, label="best so far")
    even = [value for value, trial in zip(values, trials, strict=True) if bits_of(trial) in uniform]
    if even:
        ax.axhline(best(even), color=UNIFORM, linewidth=1.2, linestyle="--", label="best uniform skipping")
    ax.set(xlabel="sets judged", ylabel=VALUES[objective])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    clear_frame(ax, "both")
