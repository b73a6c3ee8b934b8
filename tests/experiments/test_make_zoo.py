"""Training the embedded models: a small recipe end to end, killed on the way and taken up again."""

import json
import shutil

import pytest
import torch
from omegaconf import OmegaConf

from experiments import make_zoo
from experiments.config.resolvers import ZOO
from experiments.corpora import python_corpus
from experiments.corpora.standard_library import StandardLibrary, is_held_out
from experiments.trainer import pretraining
from framework.models.pretrained import load_draft_model, load_target

RECIPE = {"batch": 2, "steps": 6, "learning_rate": 1e-3, "warmup": 2, "decay": 0.5}
SIZES = {
    "model_type": "llama",
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.fixture(scope="module")
def corpus():
    """A few files."""
    texts = [text.text for text, _ in zip(StandardLibrary(split="train", folder=None).texts(), range(12), strict=False)]
    return python_corpus.Corpus(
        standard_library=texts[:6], packages=texts[6:], licences={"standard library": "PSF-2.0"}
    )


@pytest.fixture(autouse=True)
def reads_the_corpus(corpus, monkeypatch):
    monkeypatch.setattr(make_zoo, "read_python_corpus", lambda: corpus)


def small(folder):
    """A config of seconds."""
    config = OmegaConf.create(
        {
            "folder": str(folder / "zoo"), "workdir": str(folder / "work"), "vocabulary": 400, "threads": 1,
            "device": "cpu", "compile": False, "seed": 0, "checkpoint_every": 2, "evaluate_every": 6,
            "data": {"window": 32, "standard_library_share": 0.5},
            "target": {"config": SIZES | {"hidden_size": 32}, **RECIPE},
            "drafters": {
                name: {"config": SIZES | {"hidden_size": hidden}, **RECIPE}
                for name, hidden in {"drafter_large": 24, "drafter": 16}.items()
            },
            "longer": {
                "data": {"window": 64},
                "rope_parameters": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32,
                                    "rope_theta": 10000.0},
                "target": {"steps": 4},
            },
        }
    )  # fmt: skip
    OmegaConf.set_struct(config, True)  # as Hydra hands it over
    return config


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """Where the small recipe was trained without a break; nobody writes there."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_zoo, "read_python_corpus", lambda: corpus)
        make_zoo.train_zoo(small(folder))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", [4, 16], ids=["short texts", "longer texts"])
def test_a_killed_training_resumes_to_the_same_models(trained, tmp_path, monkeypatch, kill_at):
    """Killed after the checkpoint of step 2, in the middle of the first drafter."""
    again = small(tmp_path)
    calls, distillation = [], pretraining.distillation

    def killed(*arguments):
        calls.append(1)
        if len(calls) == kill_at:
            raise KeyboardInterrupt
        return distillation(*arguments)

    monkeypatch.setattr(pretraining, "distillation", killed)
    with pytest.raises(KeyboardInterrupt):
        make_zoo.train_zoo(again)
    monkeypatch.setattr(pretraining, "distillation", distillation)
    make_zoo.train_zoo(again)
    for name in ("target", "drafter_large", "drafter"):
        weights, resumed = load(trained / "zoo" / name), load(tmp_path / "zoo" / name)
        assert weights.keys() == resumed.keys()
        for key in weights:
            assert torch.equal(weights[key], resumed[key]), key


@pytest.mark.parametrize(
    "key, value", [("target.config.hidden_size", 64), ("longer.rope_parameters.factor", 4.0), ("target.steps", 8)]
)
def test_a_checkpoint_of_another_recipe_is_refused(trained, tmp_path, key, value):
    """More steps of the target would make it another teacher than the drafters had."""
    other = small(shutil.copytree(trained, tmp_path / "copy"))
    OmegaConf.update(other, key, value)
    with pytest.raises(ValueError, match="give another folder"):
        make_zoo.train_zoo(other)


@pytest.mark.slow
def test_without_longer_texts_the_models_are_those_of_short_ones(trained, tmp_path):
    only_short = small(tmp_path)
    only_short.longer = None
    make_zoo.train_zoo(only_short)
    for name in ("target", "drafter"):
        weights, short = load(tmp_path / "zoo" / name), load(trained / "work" / "short" / name)
        assert all(torch.equal(weights[key], short[key]) for key in weights)


def load(folder) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_the_finished_folder_loads_and_has_provenance(trained):
    zoo = trained / "zoo"
    target = load_target(path=str(zoo / "target"), dtype="float32", device="cpu", attention="sdpa", context=None)
    drafter = load_draft_model(path=str(zoo / "drafter"), dtype="float32", attention="sdpa")(target)
    assert target.vocabulary_size == drafter.vocabulary_size == 400
    text = "def f(x):\n\treturn 'é' + x  # 漢字\n"
    assert target.tokenizer.decode(target.tokenizer(text)["input_ids"]) == text
    facts = json.loads((zoo / "provenance.json").read_text())
    assert facts["short"]["target"]["steps"] == 6 and facts["short"]["target"]["tokens"] == 6 * 2 * 32
    assert facts["target"]["steps"] == 4 and facts["target"]["tokens"] == 4 * 2 * 64
    assert target.model.model.config.rope_parameters["rope_type"] == "yarn"
    assert 0 < facts["drafter"]["held_out_alpha"] <= 1 and facts["corpus"]["fingerprint"]
    assert load(zoo / "target")["model.norm.weight"].dtype == torch.bfloat16


@pytest.mark.slow
def test_nothing_held_out_is_trained_on():
    """No file of the corpus repeats held-out text; the shipped models' record counts what was dropped for it."""
    held_out = {text.name for text in StandardLibrary(split="held_out", folder=None).texts()}
    trained = {text.name for text in StandardLibrary(split="train", folder=None).texts()}
    assert held_out and not held_out & trained
    assert all(is_held_out(name) for name in held_out)
    assert json.loads((ZOO / "provenance.json").read_text())["corpus"]["copies_of_held_out_text_dropped"] > 0


@pytest.mark.slow
def test_the_corpus_drops_copies_of_held_out_files(monkeypatch):
    copy = next(iter(StandardLibrary(split="held_out", folder=None).texts())).text
    original = StandardLibrary.texts

    def texts(self):
        found = list(original(self))[:4]
        if self.split == "train":
            found[0] = type(found[0])(name="copy.py", category="modules", text="# vendored\n" + copy)
        return iter(found)

    monkeypatch.setattr(StandardLibrary, "texts", texts)
    monkeypatch.setattr(python_corpus, "PACKAGES", ())
    corpus = python_corpus.read_python_corpus()
    assert corpus.num_copies_dropped >= 1
    assert not any(copy in text for text in corpus.standard_library)
