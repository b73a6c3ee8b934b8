"""A comparison on a user's own models: it runs with what fits them, names the rest, and names the models."""

import re
import sys
from pathlib import Path

import pytest

from experiments import compare
from experiments.measurement import round_timing
from experiments.results.cache_folder import FOLDER
from experiments.results.records import load_records
from experiments.tracking.wandb_reading import read_offline_run
from framework.conformance.tiny_models import save_tiny
from tests.support.tiny_pair import tiny_pair

FITTING = ("ngram", "prompt_lookup", "corpus_unigram", "uniform_random")  # any target
QUICK = ["temperatures=[0]", "max_new_tokens=6", "repeats=1", "hugging_face=false", "gamma=4"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Folder of a tiny Qwen3 pair, and overrides that use its target, prompts and a small corpus."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "argparse.py").write_text("Ab ca bab. " * 300)
    corpora = [f"drafters.{name}.corpus.folder={folder}" for name in ("ngram", "corpus_unigram")]
    return folder, [*tiny_pair(folder, "ab ab ab", "cd", family="qwen3"), *corpora, *QUICK]


def run(*arguments: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["compare", *arguments])
        compare.main()


def refused(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Message of a comparison that is refused."""
    with pytest.raises(SystemExit):
        run(*arguments)
    (line,) = [each for each in capfd.readouterr().err.splitlines() if "rror: " in each]
    return line


@pytest.mark.slow
def test_what_fits_is_measured_and_the_rest_is_named(
    pair: tuple[Path, list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, overrides = pair
    run(*overrides, f"drafter.model.path={folder}/drafter", f"hydra.run.dir={tmp_path / 'first'}")
    out = capfd.readouterr().out
    records = {str(record.point["drafter"]): record for record in load_records(tmp_path / "first")}
    assert set(records) == {"small_transformer", "ngram", "prompt_lookup", "corpus_unigram", "uniform_random"}
    (medusa,) = [line for line in out.splitlines() if line.startswith("medusa is left out")]
    target = f"target=pretrained target.path={folder}/target target.dtype=float32"
    assert f"python -m experiments.train drafter=medusa {target}, then set drafters.medusa.path=PATH" in medusa
    (layer_skip,) = [line for line in out.splitlines() if line.startswith("layer_skip is left out")]
    assert f"python -m experiments.search_layers {target}, then set drafters.layer_skip.layers=PATH" in layer_skip

    models = records["small_transformer"].models
    name = folder.name
    size = models["target"][0]["parameters"]
    assert models == {
        "target": [{"name": f"{name}/target", "parameters": size, "dtype": "float32"}],
        "drafter": [{"name": f"{name}/drafter", "parameters": size, "dtype": "float32"}],
    }
    # Two blocks of width 32: attention with 4 query and 2 key heads of 8, an MLP of 48, and norms; and two embeddings.
    block = 32 * 32 * 2 + 32 * 16 * 2 + 2 * 8 + 3 * 32 * 48 + 2 * 32
    assert size == 2 * 50 * 32 + 2 * block + 32
    words = f"small_transformer {name}/drafter ({size / 1000:.0f}k, float32)"
    markdown = (tmp_path / "first" / "table.md").read_text()
    for text in (out, markdown, (tmp_path / "first" / "report.html").read_text()):
        assert f"{name}/target ({size / 1000:.0f}k, float32)" in text and words in text
    assert records["ngram"].models["drafter"] == []

    assert "sglang server" not in out
    run(f"records={tmp_path / 'first'}", "accepted_lengths=true", f"hydra.run.dir={tmp_path / 'again'}")
    (line,) = [each for each in capfd.readouterr().out.partition("sglang server")[2].splitlines() if "ngram" in each]
    shown = [f"{records['ngram'].metrics[f'accepted_length/{name}']:.3f}" for name in ("vllm", "sglang")]
    assert re.findall(r"\d\.\d{3}", line)[:2] == shown

    runs = [read_offline_run(each) for each in (tmp_path / "first").glob("wandb/offline-run-*")]
    assert {each["group"] for each in runs} == {f"compare {name}/target first"}
    (its,) = [each for each in runs if each["config"].get("drafter") == "small_transformer"]
    assert its["name"] == f"small_transformer-T0-g4 ({name}/target, {name}/drafter)"
    assert f"small_transformer {its['config']['drafter_model']}" == words and its["config"]["study"] == "compare"


@pytest.mark.slow
def test_what_is_asked_for_must_fit(
    pair: tuple[Path, list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, overrides = pair
    tiny, where = [each for each in overrides if not each.startswith("drafters")], f"hydra.run.dir={tmp_path / 'run'}"
    named = refused(capfd, *tiny, "drafters=[prompt_lookup,medusa]", where)
    assert "drafters.medusa.path is " in named and "made for the target with the fingerprint" in named
    none = refused(capfd, *tiny, *(f"~drafter@drafters.{name}" for name in FITTING), where)
    assert "drafters has none that fits the target; small_transformer is left out: " in none
    assert "set drafters.small_transformer.model.path=PATH, or drafter.model.path=PATH for all drafters" in none
    other = save_tiny(tmp_path / "other", vocabulary=40)
    given = refused(capfd, *overrides, f"drafter.model.path={other}", where)
    assert f"drafters.small_transformer.model.path is '{other}', whose tokenizer differs" in given
    monkeypatch.setattr("experiments.config.builders.build_target", lambda cfg: pytest.fail("the target was loaded"))
    missing = refused(capfd, *overrides, "drafter.model.path=no/such/folder", where)
    assert "drafters.small_transformer.model.path is 'no/such/folder'" in missing
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_gamma_is_chosen_by_a_profile_that_the_record_holds(
    pair: tuple[Path, list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, overrides = pair
    tiny = [each for each in overrides if not each.startswith(("drafters", "gamma", "temperatures", "max_new_tokens"))]
    tiny += ["drafters=[small_transformer]", f"drafter.model.path={folder}/drafter", "tracker=jsonl"]
    tiny += ["temperatures=[0.8]", "max_new_tokens=12"]
    run(*tiny, f"hydra.run.dir={tmp_path / 'first'}")
    out = capfd.readouterr().out
    (first,) = load_records(tmp_path / "first")
    assert first.point["gamma_policy"] == "auto" and first.config["gamma"]["candidates"] == [0, 1, 2, 4, 8]
    assert first.round_profile["of"]["batch_size"] == 1 and list(first.round_profile["round_ms"]) == list("01248")
    assert sum(first.rounds_histogram["gamma"]) == sum(first.counts["passes_by_nodes"]) > 0
    assert f"{first.metrics['gamma/chosen']:.1f} auto" in out
    assert "share of rounds by chosen γ: " in out or "nothing is drafted, since no draft pays" in out

    (file,) = (tmp_path / "first").glob("*/record.json")
    monkeypatch.setattr(round_timing, "measure_rounds", lambda *_: pytest.fail("measured in place of the given file"))
    monkeypatch.setenv(FOLDER, str(tmp_path / "empty"))
    run(*tiny, f"gamma.profile={file}", f"hydra.run.dir={tmp_path / 'again'}")
    (again,) = load_records(tmp_path / "again")
    assert again.round_profile == first.round_profile | {"of": None}
    assert again.rounds_histogram == first.rounds_histogram
    assert [row["text"] for row in again.prompts] == [row["text"] for row in first.prompts]
