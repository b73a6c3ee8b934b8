"""Alpha over time across a switch of the prompts' domain: an online-learning drafter against its frozen copy."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hydra.experimental.callback import Callback
from matplotlib.figure import Figure
from omegaconf import DictConfig
from rich.console import Console

from experiments.reporting.plots.picture_style import FAINT, GREY, INK, WIDTH, clear_frame, look_of
from experiments.reporting.publish import relative
from experiments.reporting.tables.text_table import Cells, markdown, shown
from experiments.results.record import Record
from experiments.results.records import load_records

LATE = slice(30, 60)  # prompts after the switch that measure the recovery: the 31st to the 60th
MEASURING = ("tracker", "threads", "repeats", "hugging_face", "share_cores")  # keys without effect on decoded tokens
SMOOTHED = 7  # prompts averaged per plotted point
FILE = "over_time"
NOTE = (
    "α is accepted ÷ tested. Lost: α of the frozen drafter (drafter.steps=0) before the switch, minus its α over "
    "prompts 31 to 60\nafter it. Recovered: α of the learning drafter over those prompts, minus that of the frozen "
    "one, ÷ lost."
)


@dataclass(frozen=True)
class Course:
    """A frozen drafter and its online-learning copy, measured on the same prompts with one seed.

    Attributes:
        drafter: name of the drafter, with its learning options.
        alike: all settings except seeds, as JSON; courses of equal settings form a group.
        temperature: sampling temperature.
        seed: seed of prompts, sampling and learning.
        switch: number of prompts before the domain switches.
        frozen, online: accepted and tested nodes per prompt, float64 [prompts, 2].
        unequal: whether the learning drafter's tokens differ from the baseline's; None if not compared.
        learning_seconds: seconds spent in updates.
        decoding_seconds: decoding seconds of the learning drafter, updates included.
    """

    drafter: str
    alike: str
    temperature: float
    seed: int
    switch: int
    frozen: np.ndarray
    online: np.ndarray
    unequal: bool | None
    learning_seconds: float
    decoding_seconds: float

    @property
    def before(self) -> float:
        return _alpha(self.frozen[: self.switch])

    @property
    def frozen_late(self) -> float:
        return _alpha(self.frozen[self.switch :][LATE])

    @property
    def online_late(self) -> float:
        return _alpha(self.online[self.switch :][LATE])

    @property
    def recovered(self) -> float | None:
        """Recovered share of the lost alpha; None if none was lost."""
        lost = self.before - self.frozen_late
        return (self.online_late - self.frozen_late) / lost if lost > 0 else None


def courses(records: Sequence[Record]) -> list[Course]:
    """Pair every record of a learning drafter with the frozen one of otherwise equal settings."""
    records = [record for record in records if "counts" in record.config["prompts"]["source"]]
    frozen = {_key(record): record for record in records if not _learns(record)}
    pairs = [(record, frozen[_key(record)]) for record in records if _learns(record) and _key(record) in frozen]
    found = [_course(online, its_frozen) for online, its_frozen in pairs]
    return sorted(found, key=lambda each: (each.drafter, each.temperature, each.seed))


def _learns(record: Record) -> bool:
    return bool(record.config["drafter"].get("steps"))


def _key(record: Record) -> str:
    """Settings that affect decoded tokens, as JSON, without the learning options of the drafter."""
    config = _decoded(record)
    learner = config["drafter"].get("drafter")  # the other options control its learning
    return json.dumps([record.point["drafter"], config | {"drafter": learner}], sort_keys=True)


def _decoded(record: Record) -> dict[str, Any]:
    """The configuration without the keys in MEASURING."""
    return {name: value for name, value in record.config.items() if name not in MEASURING}


def _without_seeds(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_seeds(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _without_seeds(each) for name, each in value.items() if name != "seed"}


def _course(online: Record, frozen: Record) -> Course:
    equal = online.metrics.get("tokens_equal_baseline")
    return Course(
        drafter=f"{online.point['drafter']} {online.point.get('options', '')}".strip(),
        alike=json.dumps([online.point["drafter"], _without_seeds(_decoded(online))], sort_keys=True),
        temperature=float(online.point["temperature"]),
        seed=int(online.config["seed"]),
        switch=int(online.config["prompts"]["source"]["counts"][0]),
        frozen=_counts(frozen),
        online=_counts(online),
        unequal=None if equal is None else not equal,
        learning_seconds=online.stages["learn"],
        decoding_seconds=online.seconds,
    )


def _counts(record: Record) -> np.ndarray:
    return np.array([[row["accepted"], row["tested"]] for row in record.prompts], dtype=float)


def _alpha(counts: np.ndarray) -> float:
    accepted, tested = counts.sum(0)
    return float(accepted / tested) if tested else float("nan")


def table(found: Sequence[Course]) -> Cells:
    """Table rows, heading first: one per course, and the mean over courses that differ only in their seed."""
    cells = [
        ["drafter", "T", "seed", "α before", "frozen, 31–60", "online, 31–60", "recovered", "tokens equal",
         "learning s", "decoding s"]
    ]  # fmt: skip
    for group in _groups(found):
        for each in group:
            cells.append([
                each.drafter, f"{each.temperature:g}", str(each.seed), f"{each.before:.3f}", f"{each.frozen_late:.3f}",
                f"{each.online_late:.3f}", _percent(each.recovered),
                "–" if each.unequal is None else "NO" if each.unequal else "yes",
                f"{each.learning_seconds:.1f}", f"{each.decoding_seconds:.1f}",
            ])  # fmt: skip
        shares = [each.recovered for each in group if each.recovered is not None]
        means = [np.mean([getattr(each, name) for each in group]) for name in ("before", "frozen_late", "online_late")]
        mean = _percent(float(np.mean(shares)) if shares else None)
        cells.append([group[0].drafter, f"{group[0].temperature:g}", "mean", *(f"{each:.3f}" for each in means), mean,
                      "", "", ""])  # fmt: skip
    return cells


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _groups(found: Sequence[Course]) -> list[list[Course]]:
    keys = dict.fromkeys(each.alike for each in found)
    return [[each for each in found if each.alike == key] for key in keys]


def draw(found: Sequence[Course]) -> Figure:
    """Plot both alphas over the prompts, one panel per drafter and temperature; thin: seeds, thick: their mean."""
    groups = _groups(found)
    figure = Figure(figsize=(WIDTH, 0.8 + 3 * len(groups)), layout="constrained")
    figure.suptitle("Alpha over time; the prompts' domain switches at the line")
    for ax, group in zip(figure.subplots(len(groups), 1, squeeze=False).flat, groups, strict=True):
        switch = group[0].switch
        learning = look_of(group[0].drafter.split()[0]).colour  # options follow the name
        for colour, which, label in ((GREY, "frozen", "frozen"), (learning, "online", "learning")):
            smoothed = [_smoothed(getattr(each, which), switch) for each in group]
            places = np.arange(1, len(smoothed[0]) + 1)
            for each in smoothed:
                ax.plot(places, each, color=colour, linewidth=0.7, alpha=0.4)
            ax.plot(places, np.mean(smoothed, 0), color=colour, linewidth=2, label=label)
        ax.axvline(switch + 0.5, color=INK, linewidth=1)
        ax.axvspan(switch + LATE.start + 0.5, switch + LATE.stop + 0.5, color=FAINT, alpha=0.5)
        ax.set(title=f"{group[0].drafter}, T = {group[0].temperature:g}", xlabel="prompt", ylabel="alpha", ylim=(0, 1))
        clear_frame(ax, "y")
        ax.legend(frameon=False)
    return figure


def _smoothed(counts: np.ndarray, switch: int) -> np.ndarray:
    """Moving average of alpha over SMOOTHED prompts, separately before and after the switch."""
    half, sides = SMOOTHED // 2, (counts[:switch], counts[switch:])
    return np.array([_alpha(side[max(0, i - half) : i + half + 1]) for side in sides for i in range(len(side))])


class DomainSwitchPicture(Callback):
    """Hydra callback that saves the plot and prints and saves the table after the last point of a sweep."""

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        found = courses(load_records(folder))
        if not found:
            wanted = "both frozen (drafter.steps=0) and learning, on prompts that switch domain (prompts=domain_switch)"
            print(f"no drafter was measured {wanted}: {relative(folder)}")
            return
        cells = table(found)
        (folder / f"{FILE}.md").write_text(f"{markdown(cells)}\n{NOTE}\n", encoding="utf-8")
        draw(found).savefig(folder / f"{FILE}.png", dpi=160, facecolor="white")
        shows = shown(cells, title="Recovery of alpha after a switch of domain", caption=NOTE)
        Console(width=None if sys.stdout.isatty() else 140).print(shows)
        print(f"{FILE}.png, {FILE}.md: {relative(folder)}")
