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
    assert len(expected) == 6


def test_a_step_is_a_round_without_a_draft() -> None:
    packed = StepSummary(torch.tensor([[5], [8]]), torch.tensor([1, 0]), torch.tensor([True, False])).pack()
    nothing = {name: [0, 0] for name in ("num_nodes", "offered", "accepted", "rejected")}
    assert RoundSummary.unpack(packed) == RoundSummary([[5], [8]], [1, 0], [1, 0], **nothing)
