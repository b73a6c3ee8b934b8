"""What of the lost alpha is recovered, from records of a frozen drafter and of the same one learning."""

import sys

import pytest

from experiments import measure
from experiments.reporting.plots.domain_switch import courses, draw, table
from experiments.results.record import Record
from framework.conformance.tiny_models import save_tiny
from framework.prompts.repeated import Repeated
from framework.prompts.source_sequence import SourceSequence


def record(drafter, accepted, seed=0, *, learns=False, **config):
    """Ten nodes are tested in every prompt."""
    return Record.from_json(
        {
            "point": {"drafter": drafter, "temperature": 0},
            "config": {
                "seed": seed,
                "drafter": {"steps": 8 * learns},
                "prompts": {"source": {"counts": [4, 60], "seed": seed}},
            }
            | config,
            "metrics": {"tokens_equal_baseline": True},
            "stages": {"learn": 1.5},
            "seconds": 6.0,
            "prompts": [{"accepted": each, "tested": 10} for each in accepted],
        }
    )


def test_recovered_is_a_share_of_what_the_frozen_one_lost():
    frozen = record("small", [8] * 4 + [9] * 30 + [4] * 30)
    online = record("small", [9] * 4 + [1] * 30 + [7] * 30, learns=True)
    alone = record("other", [5] * 64, learns=True)
    (found,) = courses([online, alone, frozen])
    assert (found.before, found.frozen_late, found.online_late) == pytest.approx((0.8, 0.4, 0.7))
    assert found.recovered == pytest.approx(0.3 / 0.4)
    assert (found.learning_seconds, found.decoding_seconds, found.unequal) == (1.5, 6.0, False)


def test_seeds_are_rows_with_a_mean_and_unequal_tokens_are_seen():
    records = []
    for seed, late in ((0, 6), (1, 8)):
        records.append(record("small", [8] * 4 + [4] * 60, seed))
        records.append(record("small", [8] * 4 + [late] * 60, seed, learns=True))
    records[-1].metrics["tokens_equal_baseline"] = False
    cells = table(courses(records))
    assert [row[6] for row in cells[1:]] == ["50 %", "100 %", "75 %"]
    assert [row[7] for row in cells[1:]] == ["yes", "NO", ""]
    assert len(draw(courses(records)).axes) == 1


def test_a_frozen_drafter_that_decoded_otherwise_is_no_clone():
    """Another gamma, another target: each learning one has its own, and no mean is taken over both."""
    records = []
    for late, config in ((4, {"gamma": 2}), (6, {"gamma": 5}), (5, {"gamma": 2, "target": "other"})):
        records.append(record("small", [8] * 4 + [late] * 60, **config, threads=1))
        records.append(record("small", [8] * 4 + [late + 1] * 60, **config, learns=True))
    alone = record("small", [8] * 4 + [9] * 60, gamma=3, learns=True)
    found = courses([*records, alone])
    assert [course.frozen_late for course in found] == pytest.approx([0.4, 0.6, 0.5])
    assert [row[2] for row in table(found)[1:]] == ["0", "mean"] * 3


def test_where_nothing_was_lost_nothing_is_recovered():
    (found,) = courses([record("small", [5] * 64), record("small", [9] * 64, learns=True)])
    assert found.recovered is None and table([found])[1][6] == "–"


@pytest.mark.slow
def test_the_study_ends_with_its_table_and_picture(tmp_path, monkeypatch, capfd):
    """Tiny models and short texts in the place of its own; frozen and learning, with one seed."""
    for seed, name in enumerate(("target", "drafter"), start=1):
        save_tiny(tmp_path / name, seed=seed)
    sources = [f"{{_target_:framework.prompts.repeated.Repeated,text:{text},times:40}}" for text in ("ab", "ca")]
    arguments = [
        "study=domain_switch", "target=pretrained", f"target.path={tmp_path}/target", "target.dtype=float32",
        "device=cpu", f"drafter.drafter.model.path={tmp_path}/drafter", f"prompts.source.sources=[{','.join(sources)}]",
        "prompts.source.counts=[4,32]", "prompts.source.joined=[1,1]", "max_new_tokens=6", "drafter.update_interval=32",
        "drafter.window=16", "seed=0", "tracker=jsonl", f"hydra.sweep.dir={tmp_path}/sweep",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["measure", "-m", *arguments])
    measure.main()
    (heading, _, row, mean) = (tmp_path / "sweep" / "over_time.md").read_text().splitlines()[:4]
    assert "recovered" in heading and row.split(" | ")[2] == "0" and mean.split(" | ")[2] == "mean"
    assert row.split(" | ")[7] == "yes" and float(row.split(" | ")[8]) > 0  # greedy tokens are plain decoding's
    assert (tmp_path / "sweep" / "over_time.png").read_bytes().startswith(b"\x89PNG")


def test_sources_come_in_turn():
    sources = [Repeated(text="a", times=3), Repeated(text="b", times=3)]
    texts = [text.text for text in SourceSequence(sources=sources, counts=[2, 1], joined=[1, 3], seed=0).texts()]
    assert texts == ["a", "a", "b\nb\nb"]
    names = {
        tuple(text.name for text in SourceSequence(sources=sources, counts=[3, 1], joined=[1, 1], seed=seed).texts())
        for seed in range(9)
    }
    assert len(names) > 1
    with pytest.raises(ValueError, match=r"counts .* allowed: at most 1 of source 1"):
        list(SourceSequence(sources=sources, counts=[1, 2], joined=[1, 2], seed=0).texts())
    with pytest.raises(ValueError, match=r"counts is \[1\]; allowed: a whole number >= 1 for each"):
        SourceSequence(sources=sources, counts=[1], joined=[1, 1], seed=0)
