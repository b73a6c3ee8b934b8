"""What changed between two sets of records, and how sure that is: against formulas and records that are known."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.results.record import Record
from experiments.results.record_diff import Change, changes_cells, diff_notes, diff_records, difference_text
from tests.experiments.reporting.test_comparison_table import make_record
from tests.support.page_records import prompts


def measured(rows: list[dict], **changes: object) -> Record:
    """A record whose metrics follow from its prompts."""
    alpha = sum(row["accepted"] for row in rows) / sum(row["tested"] for row in rows)
    own, plain = (sum(row[key][0] for row in rows) for key in ("decode_seconds", "baseline_decode_seconds"))
    return replace(make_record("ngram", 0, plain / own, **{"alpha/empirical": alpha, **changes}), prompts=rows)


def only_pair(before: Record, after: Record):
    (pair,) = diff_records([before], [after]).pairs
    return pair


def many(seed: int, rate: float, number: int = 200) -> list[dict]:
    dice = np.random.default_rng(seed)
    rows = prompts(dice.binomial(40, rate, number).tolist())
    for row, noise in zip(rows, dice.normal(0, 0.05, number), strict=True):
        row["decode_seconds"] = [1 + noise, 1 + noise]
    return rows


def test_nothing_changed_is_an_interval_of_nothing() -> None:
    pair = only_pair(measured(many(0, 0.5)), measured(many(0, 0.5)))
    for change in (pair.speedup, pair.alpha):
        assert (change.difference, change.low, change.high) == (0, 0, 0) and not change.is_clear


def test_prompts_that_were_decoded_twice_are_drawn_together() -> None:
    """Every prompt a tenth faster: so is the whole, whichever prompts are drawn."""
    before, after = many(0, 0.5), many(0, 0.5)
    for row in after:
        row["decode_seconds"] = [each / 1.1 for each in row["decode_seconds"]]
    pair = only_pair(measured(before), measured(after))
    assert pair.speedup.is_clear and pair.speedup.difference == pytest.approx(0.1 * pair.speedup.before)
    # The difference is a tenth of the earlier speedup, and so is its interval of that one's.
    spread = np.std([1 / row["decode_seconds"][0] for row in before]) / np.sqrt(len(before))
    assert pair.speedup.high - pair.speedup.low == pytest.approx(0.1 * 1.5 * 2 * 1.96 * spread, rel=0.15)
    for row in after:  # of other prompts, the interval is of two means
        row["name"] += " of another set"
    apart = only_pair(measured(before), measured(after)).speedup
    assert apart.high - apart.low > 8 * (pair.speedup.high - pair.speedup.low)


def test_the_interval_of_alpha_is_that_of_a_mean() -> None:
    """Tested alike everywhere, alpha is a mean over prompts; the percentile interval then is the normal one, nearly."""
    before, after = many(1, 0.4), many(2, 0.5)
    for row in after:
        row["name"] += " of another set"
    change = only_pair(measured(before), measured(after)).alpha
    rates = [np.array([row["accepted"] / row["tested"] for row in rows]) for rows in (before, after)]
    half = 1.96 * np.sqrt(sum(each.var() / len(each) for each in rates))
    assert change.low == pytest.approx(change.difference - half, abs=0.1 * half)
    assert change.high == pytest.approx(change.difference + half, abs=0.1 * half)


def test_rows_of_a_batch_are_drawn_together() -> None:
    """Two batches of alike rows: of two units there are three draws, so the ends are those of the single batches."""
    before, after = prompts([10, 10, 30, 30]), prompts([20, 20, 20, 20])
    change = only_pair(measured(before, batch_size=2), measured(after, batch_size=2)).alpha
    assert (change.low, change.high) == pytest.approx((-0.25, 0.25))


def test_records_that_do_not_tell_of_their_prompts_have_no_interval() -> None:
    old, alone = make_record("ngram", 0, 1.2), measured(prompts([20]))
    for before in (old, alone):
        change = only_pair(before, measured(prompts([20, 30]))).speedup
        assert change.difference is not None and change.low is None and not change.is_clear
    assert only_pair(make_record("ngram", 0, None), old).speedup.difference is None


def test_points_are_paired_by_settings_then_by_name_and_the_others_are_told() -> None:
    before = [make_record("ngram", 0, 1.1), make_record("medusa", 0, 1.2), make_record("uniform_random", 0, 0.7)]
    after = [
        make_record("medusa", 0, 1.3, target="other"),
        make_record("ngram", 0, 1.4),
        make_record("layer_skip", 0, 1),
    ]
    found = diff_records(before, after)
    pairs = {pair.label: (pair.before.point["drafter"], pair.speedup.difference) for pair in found.pairs}
    assert pairs == {"medusa": ("medusa", pytest.approx(0.1)), "ngram": ("ngram", pytest.approx(0.3))}
    assert found.only_before == ["uniform_random-T0-g2"] and found.only_after == ["layer_skip-T0-g2"]
    heading, *rows = changes_cells(found)
    assert all(len(row) == len(heading) for row in rows) and rows[1][2:5] == ["1.10", "1.40", "+0.30"]


def test_other_prompts_and_lengths_are_warned_of() -> None:
    def notes(before: Record, after: Record) -> list[str]:
        return [note for note in diff_notes(diff_records([before], [after])) if note.startswith("‼")]

    usual = measured(prompts([20, 30]))
    longer = [{**row, "prompt_tokens": 21} for row in usual.prompts]
    assert notes(usual, usual) == [] and notes(make_record("ngram", 0, 1.2), usual) == []
    for other in (prompts([20, 30, 25]), longer):
        (note,) = notes(usual, measured(other))
        assert note.startswith("‼ PROMPTS DIFFER") and note.endswith(": ngram")
    short, long = (replace(usual, point={**usual.point, "max_new_tokens": number}) for number in (32, 96))
    (note,) = notes(short, long)
    assert note.startswith("‼ LENGTHS DIFFER") and note.endswith(": ngram")


def test_a_clear_difference_has_a_star() -> None:
    assert difference_text(Change(1.0, 1.25, 0.125, 0.5), 2) == "+0.25 (+0.12 to +0.50) *"
    assert difference_text(Change(1.0, 0.5, -1.0, 0.25), 2) == "-0.50 (-1.00 to +0.25)"
    assert difference_text(Change(None, 0.5), 2) == "–"
