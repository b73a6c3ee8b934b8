"""Paths of earlier versions: a yaml that names one is told today's; checkpoints and searches go on."""

import importlib
from pathlib import Path

import pytest
import torch
from hydra.utils import get_object
from omegaconf import OmegaConf
from torch import nn

from experiments.config.builders import build
from experiments.config.moved_modules import MOVED, current, with_current_targets
from experiments.trainer.trainer import Recipe, Trainer
from experiments.tuning.optuna_study import open_study

OLD = "framework.prompts.standard_library.StandardLibrary"
NEW = "experiments.corpora.standard_library.StandardLibrary"


@pytest.mark.parametrize("old", MOVED)
def test_a_module_that_moved_is_at_its_new_place_and_nowhere_else(old: str) -> None:
    importlib.import_module(MOVED[old])
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(old)


def test_a_path_that_did_not_move_stays() -> None:
    assert current(OLD) == NEW
    assert current(NEW) == NEW
    assert current("drafters.medusa.Medusa") == "drafters.medusa.Medusa"
    assert current("mydrafters.tracker.NoTracker") == "mydrafters.tracker.NoTracker"
    assert get_object(NEW).__name__ == "StandardLibrary"


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ({"_target_": OLD, "split": "train"}, "prompts.source"),
        (
            {"_target_": "framework.prompts.source_sequence.SourceSequence", "sources": [{"_target_": OLD}]},
            "prompts.source.sources[0]",
        ),
    ],
)
def test_a_yaml_that_names_an_old_path_is_told_todays(source: dict, key: str) -> None:
    cfg = OmegaConf.create({"prompts": {"source": source}})
    with pytest.raises(ValueError) as raised:
        build(cfg.prompts.source)
    assert str(raised.value) == f"{key}._target_ is {OLD!r}, which has moved; set {key}._target_={NEW}"


class Line:
    """The smallest Trainable."""

    def __init__(self) -> None:
        self.module = nn.Linear(1, 1)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.module(tokens.float()[:, :1]).square().mean()

    def evaluate(self, tokens: torch.Tensor) -> dict[str, float]:
        return {}


def test_a_checkpoint_of_before_the_move_is_taken_up(tmp_path: Path) -> None:
    recipe = Recipe(
        steps=1,
        batch=1,
        window=1,
        learning_rate=0.1,
        warmup=1,
        decay=0.5,
        optimizer="adamw",
        checkpoint_every=1,
        evaluate_every=1,
    )
    before = {"trainable": {"_target_": "framework.medusa_training.MedusaTraining", "heads": 2}}
    now = {"trainable": {"_target_": "framework.training.medusa_training.MedusaTraining", "heads": 2}}
    windows = torch.ones(1, 1, dtype=torch.int64)
    first = Trainer(Line(), recipe, file=tmp_path / "x.pt", made_of=before)
    first.run(lambda step: windows, windows)
    assert Trainer(Line(), recipe, file=tmp_path / "x.pt", made_of=now).step == 1
    with pytest.raises(ValueError, match="was begun with trainable"):
        Trainer(Line(), recipe, file=tmp_path / "x.pt", made_of=now | {"trainable": {"heads": 3}})


@pytest.mark.slow
def test_a_search_of_before_the_move_goes_on(tmp_path: Path) -> None:
    before, now = ({"prompts": [{"_target_": path}]} for path in (OLD, NEW))
    assert with_current_targets(before) == now
    open_study(tmp_path, "speed", direction="maximize", made_of=now).set_user_attr("made_of", before)
    open_study(tmp_path, "speed", direction="maximize", made_of=now)
    with pytest.raises(ValueError, match="holds a search with another prompts"):
        open_study(tmp_path, "speed", direction="maximize", made_of={"prompts": []})
