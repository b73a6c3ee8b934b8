"""Trainings whose batches are shared by processes: their mean gradient is that of the whole batch."""

import importlib

import pytest
import torch
from torch import Tensor

from framework.conformance.tiny_models import save_tiny, tiny_target
from framework.models.pretrained import load_draft_model
from framework.training.acceptance_training import AcceptanceTraining
from framework.training.batch_shares import uniforms_per_window
from framework.training.distillation import Distillation
from framework.training.eagle_training import EagleTraining
from framework.training.medusa_training import MedusaTraining
from framework.training.trainable import FILLER, Trainable
from tests.framework.training.test_distillation import CONFIG

EAGLE = {"hidden_layers": None, "draft_vocabulary": None, "train_output": True, "norm_before_residual": True,
         "mask_token": None, "depths": 3, "discount": 0.8, "token_weight": 1.0, "noise": 0.1}  # fmt: skip
OF_EAGLE3 = {"kind": "eagle3", "feature_weight": 0, "hidden_layers": [1, 2]}
TRAININGS = {
    "medusa": lambda target: MedusaTraining(target, num_heads=3, output="mapped", discount=0.8, ranks=2),
    "dart": lambda target: EagleTraining(target, **(EAGLE | OF_EAGLE3 | {"mask_token": 1})),
    "eagle": lambda target: EagleTraining(target, kind="eagle", feature_weight=1.0, **EAGLE),
    "eagle3": lambda target: EagleTraining(target, **(EAGLE | OF_EAGLE3)),
    "distillation": lambda target: Distillation(target, loss="forward_kl", path=None, config=CONFIG),
}


def windows(family: str) -> Tensor:
    """[4, 14] windows, or [4, 2, 14] pairs whose answers have different lengths."""
    dice = torch.Generator().manual_seed(0)
    if family == "llama":
        return torch.randint(1, 50, (4, 14), generator=dice)
    pairs = torch.randint(1, 50, (4, 2, 14), generator=dice)
    for pair, length in zip(pairs, (14, 5, 9, 7), strict=True):
        pair[1, length:] = FILLER
    return pairs


def gradients(trainable: Trainable, tokens: Tensor) -> list[Tensor]:
    trainable.module.zero_grad()
    trainable.loss(tokens).backward()
    return [each.grad.clone() for each in trainable.module.parameters() if each.grad is not None]


def shared_gradients(trainable: Trainable, tokens: Tensor, processes: int, monkeypatch) -> list[Tensor]:
    """Mean gradients of processes, one after another; a first turn counts what each holds."""
    module = importlib.import_module(type(trainable).__module__)
    counted: list[list[Tensor]] = []

    def count(own: Tensor) -> Tensor:
        counted[-1].append(own)
        return own

    monkeypatch.setattr(module, "mean_over_processes", count)
    for share in tokens.chunk(processes):
        counted.append([])
        trainable.loss(share)
    means = [sum(each) / processes for each in zip(*counted, strict=True)]
    found = []
    for share in tokens.chunk(processes):
        told = iter(means)
        monkeypatch.setattr(module, "mean_over_processes", lambda own, told=told: next(told))
        found.append(gradients(trainable, share))
    monkeypatch.undo()
    return [torch.stack(each).mean(0) for each in zip(*found, strict=True)]


@pytest.mark.parametrize("family", ["t5", pytest.param("llama", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", TRAININGS)
def test_mean_gradients_of_shares_are_those_of_the_batch(kind, family, monkeypatch):
    torch.manual_seed(0)
    trainable, tokens = TRAININGS[kind](tiny_target(family)), windows(family)
    expected = gradients(trainable, tokens)
    for got, whole in zip(shared_gradients(trainable, tokens, 4, monkeypatch), expected, strict=True):
        torch.testing.assert_close(got, whole, rtol=1e-4, atol=1e-6)
    assert max(float(each.abs().max()) for each in expected) > 1e-3


def test_so_are_those_of_an_acceptance_head(tmp_path, monkeypatch):
    save_tiny(tmp_path, seed=3)
    torch.manual_seed(0)
    model = load_draft_model(path=str(tmp_path), dtype="float32", attention="sdpa")
    options = {"rejection_weight": 6, "width": 8, "num_blocks": 2, "hidden_state": True}
    trainable, tokens = AcceptanceTraining(tiny_target(), model=model, **options), windows("llama")
    expected = gradients(trainable, tokens)
    for got, whole in zip(shared_gradients(trainable, tokens, 4, monkeypatch), expected, strict=True):
        torch.testing.assert_close(got, whole, rtol=1e-4, atol=1e-6)


def test_uniforms_of_a_window_are_its_own():
    tokens = windows("llama")
    drawn = uniforms_per_window(tokens, 1000, 2)
    assert torch.equal(uniforms_per_window(tokens[2:], 1000, 2), drawn[2:]) and not torch.equal(drawn[0], drawn[1])
    assert drawn.shape == (4, 1000, 2) and 0 <= drawn.min() < 0.01 and 0.99 < drawn.max() < 1
