"""The table and the pictures say what the records say, and say loudly what is wrong with them. All numbers invented."""

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from scipy.stats import binomtest

from experiments.config import builders
from experiments.reporting.plots.pictures import draw_pictures
from experiments.reporting.tables.comparison_table import comparison_table, markdown_table
from experiments.results.acceptance import alphas_by_position
from experiments.results.record import Record
from experiments.results.records import group_records, is_lossy, load_records

OVERLAP = "no fastest drafter, since 95% intervals over prompts overlap"
SPREAD = ("speedup/measured_low", "speedup/measured_high")


def make_record(drafter: str, temperature: float, measured: float | None, **changes: object) -> Record:
    """A record; changes go to the point where it has such a key, else to the metrics."""
    point = {
        "drafter": drafter,
        "verifier": "speculative_sampling",
        "guarantee": "exact",
        "gamma_policy": "fixed",
        "gamma": 2,
        "temperature": temperature,
        "batch_size": 1,
        "target": "zoo",
    }
    metrics = {
        "alpha/overlap": 0.613,
        "alpha/empirical": 0.607,
        "alpha/check": True,
        "alpha/ci_low": 0.581,
        "alpha/ci_high": 0.634,
        "tau": 2.27,
        "tau/ci_low": 2.163,
        "tau/ci_high": 2.38,
        "tau/eq1": 2.31,
        "distinct_4grams": 0.814,
        "operations": 1.634,
        "operations/counted": 1.787,
        "c": 0.104,
        "speedup/measured": measured,
        "speedup/measured_low": None if measured is None else measured - 0.03,
        "speedup/measured_high": None if measured is None else measured + 0.03,
        "speedup/ci_low": None if measured is None else measured - 0.05,
        "speedup/ci_high": None if measured is None else measured + 0.05,
        "speedup/end_to_end": 1.11,
        "speedup/predicted": 1.91,
        "speedup/zero_overhead": 1.71,
        "efficiency": 0.83,
        "ms_per_token": 4.04,
        "baseline_ms_per_token": 5.0,
        "hf_generate_ms_per_token": 6.25,
    }
    if temperature == 0:
        metrics |= {"tokens_equal_baseline": True, "tokens_equal_hf": True}
    point |= {key: value for key, value in changes.items() if key in point}
    metrics |= {key: value for key, value in changes.items() if key not in point}
    return Record(
        name=f"{drafter}-T{temperature:g}-g{point['gamma']}",
        point=point,
        metrics=metrics,
        counts={"rounds_by_offered_and_accepted": [[5, 0, 0], [10, 20, 0], [100, 60, 40]]},
        stages_ms_per_round={"draft": 1.0, "target": 6.0, "verify": 0.4, "commit": None, "observe": 0.1},
    )


def usual() -> list[Record]:
    return [
        make_record("uniform_random", 1, 0.71),
        make_record("small_transformer", 1, 1.42),
        make_record("ngram", 1, None),
        make_record("small_transformer", 0, 1.53),
        make_record("ngram", 0, 1.64),
    ]


def rendered(records: list[Record], width: int = 120) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(comparison_table(records, width=width))
    return console.export_text()


def cells(markdown: str) -> list[dict[str, str]]:
    """The data rows of all tables in a Markdown text, by heading."""
    rows: list[dict[str, str]] = []
    heading: list[str] = []
    for line in markdown.splitlines():
        if not line.startswith("|"):
            heading = []
            continue
        values = [value.strip() for value in line.strip("|").split("|")]
        if not heading:
            heading = values
        elif set(line) - set("|-: "):
            rows.append(dict(zip(heading, values, strict=True)))
    return rows


# Records


def test_records_are_found_below_the_folder_and_broken_ones_are_told(tmp_path: Path) -> None:
    good = make_record("ngram", 0, 1.2)
    contents = {
        "a/good/record.json": json.dumps(good.to_json()),
        "b/record.json": '{"point": {}, "metr',
        "c/record.json": '["not", "an", "object"]',
        "d/record.json": '{"point": {}}',
        "e/error.json": '{"error": "RuntimeError: broke"}',
    }
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(content)
    with pytest.warns(RuntimeWarning) as shown:
        records = load_records(tmp_path)
    assert records == [good]
    messages = [str(warning.message) for warning in shown]
    assert len(messages) == 4
    for name in list(contents)[1:]:
        assert sum(str(tmp_path / name) in message for message in messages) == 1


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_records(tmp_path / "nowhere")


