"""The page says what the records say, whatever they lack, and needs nothing beside itself."""

import json
import re
import tempfile
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from hypothesis import strategies as st

from experiments.reporting.page.bar_charts import round_panels, speedup_panels
from experiments.reporting.page.points import points_of, table_rows
from experiments.reporting.page.render import write_page
from experiments.reporting.page.tokens import MOST_TOKENS, token_view
from experiments.reporting.scale import Scale
from experiments.results.record import Record
from experiments.results.record_diff import diff_records
from experiments.results.records import group_records
from tests.experiments.reporting.test_comparison_table import make_record
from tests.experiments.results.test_fuzz_records import RECORDS
from tests.support.fuzzing import fuzz
from tests.support.page_records import HOSTILE, TOKENS, full_records, prompts


def written(records: list[Record], folder: Path, **options: object) -> str:
    write_page(records, folder / "report.html", **options)
    return (folder / "report.html").read_text(encoding="utf-8")


def table_cells(page: str) -> list[list[str]]:
    """The rows of the table of all points, without the intervals in its cells."""
    table = re.search(r'class="sortable points">.*?</table>', page, re.DOTALL)
    assert table
    rows = re.findall(r"<tr[ >].*?</tr>", re.sub(r"<small>.*?</small></td>", "</td>", table[0]), re.DOTALL)
    return [
        [
            unescape(re.sub(r"<[^>]+>", "", cell)).strip()
            for cell in re.findall(r"<t[dh][ >].*?</t[dh]>", row, re.DOTALL)
        ]
        for row in rows
    ]


def test_the_table_has_every_point_and_plain_decoding(tmp_path: Path) -> None:
    heading, *rows = table_cells(written(full_records(), tmp_path))
    column = heading.index("measured speedup")
    assert [row[column] for row in rows if row[2] == "T = 0, batch_size 1"] == ["2.53", "1.64", "0.90", "1.00", "0.80"]
    assert rows[2][0].startswith("<i>typical</i>") and "≠ LOSSY" in rows[2][0]
    assert len(rows) == 7 + 2 * 4


@pytest.mark.parametrize(("speedup", "high", "remark"), [
    (1.5, 1.6, None), (0.9, 1.1, "not clearly the fastest"), (0.9, 0.95, "slower than plain decoding"),
])  # fmt: skip
def test_the_fastest_drafter_is_named_with_its_place(
    tmp_path: Path, speedup: float, high: float, remark: str | None
) -> None:
    ends = {"speedup/ci_low": speedup - 0.1, "speedup/ci_high": high}
    page = written([make_record("ngram", 0, speedup, **ends)], tmp_path)
    remarks = ("not clearly the fastest", "slower than plain decoding")
    assert [each for each in remarks if each in page] == ([remark] if remark else [])


def test_a_drafter_has_one_colour_wherever_it_stands() -> None:
    names = [("ngram", 0), ("medusa", 0), ("medusa", 1), ("uniform_random", 1)]
    groups = group_records([make_record(name, temperature, 1.0) for name, temperature in names])
    everywhere = points_of(groups) + [row.point for row in table_rows(groups) if row.point]
    colours = {(point.drafter, point.look) for point in everywhere}
    assert len(colours) == len({drafter for drafter, _ in colours}) == 3


def test_nothing_is_asked_of_a_network(tmp_path: Path) -> None:
    page = written(full_records(), tmp_path)
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#|data:,)|@import|url\(|fetch\(|XMLHttp""", page)


def test_texts_are_texts_whatever_they_say(tmp_path: Path) -> None:
    page = written(full_records(), tmp_path)
    assert HOSTILE not in page and "<i>typical" not in page
    data = re.search(r'<script type="application/json" id="token-data">(.*?)</script>', page, re.DOTALL)
    assert data
    points, _, texts = json.loads(data[1])
    assert points[0]["prompts"][0]["tokens"][-1][0] == HOSTILE
    assert texts[points[0]["prompts"][0]["prompt"]] == f"# {HOSTILE}\n"
    assert points[0]["prompts"][0]["tokens"][2] == ["(", "replaced", 0.25, 0.001, ["[", 0.125, 0.875]]


def test_old_records_leave_out_what_they_do_not_hold(tmp_path: Path) -> None:
    page = written([Record()], tmp_path)
    for title in ("sweep-1", "speedups", "alphas", "categories", "rounds", "tokens", "changes"):
        assert f'id="{title}-title"' not in page
    assert 'id="table-title"' in page
    full = written(full_records(), tmp_path, changes=diff_records(full_records(), full_records()))
    for title in ("sweep-1", "speedups", "alphas", "categories", "rounds", "tokens", "changes"):
        assert f'id="{title}-title"' in full


@fuzz(3, records=st.lists(RECORDS.map(Record.from_json), min_size=1, max_size=3))
def test_whatever_is_read_is_shown(records: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = written(records, Path(folder), changes=diff_records(records, records))
    baselines = page.count('<tr class="baseline"')
    assert len(table_cells(page)) == 1 + len(records) + baselines


def test_marks_stand_where_their_values_are() -> None:
    points = points_of(group_records([make_record("ngram", 0, 1.6), make_record("medusa", 0, 0.8)]))
    (panel,) = speedup_panels(points)
    places = {tick.text: tick.at for tick in panel.ticks}
    for row, measured in zip(panel.rows, (1.6, 0.8), strict=True):
        at = {mark.kind: mark.at for mark in row.marks}
        for kind, value in (("measured", measured), ("zero_overhead", 1.71), ("predicted", 1.91)):
            assert abs(at[kind] - value * places["1"]) < 0.02
        assert row.description == f"measured {measured:.2f}, zero-overhead speedup 1.71, predicted (Thm 3.8) 1.91"


def test_stages_stand_side_by_side_and_fill_the_round() -> None:
    (panel,) = round_panels(points_of(group_records([make_record("ngram", 0, 1.6)])))
    (row,) = panel.rows
    assert [piece.kind for piece in row.pieces] == ["draft", "target", "verify", "observe"]
    for before, after in zip(row.pieces, row.pieces[1:], strict=False):
        assert abs(before.start + before.width - after.start) < 0.02
    widths = {piece.kind: piece.width for piece in row.pieces}
    assert abs(widths["target"] / widths["draft"] - 6) < 0.01 and row.value == "7.5 ms"


def test_a_scale_in_powers_of_two_gives_every_doubling_the_same_room() -> None:
    scale = Scale(1, 32, 0, 100, in_powers=True)
    assert [scale.at(2**power) for power in range(6)] == [0, 20, 40, 60, 80, 100]
    assert [tick.text for tick in scale.ticks()] == ["1", "2", "4", "8", "16", "32"]


def test_tokens_that_have_no_room_are_told_of() -> None:
    many = prompts([1] * 8)
    for row in many:
        row["tokens"] = TOKENS * 300
    records = [replace(make_record("ngram", 0, 1.0 + gamma / 100, gamma=gamma), prompts=many) for gamma in range(1, 9)]
    view = token_view(points_of(group_records(records)))
    shown = [len(point["prompts"]) for point in view.points]
    assert sum(shown) + view.num_left_out == 64 and max(shown) - min(shown) <= 1
    assert MOST_TOKENS <= sum(shown) * 1800 < MOST_TOKENS + 1800
