"""A comparison in a notebook, in a terminal, as a DataFrame and on disk."""

import io
import re
import sys

import pytest
from rich.console import Console

from experiments.reporting.comparison import Comparison
from experiments.results.records import load_records
from tests.experiments.reporting.test_comparison_table import make_record


@pytest.fixture
def comparison() -> Comparison:
    records = [make_record("ngram", 0, 1.64), make_record("<b>", 0, 1.2), make_record("ngram", 1, 1.31)]
    return Comparison(records)


def test_a_dataframe_has_a_row_per_record_with_settings_and_metrics(comparison):
    frame = comparison.to_dataframe()
    assert list(frame["drafter"]) == ["ngram", "<b>", "ngram"] and list(frame["temperature"]) == [0, 0, 1]
    assert list(frame["speedup/measured"]) == [1.64, 1.2, 1.31]
    assert set(comparison.records[0].metrics) < set(frame.columns)


def test_without_pandas_the_error_names_it(comparison, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"to_dataframe needs the package pandas: pip install"):
        comparison.to_dataframe()


def test_a_terminal_shows_the_table_of_the_commands_in_its_width(comparison):
    text = repr(comparison)
    assert "T = 0" in text and "T = 1" in text and "1.64" in text and "Speedups are relative" in text
    narrow = io.StringIO()
    Console(file=narrow, width=90).print(comparison)
    assert max(map(len, narrow.getvalue().splitlines())) <= 90 and "1.64" in narrow.getvalue()


def test_a_notebook_shows_a_table_per_group_without_markup_of_names(comparison):
    shown = comparison._repr_html_()
    assert shown.count("<table>") == 2 and "&lt;b&gt;</td>" in shown and "<td><b>" not in shown
    assert "<td>1.64</td>" in shown and "Speedups are relative" in shown


def test_the_picture_is_a_png(comparison):
    assert comparison.picture()._repr_png_().startswith(b"\x89PNG")
    assert Comparison([make_record("ngram", 0, None)]).picture() is None


def test_saved_records_are_read_again_and_nothing_is_overwritten(comparison, tmp_path):
    folder = comparison.save(tmp_path / "new")
    assert {record.name for record in load_records(folder)} == {record.name for record in comparison.records}
    assert {"table.md", "report.html", "speedups.png"} <= {path.name for path in folder.iterdir()}
    with pytest.raises(ValueError, match=re.escape(f"folder is '{folder}', which is in use")):
        comparison.save(folder)
