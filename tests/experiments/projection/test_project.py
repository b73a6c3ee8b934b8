"""The command: its files, and mistakes that end in one line."""

import csv
import json
import sys

import pytest

from experiments import project
from experiments.results.record import Record


def run(monkeypatch, folder, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["project", *arguments, f"hydra.run.dir={folder}"])
    project.main()


SMALL = ["hardware=[h100_sxm,l4]", "target_models=[llama_3_2_1b]", "draft_model=qwen3_0_6b"]


def rows(path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_projection_is_printed_written_and_drawn(tmp_path, monkeypatch, capsys):
    run(monkeypatch, tmp_path, *SMALL, "batch_sizes=[1,100000]", "contexts=[512]", "gammas=[0,4]", "alpha=0.9")
    found = rows(tmp_path / "projection.csv")
    assert [(row["hardware"], row["batch"]) for row in found] == [
        ("H100 SXM", "1"), ("H100 SXM", "100000"), ("L4", "1"), ("L4", "100000"),
    ]  # fmt: skip
    assert [row["fits"] for row in found] == ["True", "False"] * 2
    assert float(found[0]["speedup"]) > 1 == float(found[1]["speedup"]) == float(found[1]["speedup_without_overlap"])
    assert float(found[0]["speedup_without_overlap"]) <= float(found[0]["speedup"])
    assert found[1]["bound"] == "KV cache"
    assert len(rows(tmp_path / "break_even.csv")) == 2 and (tmp_path / "break_even.png").stat().st_size > 10_000
    printed, page = capsys.readouterr().out, (tmp_path / "projection.md").read_text()
    for text in (printed, page):
        assert "no room" in text and "Projected, not measured" in " ".join(text.split()) and "unverified" in text


@pytest.mark.slow
def test_records_take_the_place_of_alpha(tmp_path, monkeypatch, capsys):
    for drafter, c in (("prompt_lookup", 0.01), ("layer_skip", 0.4)):
        counts = {"rounds_by_offered_and_accepted": [[2, 0], [1, 7]]}
        metrics = {"alpha/overlap": 0.8, "c": c, "nodes/mean": 0.8, "gamma/mean": 0.8}
        record = Record(name=drafter, point={"drafter": drafter, "temperature": 0.0}, counts=counts, metrics=metrics)
        (tmp_path / drafter).mkdir()
        (tmp_path / drafter / "record.json").write_text(json.dumps(record.to_json()))
    run(monkeypatch, tmp_path / "out", *SMALL, f"records={tmp_path}", "batch_sizes=[1]", "contexts=[1]")
    assert "left out: layer_skip, T = 0 drafts with parts of its own" in " ".join(capsys.readouterr().err.split())
    (one, other) = rows(tmp_path / "out" / "projection.csv")
    assert (one["acceptance"], one["gamma"], one["d"], one["draft_model"]) == ("prompt_lookup, T = 0", "1", "0.0", "")
    assert float(one["tau"]) == pytest.approx(1.7) and float(other["tau"]) == pytest.approx(1.7)


def test_recorded_passes_are_compared_with_the_roofline(tmp_path, monkeypatch, capsys):
    run(monkeypatch, tmp_path, "validate=recorded")
    assert "t(17)" in capsys.readouterr().out
    found = {(row["model"], row["pass"]): row for row in rows(tmp_path / "validation.csv")}
    assert found["148M", "t(17)"]["measured ms"] == "38.89" and found["148M", "t(1)"]["error"].endswith("%")


@pytest.mark.parametrize(("wrong", "says"), [
    ("hardware=[h100]", "hardware is 'h100'; did you mean h100_sxm? allowed: a100_80gb_sxm, "),
    ("hardware=[]", "hardware is []; allowed: a list of at least one name"),
    ("hardware=[missing.yaml]", "hardware is 'missing.yaml', no such file"),
    ("dtype=float16", "dtype is 'float16'; allowed: float32, bfloat16, float8"),
    ("dtype=float8", "dtype is 'float8'; allowed: float32, bfloat16 on A100"),
    ("target_models=[llama_3_1_9b]", "target_models is 'llama_3_1_9b'; did you mean llama_3_1_8b?"),
    ("draft_model=3", "draft_model is 3; allowed: llama_3_1_70b, "),
    ("draft_model=/nowhere", "or a model's folder"),
    ("alpha=1.5", "alpha is 1.5; allowed: a number from 0 to 1"),
    ("reached.arithmetic=2", "reached.arithmetic is 2; allowed: a number above 0, at most 1"),
    ("batch_sizes=[0]", "batch_sizes is 0; allowed: a whole number from 1"),
    ("contexts=[]", "contexts is []; allowed: a list of whole numbers >= 1"),
    ("gammas=[-1]", "gammas is -1; allowed: a whole number from 0 to 1000"),
    ("weight_bits=0", "weight_bits is 0; allowed: a whole number from 1 to 32, or null"),
    ("validate=no", "validate is 'no'; allowed: null, recorded, here"),
    ("records=nowhere", "records is 'nowhere': no record.json there"),
    ("compile=1", "compile is 1; allowed: true or false"),
    ("hardwares=[l4]", "hardwares is no option of project; did you mean hardware?"),
])  # fmt: skip
def test_a_mistake_ends_in_one_line(tmp_path, monkeypatch, capsys, wrong, says):
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path / "out", wrong)
    error = capsys.readouterr().err
    assert says in " ".join(error.split()) and len(error.strip().splitlines()) == 1, error