def test_nan_written_by_somebody_else_reads_as_missing(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text('{"point": {}, "metrics": {"tau": NaN}}')
    assert load_records(tmp_path)[0].metrics == {"tau": None}


def test_groups_by_temperature_then_by_measured_speed() -> None:
    groups = group_records(usual())
    assert [(group.title, group.labels) for group in groups] == [
        ("T = 0", ["ngram", "small_transformer"]),
        ("T = 1", ["small_transformer", "uniform_random", "ngram"]),
    ]


def test_points_of_other_settings_are_not_compared_with_one_another() -> None:
    groups = group_records([make_record("ngram", 0, 1.2), make_record("ngram", 0, 1.9, batch_size=8)])
    assert [group.title for group in groups] == ["T = 0, batch_size 1", "T = 0, batch_size 8"]


def test_groups_come_in_the_order_of_their_numbers() -> None:
    groups = group_records([make_record("ngram", 0, 1.2, batch_size=size) for size in (16, 2, 1)])
    assert [group.title for group in groups] == [f"T = 0, batch_size {size}" for size in (1, 2, 16)]


def test_labels_tell_points_apart() -> None:
    records = [make_record("ngram", 0, 1.2, gamma=gamma) for gamma in (2, 4)]
    clones = [make_record("prompt_lookup", 0, 1.1) for _ in range(2)]
    names = ("longest-match", "shortest-match")
    clones = [replace(clone, name=name) for clone, name in zip(clones, names, strict=True)]
    (group,) = group_records([*records, *clones, make_record("small_transformer", 0, 1.0)])
    assert group.labels == ["ngram γ=2", "ngram γ=4", "longest-match", "shortest-match", "small_transformer"]
    names = [row["drafter"] for row in cells(markdown_table(group.records))]
    assert names[:5] == ["ngram", "ngram", "longest-match", "shortest-match", "small_transformer"]


# The table


def test_the_markdown_table_has_every_quantity() -> None:
    (row, baseline, hugging_face) = cells(markdown_table([make_record("ngram", 0, 1.42)]))
    assert row == {
        "drafter": "ngram",
        "γ": "2",
        "guarantee": "exact",
        "α overlap": "0.613",
        "α empirical": "0.607",
        "95% of α": "0.58–0.63",
        "τ": "2.27",
        "95% of τ": "2.16–2.38",
        "τ by Eq. 1": "2.31",
        "c": "0.104",
        "predicted (Thm 3.8)": "1.91",
        "zero-overhead speedup": "1.71",
        "measured speedup": "1.42",
        "95% of speedup": "1.37–1.47",
        "min–max": "1.39–1.45",
        "end to end": "1.11",
        "efficiency": "83%",
        "ms per token": "4.04",
        "distinct 4-grams": "0.81",
        "operations": "1.79",
        "operations (Thm 3.11)": "1.63",
        "tokens equal": "yes",
    }
    assert (baseline["measured speedup"], baseline["ms per token"]) == ("1.00", "5.00")
    assert (hugging_face["measured speedup"], hugging_face["ms per token"]) == ("0.80", "6.25")


@pytest.mark.parametrize("width", [120, 100, 80])
def test_the_table_fits_the_terminal_and_cuts_no_word(width: int) -> None:
    text = rendered(usual(), width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    for word in ("small_transformer", "uniform_random", "exact", "0.613", "2.27", "1.42", "4.04", "yes"):
        assert word in text


def test_a_wide_table_has_what_a_narrow_one_gives_up() -> None:
    wide, usual_width, narrow = (rendered(usual(), width) for width in (160, 120, 80))
    for value in ("0.607", "0.58–0.63", "2.16–2.38", "2.31", "0.104"):
        assert value in wide
    for value in ("1.91", "1.37–1.47", "1.39–1.45", "83%", "0.81"):
        assert value in usual_width
    assert "0.104" not in narrow


def test_brackets_in_a_name_are_shown() -> None:
    """Found by fuzzing: rich took them for styles and left them out, or raised."""
    records = [make_record(name, 0, 1.2) for name in ("[/]", "a[red]")]
    for name in ("[/]", "a[red]"):
        assert name in rendered(records)


def test_a_line_break_in_a_name_breaks_no_row() -> None:
    (row, *_) = cells(markdown_table([make_record("one\ntwo", 0, 1.2)]))
    assert row["drafter"] == "one two"


def test_a_time_of_zero_has_no_speed() -> None:
    (*_, hugging_face) = cells(markdown_table([make_record("ngram", 0, 1.2, hf_generate_ms_per_token=0.0)]))
    assert hugging_face["measured speedup"] == "–"


def test_what_is_missing_is_a_dash() -> None:
    record = make_record("ngram", 1, None)
    for metrics in (dict.fromkeys(record.metrics), {}):
        (row,) = cells(markdown_table([replace(record, metrics=metrics)]))
        assert set(list(row.values())[3:]) == {"–"}
        assert "None" not in rendered([replace(record, metrics=metrics)])


def test_nothing_is_alarming_about_usual_records() -> None:
    assert "‼" not in rendered(usual())
    assert "LOSSY" not in rendered(usual())


@pytest.mark.parametrize("width", [120, 80])
@pytest.mark.parametrize(
    ("changes", "alarm"),
    [
        ({"alpha/check": False}, "α CHECK FAILED"),
        ({"tokens_equal_baseline": False}, "TOKENS DIFFER at temperature 0: ngram-T0-g2 from the baseline"),
        ({"tokens_equal_hf": False}, "TOKENS DIFFER at temperature 0: ngram-T0-g2 from HF generate"),
        ({"time_over_parts": 0.85}, "FASTER THAN ITS PARTS"),
        ({"efficiency": 1.12}, "EFFICIENCY ABOVE 110%"),
        ({"speedup/measured_high": 2.4}, "UNSTEADY"),
        ({"graphs/while_timed": 1}, "COMPILED WHILE TIMED"),
        ({"graphs/not_captured": 1}, "WITHOUT CUDA GRAPHS"),
    ],
)
def test_what_is_wrong_is_said_loudly(changes: dict[str, object], alarm: str, width: int) -> None:
    records = [*usual(), make_record("ngram", 0, 1.2, **changes)]
    text = " ".join(rendered(records, width).split())
    assert f"‼ {alarm}" in text
    assert "ngram-T0-g2" in text
    assert f"‼ {alarm}" in markdown_table(records)
    (loud,) = [row for row in cells(markdown_table(records)) if any("‼" in value for value in row.values())]
    assert loud["drafter"].startswith("ngram")


def test_repetitive_outputs_are_flagged_once_per_setting() -> None:
    records = [make_record(name, 0, 1.2, distinct_4grams=0.49) for name in ("ngram", "medusa")]
    text = markdown_table([*records, make_record("ngram", 1, 1.2, distinct_4grams=0.5)])
    assert [row["distinct 4-grams"] for row in cells(text) if row["c"]] == ["‼ 0.49", "‼ 0.49", "0.50"]
    (note,) = [line for line in text.splitlines() if line.startswith("‼")]
    assert note.startswith("‼ REPETITIVE OUTPUT") and note.endswith(": T = 0")


def test_one_repeat_has_no_spread() -> None:
    (row, *_) = cells(markdown_table([make_record("ngram", 0, 1.2, **dict.fromkeys(SPREAD, 1.2))]))
    assert row["min–max"] == "–"


@pytest.mark.parametrize(
    ("ends", "line"),
    [
        ((1.51, 1.7), "fastest, by 95% intervals over prompts: ngram (1.51–1.70)."),
        ((1.5, 1.7), f"{OVERLAP}: ngram (1.50–1.70), medusa (1.40–1.50)."),
        ((0.9, 1.7), f"{OVERLAP}: ngram (0.90–1.70), medusa (1.40–1.50), plain decoding (1.00)."),
    ],
)
def test_a_fastest_drafter_is_named_only_where_intervals_part(ends: tuple[float, float], line: str) -> None:
    low, high = "speedup/ci_low", "speedup/ci_high"
    records = [
        make_record("ngram", 0, 1.6, **{low: ends[0], high: ends[1]}),
        make_record("medusa", 0, 1.45, **{low: 1.4, high: 1.5}),
        make_record("typical", 0, 1.6, guarantee="lossy"),
    ]
    assert f"T = 0: {line}" in markdown_table(records).splitlines()
    without = [replace(record, metrics={**record.metrics, low: None}) for record in records]
    assert "fastest" not in markdown_table(without)


def test_plain_decoding_may_be_the_fastest() -> None:
    text = markdown_table([make_record("ngram", 0, 0.9)])
    assert "T = 0: fastest, by 95% intervals over prompts: plain decoding (1.00)." in text


def test_a_checked_drafter_has_a_tick_and_a_lossy_rule_has_none() -> None:
    records = [make_record("ngram", 0, 1.2, **{"guarantee/checked": True}), make_record("medusa", 0, 1.1)]
    assert [row["guarantee"] for row in cells(markdown_table(records))[:2]] == ["exact ✓", "exact"]
    lossy = make_record("ngram", 0, 1.2, guarantee="lossy", **{"guarantee/checked": True})
    assert "✓" not in markdown_table([lossy])


@pytest.mark.parametrize(
    ("guarantee", "temperature", "lossy"),
    [
        ("exact", 0, False),
        ("exact", 1, False),
        ("greedy-exact", 0, False),
        ("greedy-exact", 0.5, True),
        ("lossy", 0, True),
        ("lossy", 1, True),
    ],
)
def test_lossy_rows_are_marked(guarantee: str, temperature: float, lossy: bool) -> None:
    record = make_record("ngram", temperature, 1.2, guarantee=guarantee)
    assert is_lossy(record) == lossy
    assert cells(markdown_table([record]))[0]["guarantee"] == ("≠ LOSSY" if lossy else guarantee)
    for width in (120, 80):
        assert ("≠ LOSSY" in rendered([record], width)) == lossy


def test_verifiers_get_a_column_where_they_differ() -> None:
    records = [make_record("ngram", 1, 1.2), make_record("ngram", 1, 1.4, verifier="lenience", guarantee="lossy")]
    assert [row["verifier"] for row in cells(markdown_table(records))[:2]] == ["lenience", "speculative_sampling"]
    assert "verifier" not in cells(markdown_table(usual()))[0]


def test_requests_have_columns_where_they_arrive() -> None:
    served = {"goodput": 3.25, "predicted/goodput": 3.5, "baseline/goodput": 2.75, "latency_p99": 0.84}
    metrics = {f"serving/{key}": value for key, value in served.items()}
    record = make_record("online_small_transformer", 0, 1.2, **metrics)
    table = markdown_table([record])
    columns = ("goodput", "predicted goodput", "plain goodput", "latency p99")
    assert [cells(table)[0][column] for column in columns] == ["3.25", "3.50", "2.75", "0.84"]
    assert "goodput: requests per second" in table
    text = rendered([record], 80)
    assert "3.25" in text and "online_small_transformer" in text and "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "goodput" not in cells(markdown_table(usual()))[0]


# The pictures


def test_pictures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    paths = draw_pictures(usual(), tmp_path / "new")
    assert [path.name for path in paths] == ["speedups.png", "alpha_by_position.png", "round_time.png"]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_numbers_is_left_out(tmp_path: Path) -> None:
    records = [replace(record, stages_ms_per_round={}, counts={}) for record in usual()]
    assert [path.name for path in draw_pictures(records, tmp_path)] == ["speedups.png"]
    assert draw_pictures([replace(make_record("ngram", 0, None), counts={}, stages_ms_per_round={})], tmp_path) == []
    assert draw_pictures([], tmp_path) == []


def test_alpha_by_position_is_over_tested_tokens() -> None:
    record = make_record("ngram", 0, 1.2)
    # Offered 1: 10 rounds accepted none, 20 all. Offered 2: 100 accepted none, 60 one, 40 both.
    (first, second) = alphas_by_position(record)
    for found, position, accepted, tested in ((first, 1, 120, 230), (second, 2, 40, 100)):
        interval = binomtest(accepted, tested).proportion_ci(0.95, method="wilson")
        assert found == pytest.approx((position, accepted / tested, interval.low, interval.high), abs=1e-5)


def test_positions_that_were_hardly_tested_are_not_drawn() -> None:
    record = make_record("ngram", 0, 1.2)
    record.counts["rounds_by_offered_and_accepted"] = [[0, 0, 0], [0, 0, 0], [100, 10, 9]]
    assert [position for position, *_ in alphas_by_position(record)] == [1]


def test_points_of_a_sweep_are_told_apart_by_what_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    set_here = ["drafter=ngram", "drafter.order=5", "+paper_drafter=base", "verifier.lenience=0.5", "gamma.gamma=3",
                "drafter.model.path=/models/small", "sampling.temperature=1"]  # fmt: skip
    hydra = SimpleNamespace(overrides=SimpleNamespace(task=set_here))
    monkeypatch.setattr(builders.HydraConfig, "get", lambda: hydra)
    assert builders._options() == "order=5 paper_drafter=base lenience=0.5 model.path=small"


def test_a_target_is_named_without_its_fingerprint_unless_one_name_has_several() -> None:
    def titles(*targets: tuple[str, str]) -> list[str]:
        records = []
        for name, fingerprint in targets:
            records.append(make_record("ngram", 0, 1.2))
            records[-1].point.update({"target": name, "target_fingerprint": fingerprint})
        return [group.title for group in group_records(records)]

    assert titles(("zoo", "aa"), ("translation", "bb")) == ["T = 0, target translation", "T = 0, target zoo"]
    one, other = titles(("pretrained", "aa"), ("pretrained", "bb"))
    assert "aa" in one and "bb" in other
