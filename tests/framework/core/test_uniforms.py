"""Uniforms as a function of row seed and round."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest
from torch import Tensor

from framework.core.uniforms import ROUNDS_PER_BLOCK, RoundUniforms, Uniforms, check_seeds

CPU = torch.device("cpu")
ROUNDS = 2 * ROUNDS_PER_BLOCK + 3  # across two block boundaries
LARGEST = 2**128 - 1


def stream(seeds: list[int], width: int = 3, rounds: int = ROUNDS) -> Tensor:
    """[rounds, B, width] uniforms."""
    uniforms = Uniforms(seeds, width, CPU)
    return torch.stack([uniforms.next_round().numbers.clone() for _ in range(rounds)])


def test_shape_type_and_range() -> None:
    numbers = stream([0, 1, 2], width=5)
    assert numbers.shape == (ROUNDS, 3, 5) and numbers.dtype == torch.float64
    assert (numbers >= 0).all() and (numbers < 1).all()
    assert stream([4], width=0).shape == (ROUNDS, 1, 0)


def test_the_host_has_the_numbers_of_the_same_round() -> None:
    uniforms = Uniforms([0, 1], 3, CPU)
    for _ in range(ROUNDS):
        of_round = uniforms.next_round()
        assert of_round.on_host is not None and torch.equal(of_round.numbers, of_round.on_host)


def test_a_row_has_numpys_stream_of_its_seed() -> None:
    seeds = [0, 5, 2**64 - 1, 2**64, LARGEST]
    for width in (1, 3, 4):
        numbers = stream(seeds, width=width)
        for row, seed in enumerate(seeds):
            expected = np.random.Generator(np.random.Philox(key=seed)).random((ROUNDS, width))
            assert (numbers[:, row].numpy() == expected).all()


@pytest.mark.parametrize("width", [1, 3, 4])
@pytest.mark.parametrize("begun", [1, 5, ROUNDS_PER_BLOCK - 1, ROUNDS_PER_BLOCK, ROUNDS_PER_BLOCK + 1])
def test_a_row_that_begins_later_has_the_stream_of_its_seed_from_the_beginning(begun: int, width: int) -> None:
    uniforms, expected = Uniforms([0, 1, 2, 3], width, CPU), stream([0, 7, 2, 9], width=width)
    for number in range(begun):
        assert torch.equal(uniforms.next_round().numbers[0], expected[number, 0])
    assert torch.equal(uniforms.begin_rows([1, 3], [7, 9]).numbers, expected[0, [1, 3]])
    for number in range(1, ROUNDS - begun):
        numbers = uniforms.next_round().numbers
        assert torch.equal(numbers[[1, 3]], expected[number, [1, 3]])
        assert torch.equal(numbers[[0, 2]], expected[begun + number - 1, [0, 2]])


def test_more_than_24_bits() -> None:
    scaled = stream([0]) * 2**24
    assert (scaled != scaled.floor()).any()


def test_a_row_depends_on_its_seed_alone() -> None:
    alone = stream([7])[:, 0]
    for seeds in ([7, 1], [1, 7], [3, 2, 7, 0], [7, 7], list(range(40))):
        numbers = stream(seeds)
        for row, seed in enumerate(seeds):
            assert torch.equal(numbers[:, row], alone) == (seed == 7)


def test_the_global_generators_play_no_part() -> None:
    torch.manual_seed(0)
    before = stream([5])
    torch.manual_seed(1)
    assert torch.equal(stream([5]), before)
    state = torch.get_rng_state()
    stream([5])
    assert torch.equal(torch.get_rng_state(), state)


def test_no_number_comes_twice() -> None:
    numbers = stream([0, 1, 2, 1000, LARGEST], width=8, rounds=200)
    assert numbers.unique().numel() == numbers.numel()  # 8,000 numbers of 53 bits: a chance repeat has probability 4e-9


def test_a_seed_out_of_range_is_an_error() -> None:
    for seed in (-1, LARGEST + 1):
        with pytest.raises(ValueError, match="seeds is"):
            check_seeds([seed], 1)


@pytest.mark.parametrize("seeds", [[0], list(range(20))], ids=["one_row", "neighbouring_seeds"])
def test_uniformity(seeds: list[int]) -> None:
    """Kolmogorov-Smirnov, false-alarm rate 1e-7 each; fixed seeds."""
    numbers = stream(seeds, width=4, rounds=1000)
    assert kstest(numbers.flatten().numpy(), "uniform").pvalue > 1e-7
    assert kstest(numbers.transpose(0, 2)[0].flatten().numpy(), "uniform").pvalue > 1e-7


@pytest.mark.parametrize("pair", ["columns", "rounds", "rows"])
def test_neighbours_are_independent(pair: str) -> None:
    """Chi-square of 10 x 10 cells, false-alarm rate 1e-7 each; fixed seeds."""
    numbers = stream(list(range(20)), width=4, rounds=1000)
    left, right = {
        "columns": (numbers[..., 0], numbers[..., 1]),
        "rounds": (numbers[:-1], numbers[1:]),
        "rows": (numbers[:, :-1], numbers[:, 1:]),
    }[pair]
    # Adjacent pairs overlap; every other pair does not.
    if pair == "rounds":
        left, right = left[::2], right[::2]
    if pair == "rows":
        left, right = left[:, ::2], right[:, ::2]
    cells = (left * 10).long() * 10 + (right * 10).long()
    assert chisquare(torch.bincount(cells.flatten(), minlength=100)).pvalue > 1e-7


def test_a_rounds_numbers_are_told_apart_by_their_use():
    uniforms = Uniforms([3, 4], RoundUniforms.width(5), CPU)
    of_round = uniforms.next_round()
    assert of_round.stop.shape == of_round.next.shape == (2,) and of_round.draft.shape == (2, 5)
    together = torch.cat([of_round.stop.unsqueeze(1), of_round.next.unsqueeze(1), of_round.draft], 1)
    assert together.equal(of_round.numbers)  # every number has one use
    assert of_round.draft_on_host.equal(of_round.draft)
