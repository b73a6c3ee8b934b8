"""Does a sample follow a known law? A chi-square test, and the exact law of a target's continuations."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from framework.sampling import Sampling
from framework.sequences import Conditioned, Prompt, text_of
from framework.target import Target

LEAST_EXPECTED = 5  # rarer cells are counted together: alone they tell little, and each costs a degree of freedom
PREFIXES_PER_PASS = 1024


@dataclass(frozen=True)
class Fit:
    """How well counts agree with a law.

    Attributes:
        p_value: the chance of a sample at least as far off, if the law is right; 0 where something impossible occurred.
        total_variation: between the sample and the law, the noise of sampling included.
        worst: index of the cell that adds most to the statistic; None is the rare ones together.
    """

    p_value: float
    total_variation: float
    worst: int | None


def chi_square(counts: Tensor, expected: Tensor, *, constraints: int = 1) -> Fit:
    """A chi-square test that keeps its word far out in the tail, where Pearson's does not.

    Pearson adds (count - expected)^2 / expected, which is a squared normal only near the middle: where 0.02 are
    expected, a single one would have a chance of 4e-12. Here each cell adds the squared normal deviate of its own
    chance as a Poisson count, which is the same for large counts, and within a factor of 2 of the truth for small ones.

    Args:
        counts: [K] how often each cell occurred.
        expected: [K] how often it should, of the same sum; 0 is impossible.
        constraints: sums that counts and expectation share by construction; each costs one degree of freedom.
    """
    counts, expected = counts.double(), expected.double()
    total_variation = ((counts - expected).abs().sum() / 2 / counts.sum().clamp(min=1)).item()
    impossible = (expected <= 0) & (counts > 0)
    if impossible.any():
        return Fit(p_value=0.0, total_variation=total_variation, worst=int(impossible.int().argmax()))
    likely = (expected >= LEAST_EXPECTED).nonzero().flatten()
    rare = expected < LEAST_EXPECTED
    cells, law = [counts[likely]], [expected[likely]]
    if expected[rare].sum() > 0:
        cells.append(counts[rare].sum().unsqueeze(0))
        law.append(expected[rare].sum().unsqueeze(0))
    parts = _squared_deviates(torch.cat(cells), torch.cat(law))
    degrees = max(1, len(parts) - constraints)
    p_value = torch.special.gammaincc(torch.tensor(degrees / 2, dtype=torch.float64), parts.sum() / 2)
    worst = int(parts.argmax())
    return Fit(
        p_value=p_value.item(),
        total_variation=total_variation,
        worst=int(likely[worst]) if worst < len(likely) else None,
    )


def smallest_seen(num_samples: int) -> float:
    """About what total variation so many samples of one node show at a false-alarm rate of 1e-9.

    Mass moved so that it is hardest to see, in proportion between two halves of a law, adds 4 n TV^2 to the statistic;
    60 are beyond chance where a handful of tokens are likely.
    """
    return min(1.0, (60 / (4 * num_samples)) ** 0.5)


def _squared_deviates(counts: Tensor, expected: Tensor) -> Tensor:
    """[K]: squares of the normal deviates that are as unlikely, on their side, as counts of Poisson variables.

    Half the chance of the count itself is left to either side, or the many small cells would make every sample look
    better than it is.
    """
    above = torch.special.gammainc(counts + 1, expected)  # P(X > count)
    at_least = torch.where(counts > 0, torch.special.gammainc(counts.clamp(min=1), expected), 1.0)
    below = torch.where(counts > 0, torch.special.gammaincc(counts.clamp(min=1), expected), 0.0)
    at_most = torch.special.gammaincc(counts + 1, expected)
    chance = torch.minimum((above + at_least) / 2, (below + at_most) / 2)
    return torch.special.ndtri(chance.clamp(max=0.5)) ** 2


@dataclass(frozen=True)
class ContinuationLaw:
    """The exact law of the next tokens after a prompt.

    Attributes:
        tokens: [K, length] int64: every continuation that has mass.
        probs: [K] float64.
    """

    tokens: Tensor
    probs: Tensor

    def fit(self, samples: list[list[int]]) -> Fit:
        """Compare samples, each of `length` tokens, with the law."""
        width = 1 + max(int(self.tokens.max()), max(map(max, samples)))
        places = width ** np.arange(self.tokens.shape[1], dtype=np.int64)
        keys, order = np.unique(self.tokens.numpy() @ places, return_inverse=True)
        drawn = np.array(samples, dtype=np.int64) @ places
        found = np.searchsorted(keys, drawn).clip(max=len(keys) - 1)
        known = keys[found] == drawn
        counts = np.bincount(found[known], minlength=len(keys))[order]
        # What has no mass is one more cell, which must stay empty.
        counts, probs = np.append(counts, (~known).sum()), np.append(self.probs.numpy(), 0.0)
        return chi_square(torch.from_numpy(counts), torch.from_numpy(probs * len(samples)))


@torch.no_grad()
def continuation_law(target: Target, prompt: Prompt, length: int, sampling: Sampling) -> ContinuationLaw:
    """The law of the next `length` tokens, by uncached passes over every prefix that has mass."""
    prompt = target.as_prompt(prompt)
    text = text_of(prompt)
    prefixes, law = torch.tensor([text], device=target.device), torch.ones(1, dtype=torch.float64)
    for _ in range(length):
        logits = [
            target.model.uncached(some, prompt.source if isinstance(prompt, Conditioned) else None)[:, -1]
            .double()
            .cpu()
            for some in prefixes.split(PREFIXES_PER_PASS)
        ]
        probs = sampling.probs(torch.cat(logits))
        parents, tokens = probs.nonzero(as_tuple=True)
        law = law[parents] * probs[parents, tokens]
        prefixes = torch.cat([prefixes[parents.to(prefixes.device)], tokens.to(prefixes.device).unsqueeze(1)], 1)
    return ContinuationLaw(tokens=prefixes[:, len(text) :].cpu(), probs=law)
