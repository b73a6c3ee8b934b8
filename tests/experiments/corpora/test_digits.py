"""Images as tokens: what a digit is as a text, and models, decoding and picture from one end to the other."""

import sys

import numpy as np
import pytest

from experiments import draw_digits, make_language_models
from experiments.corpora.digits import Digits, levels_of

sklearn_datasets = pytest.importorskip("sklearn.datasets")


def test_a_text_is_its_image():
    data = sklearn_datasets.load_digits()
    texts = {split: list(Digits(split=split, rows=8).texts()) for split in ("held_out", "train")}
    assert len(texts["held_out"]) == 257 and len(texts["train"]) == 1540
    for text in texts["held_out"][:20] + texts["train"][:20]:
        number = int(text.name.split(":")[1])
        assert levels_of(text.text) == data.images[number].flatten().tolist()
        assert text.text[0] == text.category == str(data.target[number])
    assert {text.category for text in texts["held_out"][:30]} == set("0123456789")


@pytest.mark.parametrize("rows", [0, 3, 8])
def test_a_prompt_is_the_class_and_the_first_rows(rows):
    whole, part = (next(iter(Digits(split="held_out", rows=each).texts())) for each in (8, rows))
    assert part.text == whole.text[: 1 + 8 * rows] and part.name == whole.name


@pytest.mark.parametrize("text", ["", "3", "3" + "a" * 63, "3" + "a" * 65, "x" + "a" * 64, "3" + "a" * 63 + "z"])
def test_what_is_no_image_is_none(text):
    assert levels_of(text) is None


@pytest.mark.parametrize("options", [{"split": "test", "rows": 1}, {"split": "train", "rows": 9}])
def test_a_wrong_setting_is_refused(options):
    with pytest.raises(ValueError, match=r"^(split|rows) .*; allowed: "):
        Digits(**options)


def test_without_the_library_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"prompts of digits need scikit-learn; pip install -e '\.\[images\]'"):
        Digits(split="train", rows=8)


@pytest.mark.slow
def test_models_are_made_and_a_picture_is_drawn(tmp_path, monkeypatch, capsys):
    models = tmp_path / "models"
    sizes = ["n_embd=8", "n_inner=8", "n_layer=1", "n_head=1"]
    options = ["steps=2", "batch=2", *(f"config.{size}" for size in sizes)]
    tiny = [f"{name}.{option}" for name in ("target", "drafters.drafter") for option in options]
    monkeypatch.setattr(sys, "argv", ["make_language_models", "--config-name=digits", "device=cpu", "threads=1", *tiny,
                                      f"folder={models}", f"workdir={tmp_path / 'work'}"])  # fmt: skip
    make_language_models.main()
    said = capsys.readouterr().out.splitlines()[-1].removeprefix("Next: python -m experiments.").split()
    assert said == ["draw_digits", f"target.path={models / 'target'}", f"drafter.model.path={models / 'drafter'}"]
    picture = f"hydra.run.dir={tmp_path / 'picture'}"
    monkeypatch.setattr(sys, "argv", [*said, "prompts.count=4", "device=cpu", picture])
    draw_digits.main()
    assert (tmp_path / "picture" / "digits.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "alpha/overlap" in printed and "of 4 plain" in printed


def test_pixels_lie_row_by_row():
    image = draw_digits._pixels("3" + "abcdefghijklmnopq"[:16] + "a" * 48)
    assert np.array_equal(image[0], range(8)) and np.array_equal(image[1], range(8, 16)) and not image[2:].any()
