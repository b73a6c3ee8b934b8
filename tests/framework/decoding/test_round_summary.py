"""Packed summaries, equal after unpacking."""

import torch

from framework.decoding.round_summary import RoundSummary, StepSummary

TOKENS = torch.tensor([[5, 6, 7], [8, 0, 0]])


def test_a_step_comes_back() -> None:
    packed = StepSummary(TOKENS, torch.tensor([3, 1]), torch.tensor([True, False])).pack()
    assert packed.shape == (2, 2 + 3) and packed.dtype == torch.int64
    assert StepSummary.unpack(packed) == StepSummary([[5, 6, 7], [8, 0, 0]], [3, 1], [1, 0])


def test_a_round_comes_back_field_by_field() -> None:
    numbers = {name: torch.tensor([2 * place, 2 * place + 1]) for place, name in enumerate(RoundSummary.COLUMNS)}
    packed = RoundSummary(tokens=TOKENS, **numbers).pack()
    expected = {name: column.tolist() for name, column in numbers.items()}
    assert RoundSummary.unpack(packed) == RoundSummary(tokens=TOKENS.tolist(), **expected)
    assert len(expected) == 7
