"""Picture of rollouts for reinforcement learning: α, speedup and reward by step."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.reporting.plots.picture_style import INK, WIDTH, clear_frame, look_of

SMOOTHED = 5  # steps averaged per plotted point


def draw_rollouts(rewards: Sequence[float], drafters: Mapping[str, Sequence[tuple[float | None, float]]]) -> Figure:
    """Three panels: α and speedup of every drafter, and the reward.

    Args:
        rewards: mean reward of every step.
        drafters: by name, α and speedup of every step.
    """
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    panels = figure.subplots(1, 3)
    for name, values in drafters.items():
        for panel, series in zip(panels, zip(*values, strict=True), strict=False):
            panel.plot(*_smooth(series), color=look_of(name).colour, label=name)
    panels[2].plot(*_smooth(rewards), color=INK)
    for panel, title in zip(panels, ("α", "speedup over plain decoding", "reward"), strict=True):
        panel.set_title(title, loc="left", fontsize=10)
        panel.set_xlabel(f"step (means over {SMOOTHED})")
        clear_frame(panel, "y")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(drafters), frameon=False
    )
    return figure


def _smooth(values: Sequence[float | None]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the steps, and means over the steps around each."""
    series = np.array([np.nan if value is None else value for value in values], dtype=float)
    means = [
        np.nanmean(some) if np.isfinite(some).any() else np.nan
        for step in range(len(series))
        for some in [series[max(0, step - SMOOTHED // 2) : step + SMOOTHED // 2 + 1]]
    ]
    return np.arange(1, len(series) + 1), np.array(means)
