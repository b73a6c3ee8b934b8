"""The chi-square test: false alarms at the stated rate, also for rare cells; detected faults."""

import pytest
import torch
from scipy.stats import chi2, poisson

from framework.conformance.goodness_of_fit import _squared_deviates, chi_square

DISTRIBUTIONS = {
    "even": [0.2] * 5,
    "one rare cell": [0.6, 0.3, 0.09995, 0.00005],
    "a rarer one": [0.5, 0.5 - 1e-6, 1e-6],
    "many rare cells": [0.9, *([0.001] * 100)],
    "geometric": [0.5**k for k in range(1, 30)],
    "nearly certain": [0.99, 0.01],
}


def samples(probs: torch.Tensor, size: int, number: int) -> torch.Tensor:
    """[number, K] counts of honest samples."""
    return torch.distributions.Multinomial(size, probs).sample((number,))


@pytest.mark.slow
@pytest.mark.parametrize("size", [400, 20_000])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_honest_samples_are_called_unlikely_no_more_often_than_they_are(name, size):
    """Shares of 2000 samples: p < 1e-2 in 2.5%, p < 1e-3 in 0.5% at most, p < 1e-6 in none.

    With p-values exact up to a factor of 2, larger shares have probabilities below 0.1, 4e-3 and 4e-3; fixed seed.
    """
    torch.manual_seed(0)
    probs = torch.tensor(DISTRIBUTIONS[name], dtype=torch.float64)
    probs = probs / probs.sum()
    different, each = samples(probs, size, 2000).unique(dim=0, return_inverse=True)
    found = torch.tensor([chi_square(counts, probs * size).p_value for counts in different])[each]
    assert (found < 1e-2).double().mean() <= 0.025
    assert (found < 1e-3).double().mean() <= 0.005
    assert found.min() > 1e-6


def test_one_sighting_of_a_rare_token_is_as_unlikely_as_it_is():
    """Pearson's statistic is (1 - 0.02)^2 / 0.02 = 48 with p = 4e-12; the true one is 0.02."""
    probs = torch.tensor([0.6, 0.4 - 5e-5, 5e-5], dtype=torch.float64)
    fit = chi_square(torch.tensor([240, 159, 1]), probs * 400)
    assert 0.005 < fit.p_value < 0.1 and fit.worst is None


@pytest.mark.parametrize("expected", [0.02, 1.0, 7.0, 60.0, 3000.0, 240_000.0])
def test_a_cell_adds_the_square_of_its_own_chance(expected):
    """Against scipy's Poisson tails, down to probabilities of 1e-12."""
    spread = expected**0.5
    counts = sorted({max(0, round(expected + deviation * spread)) for deviation in range(-7, 8)})
    found = _squared_deviates(torch.tensor(counts).double(), torch.tensor(expected).double())
    for count, squared in zip(counts, found.tolist(), strict=True):
        half = poisson.pmf(count, expected) / 2
        chance = min(1.0, 2 * min(poisson.sf(count, expected) + half, poisson.cdf(count, expected) - half))
        if chance > 1e-12:
            assert chi2.sf(squared, 1) == pytest.approx(chance, rel=1e-6)


def test_many_small_cells_leave_p_values_spread_over_all_of_0_to_1():
    """The mean of 300 p-values is within 6 standard errors of 1/2.

    A test that calls everything likely detects nothing.
    """
    torch.manual_seed(0)
    probs = torch.rand(700, dtype=torch.float64)
    probs = probs / probs.sum()
    found = torch.tensor([chi_square(counts, probs * 20_000).p_value for counts in samples(probs, 20_000, 300)])
    assert abs(found.mean() - 0.5) < 6 * (1 / 12 / 300) ** 0.5
    assert (found < 0.1).any() and (found > 0.9).any()


def test_it_is_pearsons_where_counts_are_large():
    dice = torch.Generator().manual_seed(0)
    expected = torch.rand(30, generator=dice, dtype=torch.float64) * 1e6 + 1e6
    for scale in (0.7, 1.0, 1.5):
        shift = torch.randn(30, generator=dice, dtype=torch.float64) * expected.sqrt() * scale
        counts = expected + shift - shift.mean()
        pearson = ((counts - expected) ** 2 / expected).sum().item()
        assert chi_square(counts, expected).p_value == pytest.approx(chi2.sf(pearson, 29), rel=0.1)


def test_what_is_impossible_is_never_likely():
    probs = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    fit = chi_square(torch.tensor([200, 199, 1]), probs * 400)
    assert fit.p_value == 0 and fit.worst == 2


def test_a_wrong_distribution_is_seen_and_its_worst_cell_named():
    probs = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    fit = chi_square(torch.tensor([500, 200, 300]), probs * 1000)
    assert fit.p_value < 1e-9 and fit.worst == 2
