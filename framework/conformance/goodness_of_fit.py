"""Goodness of fit: tests of counts and of a variance, and the exact distribution of a target's continuations."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from framework.core.sampling import Sampling
from framework.core.sequences import Prompt
from framework.models.target import Target

LEAST_EXPECTED = 5  # rarer cells are pooled: each carries little information and costs a degree of freedom
PREFIXES_PER_PASS = 1024


@dataclass(frozen=True)
class Fit:
    """Agreement of counts with a distribution.

    Attributes:
        p_value: probability of a sample at least as far off under the distribution; 0 if an impossible cell occurred.
        total_variation: total variation between sample and distribution, sampling noise included.
        worst: index of the cell that adds most to the statistic; None: the pooled rare cells.
    """

    p_value: float
    total_variation: float
    worst: int | None


def chi_square(counts: Tensor, expected: Tensor, *, constraints: int = 1) -> Fit:
    """A chi-square test with accurate p-values far in the tail, where Pearson's fails.

    Pearson adds (count - expected)^2 / expected, which is a squared normal only near the mean: with 0.02 occurrences
    expected, a single one gets a p-value of 4e-12. Here each cell adds the squared normal deviate with the probability
    of its Poisson count. This agrees with Pearson for large counts, and is within a factor of 2 of the true p-value for
    small ones.

    Args:
        counts: [K] occurrences of each cell.
        expected: [K] expected occurrences, with the same sum; 0: an impossible cell.
        constraints: sums that counts and expectation share by construction; each costs one degree of freedom.
    """
    counts, expected = counts.double(), expected.double()
    total_variation = ((counts - expected).abs().sum() / 2 / counts.sum().clamp(min=1)).item()
    impossible = (expected <= 0) & (counts > 0)
    if impossible.any():
        return Fit(p_value=0.0, total_variation=total_variation, worst=int(impossible.int().argmax()))
    likely = (expected >= LEAST_EXPECTED).nonzero().flatten()
    rare = expected < LEAST_EXPECTED
    cells, probs = [counts[likely]], [expected[likely]]
    if expected[rare].sum() > 0:
        cells.append(counts[rare].sum().unsqueeze(0))
        probs.append(expected[rare].sum().unsqueeze(0))
    parts = _squared_deviates(torch.cat(cells), torch.cat(probs))
    degrees = max(1, len(parts) - constraints)
    p_value = torch.special.gammaincc(torch.tensor(degrees / 2, dtype=torch.float64), parts.sum() / 2)
    worst = int(parts.argmax())
    return Fit(
        p_value=p_value.item(),
        total_variation=total_variation,
        worst=int(likely[worst]) if worst < len(likely) else None,
    )


def smallest_seen(num_samples: int) -> float:
    """Approximate total variation that num_samples samples of one node detect at a false-alarm rate of 1e-9.

    The change that is hardest to detect moves mass in proportion between two halves of a distribution. It adds
    4 n TV^2 to the statistic; 60 exceed chance where a handful of tokens are likely.
    """
    return min(1.0, (60 / (4 * num_samples)) ** 0.5)


def _squared_deviates(counts: Tensor, expected: Tensor) -> Tensor:
    """[K]: squared normal deviates with the one-sided tail probabilities of the Poisson counts.

    Half the probability of the count itself goes to either tail; otherwise many small cells would make every sample
    appear to fit too well.
    """
    above = torch.special.gammainc(counts + 1, expected)  # P(X > count)
    at_least = torch.where(counts > 0, torch.special.gammainc(counts.clamp(min=1), expected), 1.0)
    below = torch.where(counts > 0, torch.special.gammaincc(counts.clamp(min=1), expected), 0.0)
    at_most = torch.special.gammaincc(counts + 1, expected)
    chance = torch.minimum((above + at_least) / 2, (below + at_most) / 2)
    return torch.special.ndtri(chance.clamp(max=0.5)) ** 2


@dataclass(frozen=True)
class ContinuationDistribution:
    """The exact distribution of the next tokens after a prompt.

    Attributes:
        tokens: [K, length] int64: every continuation with mass.
        probs: [K] float64.
    """

    tokens: Tensor
    probs: Tensor

    def fit(self, samples: list[list[int]]) -> Fit:
        """Test samples of `length` tokens each against the distribution."""
        width = 1 + max(int(self.tokens.max()), max(map(max, samples)))
        places = width ** np.arange(self.tokens.shape[1], dtype=np.int64)
        keys, order = np.unique(self.tokens.numpy() @ places, return_inverse=True)
        drawn = np.array(samples, dtype=np.int64) @ places
        found = np.searchsorted(keys, drawn).clip(max=len(keys) - 1)
        known = keys[found] == drawn
        counts = np.bincount(found[known], minlength=len(keys))[order]
        # Continuations without mass form one more cell, which must stay empty.
        counts, probs = np.append(counts, (~known).sum()), np.append(self.probs.numpy(), 0.0)
        return chi_square(torch.from_numpy(counts), torch.from_numpy(probs * len(samples)))

    def variance_deviate(self, samples: list[list[int]], value: Callable[[Tensor], Tensor]) -> float:
        """Difference of the samples' variance of a value from the exact one, in standard deviations.

        The variance s^2 of n independent values with variance v and fourth central moment m has the variance
        (m - v^2 (n - 3) / (n - 1)) / n, and is normal for large n: 6 standard deviations are a false alarm in 2e-9.

        Args:
            samples: sequences of `length` tokens each.
            value: function from [n, length] tokens to [n] values.
        """
        exact, drawn = value(self.tokens).double(), value(torch.tensor(samples)).double()
        from_mean = exact - (exact * self.probs).sum()
        variance, fourth = ((from_mean**power * self.probs).sum() for power in (2, 4))
        n = len(drawn)
        spread = ((fourth - variance**2 * (n - 3) / (n - 1)) / n).sqrt()
        return ((drawn.var() - variance) / spread).item()


@torch.no_grad()
def continuation_distribution(
    target: Target, prompt: Prompt, length: int, sampling: Sampling
) -> ContinuationDistribution:
    """Distribution of the next `length` tokens, by passes without KV cache over every prefix with mass."""
    prefixes = torch.empty(1, 0, dtype=torch.int64, device=target.device)
    distribution = torch.ones(1, dtype=torch.float64)
    for _ in range(length):
        logits = [
            target.next_logits(prompt, some, max_new_tokens=length).double().cpu()
            for some in prefixes.split(PREFIXES_PER_PASS)
        ]
        probs = sampling.probs(torch.cat(logits))
        parents, tokens = probs.nonzero(as_tuple=True)
        distribution = distribution[parents] * probs[parents, tokens]
        prefixes = torch.cat([prefixes[parents.to(prefixes.device)], tokens.to(prefixes.device).unsqueeze(1)], 1)
    return ContinuationDistribution(tokens=prefixes.cpu(), probs=distribution)
