"""Tokens that are read but not learned: losses over two parts of a window's tokens add up to the loss over all."""

import importlib

import pytest
import torch

from framework.conformance.tiny_models import tiny_target
from framework.training.trainable import FILLER, complement, ids_of, is_learned
from tests.framework.training.test_batch_shares import TRAININGS, gradients, windows


@pytest.mark.parametrize("kind", TRAININGS)
def test_losses_of_complementary_parts_add_up(kind, monkeypatch):
    torch.manual_seed(0)
    trainable, tokens = TRAININGS[kind](tiny_target()), windows("llama")
    module = importlib.import_module(type(trainable).__module__)
    monkeypatch.setattr(module, "mean_over_processes", torch.ones_like)  # sums in place of means
    chosen = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    parts = [gradients(trainable, tokens.where(part, complement(tokens))) for part in (chosen, ~chosen)]
    for whole, *both in zip(gradients(trainable, tokens), *parts, strict=True):
        torch.testing.assert_close(sum(both), whole, rtol=1e-4, atol=1e-4)
        assert all(not torch.equal(part, whole) for part in both)


def test_tokens_keep_their_ids():
    tokens = torch.tensor([0, 7, FILLER, complement(0), complement(7)])
    assert ids_of(tokens).tolist() == [0, 7, 0, 0, 7]
    assert is_learned(tokens).tolist() == [True, True, False, False, False]
    assert complement(complement(tokens)).equal(tokens)


def test_states_are_those_of_the_ids():
    trainable, tokens = TRAININGS["eagle3"](tiny_target()), windows("llama")
    for got, expected in zip(trainable.states(complement(tokens)), trainable.states(tokens), strict=True):
        assert torch.equal(got, expected)
