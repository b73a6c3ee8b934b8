"""Training without products in bfloat16."""

import pytest
import torch

from experiments.trainer import precision
from experiments.trainer.precision import Float32Muon, autocast


def test_muon_in_float32_is_torchs_up_to_the_rounding_of_bfloat16() -> None:
    torch.manual_seed(0)
    shapes = [(8, 8), (6, 12), (12, 6)]
    start = [torch.randn(shape) for shape in shapes]
    ours, theirs = ([torch.nn.Parameter(each.clone()) for each in start] for _ in range(2))
    settings = {"lr": 0.1, "weight_decay": 0.05, "adjust_lr_fn": "match_rms_adamw"}
    optimizers = Float32Muon(ours, **settings), torch.optim.Muon(theirs, **settings)
    for _ in range(3):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = other.grad = torch.randn(mine.shape)
        for optimizer in optimizers:
            optimizer.step()
    for mine, other, first in zip(ours, theirs, start, strict=True):
        moved = (other - first).norm()
        assert moved > 0.1 and (mine - other).norm() < 0.05 * moved
    saved, read = (optimizer.state_dict()["state"][0].keys() for optimizer in optimizers)
    assert saved == read, "a checkpoint continues on another machine"


@pytest.mark.parametrize("fast", [True, False])
def test_autocast_follows_the_processor(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "has_fast_bfloat16", lambda device: fast)
    weight = torch.ones(2, 2)
    with autocast(weight.device):
        assert (weight @ weight).dtype == (torch.bfloat16 if fast else torch.float32)
