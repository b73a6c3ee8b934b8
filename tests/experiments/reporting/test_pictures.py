"""Pictures: one look per drafter, and no text on another or beyond the edge."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.axis import Tick
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from experiments.reporting.plots.picture_style import DRAFTER_COLOURS, DRAFTERS, look_of, looks_by_label
from experiments.reporting.plots.pictures import figures_of, number_side
from experiments.results.record import Record
from tests.experiments.reporting import test_gamma_picture
from tests.experiments.reporting.test_comparison_table import usual
from tests.support.page_records import full_records, sweep_records

CONF = Path(__file__).parents[3] / "conf" / "drafter"


def test_every_drafter_has_a_look_of_its_own() -> None:
    names = sorted(path.stem for path in CONF.glob("*.yaml"))
    looks = {name: look_of(name) for name in names}
    assert len(set(looks.values())) == len(names) >= 18
    assert {look_of(name).colour for name in DRAFTERS[: len(DRAFTER_COLOURS)]} == set(DRAFTER_COLOURS)


def test_a_drafter_of_another_package_is_not_taken_for_one_of_these() -> None:
    ours = {look_of(name) for name in DRAFTERS}
    others = {look_of(f"theirs_{number}") for number in range(400)}
    assert not ours & others
    assert len(others) == 8 * 6 - len(DRAFTERS)


def test_lines_of_a_drafter_can_be_told_apart() -> None:
    looks = looks_by_label([("ngram", f"γ={gamma}") for gamma in range(15)] + [("medusa", "greedy")])
    assert len(set(looks.values())) == 16
    few = looks_by_label([("ngram", f"γ={gamma}") for gamma in range(4)])
    assert {look.colour for look in few.values()} == {look_of("ngram").colour}


def texts_of(figure: Figure) -> list[tuple[str, Bbox]]:
    """Drawn texts and their places in pixels."""
    figure.draw_without_rendering()
    drawn = {
        id(tick)
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        if axis.get_view_interval().min() <= tick.get_loc() <= axis.get_view_interval().max()
    }
    unused = [tick for tick in figure.findobj(Tick) if id(tick) not in drawn]
    hidden = {id(label) for tick in unused for label in (tick.label1, tick.label2)}
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible() and id(text) not in hidden]
    return [
        (text.get_text(), text.get_window_extent()) for text in texts if text.axes is None or text.axes.get_visible()
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "records",
    [
        pytest.param(usual, id="usual"),
        pytest.param(sweep_records, id="sweep"),
        pytest.param(full_records, id="full"),
        pytest.param(lambda: test_gamma_picture.RECORDS, id="gamma"),
    ],
)
def test_no_text_stands_on_another_or_beyond_the_edge(records: Callable[[], list[Record]]) -> None:
    for name, figure in figures_of(records()).items():
        texts = texts_of(figure)
        assert len(texts) > 5
        for (one, box), (other, another) in itertools.combinations(texts, 2):
            assert not box.padded(-1).overlaps(another.padded(-1)), f"{name}: {one!r} and {other!r} overlap"
        edge = figure.bbox.padded(1)
        assert [text for text, box in texts if not edge.containsx(box.x1) or not edge.containsy(box.y1)] == [], name
        assert [text for text, box in texts if not edge.containsx(box.x0) or not edge.containsy(box.y0)] == [], name


def test_a_number_in_a_bar_touches_no_mark() -> None:
    assert number_side("6.0", 0.1, 0.6, None) == "left"
    assert number_side("6.0", 0.1, 0.6, 0.5) == "left"
    assert number_side("6.0", 0.1, 0.6, 0.15) == "right"
    assert number_side("6.0", 0.1, 0.2, 0.2) is None  # crossed in the middle
    assert number_side("6.0", 0.1, 0.1, None) is None  # too narrow
