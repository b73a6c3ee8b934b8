"""Plot of gamma policies for one drafter, with the speedup of an oracle."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.reporting.plots.picture_style import INK, WIDTH, clear_frame, look_of, place_legend
from experiments.results.record import Record
from experiments.results.records import Group

NEEDED = ("speedup/measured", "speedup/zero_overhead", "speedup/oracle_gamma", "tau", "gamma/mean")


@dataclass(frozen=True)
class PolicyPanel:
    """One drafter under several gamma policies, with otherwise equal settings.

    Attributes:
        title: title of the group, and the drafter.
        drafter: name of the drafter.
        labels: labels of the policies, ordered by zero-overhead speedup, best first.
        records: one record per label.
        oracle: speedup of the best gamma of every round in hindsight; the maximum over the records, since deeper drafts
            reveal more tokens that could have been accepted.
    """

    title: str
    drafter: str
    labels: list[str]
    records: list[Record]
    oracle: float


def policy_panels(groups: Iterable[Group]) -> list[PolicyPanel]:
    """Panels of the drafters measured under several policies, at least one of them not fixed."""
    panels = []
    for group in groups:
        by_drafter: dict[str, list[tuple[str, Record]]] = {}
        for label, record in zip(group.labels, group.records, strict=True):
            if all(record.metrics.get(key) is not None for key in NEEDED):
                by_drafter.setdefault(str(record.point.get("drafter")), []).append((label, record))
        for drafter, rows in by_drafter.items():
            policies = {str(record.point.get("gamma_policy")) for _, record in rows}
            if len(policies) > 1 and not policies <= {"fixed", "fixed_8"}:
                rows.sort(key=lambda row: -row[1].metrics["speedup/zero_overhead"])
                labels = [label.removeprefix(drafter).strip() for label, _ in rows]
                oracle = max(record.metrics["speedup/oracle_gamma"] for _, record in rows)
                records = [record for _, record in rows]
                panels.append(PolicyPanel(f"{group.title}, {drafter}", drafter, labels, records, oracle))
    return panels


def draw_gamma_policies(groups: Sequence[Group]) -> Figure | None:
    """Plot one panel per drafter and group; None if no drafter was measured under several policies."""
    panels = policy_panels(groups)
    if not panels:
        return None
    heights = [len(panel.records) + 1.2 for panel in panels]
    figure = Figure(figsize=(WIDTH, 1.2 + 0.36 * sum(heights)), layout="constrained")
    figure.suptitle("Speedup by gamma policy, and with the best gamma of every round")
    axes = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights).flat)
    for ax, panel in zip(axes, panels, strict=True):
        _draw_panel(ax, panel, look_of(panel.drafter).colour)
    farthest = max(max(panel.oracle, *_all_speeds(panel)) for panel in panels)
    axes[0].set_xlim(0, 1.35 * farthest)  # leaves room for the annotations
    axes[-1].set_xlabel("speedup (plain decoding = 1)")
    marks = [
        Line2D([], [], color=INK, marker="o", linestyle="", label="measured"),
        Line2D([], [], color=INK, marker="D", mfc="white", linestyle="", label="zero-overhead speedup"),
        Line2D([], [], color=INK, linestyle="--", label="oracle: every round drafts exactly the accepted tokens"),
    ]
    place_legend(figure, marks)
    return figure


def _all_speeds(panel: PolicyPanel) -> list[float]:
    return [record.metrics[f"speedup/{key}"] for record in panel.records for key in ("measured", "zero_overhead")]


def _draw_panel(ax: Axes, panel: PolicyPanel, colour: str) -> None:
    ax.axvline(1, color=INK, linewidth=0.8, zorder=1)
    ax.axvline(panel.oracle, color=INK, linewidth=1.5, linestyle="--", zorder=1)
    for y, record in enumerate(panel.records):
        metrics = record.metrics
        measured, zero_overhead = metrics["speedup/measured"], metrics["speedup/zero_overhead"]
        ax.plot([measured, zero_overhead], [y, y], color=colour, linewidth=1, alpha=0.4, zorder=2)
        ax.plot(zero_overhead, y, "D", color=colour, mfc="white", markersize=7, mew=1.5, zorder=3)
        ax.plot(measured, y, "o", color=colour, markersize=7, zorder=4)
        shown = f"τ {metrics['tau']:.2f} of γ {metrics['gamma/mean']:.2f}"
        place = max(measured, zero_overhead, panel.oracle)
        ax.annotate(shown, (place, y), (8, 0), textcoords="offset points", va="center", color=INK, fontsize=8)
    ax.set_title(panel.title, fontsize=10)
    ax.set_yticks(range(len(panel.labels)), panel.labels)
    ax.set_ylim(len(panel.labels) - 0.4, -0.6)
    clear_frame(ax, "x")
