"""Does a sample follow a known law? Pearson's chi-square test, and the exact law of a target's continuations."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from framework.sampling import Sampling
from framework.target import Target

LEAST_EXPECTED = 5  # a cell's count is near enough to normal from here on; rarer cells are counted together
PREFIXES_PER_PASS = 1024


@dataclass(frozen=True)
class Fit:
    """How well counts agree with a law.

    Attributes:
        p_value: the chance of a sample at least as far off, if the law is right; 0 where something impossible occurred.
        total_variation: between the sample and the law, the noise of sampling included.
        worst: index of the cell that adds most to the statistic.
    """

    p_value: float
    total_variation: float
    worst: int


def chi_square(counts: Tensor, expected: Tensor, *, constraints: int = 1) -> Fit:
    """Pearson's test of counts [K] against expected counts [K], of the same sum.

    Args:
        counts: [K] how often each cell occurred.
        expected: [K] how often it should; 0 is impossible.
        constraints: sums that counts and expectation share by construction; each costs one degree of freedom.
    """
    counts, expected = counts.double(), expected.double()
    total_variation = ((counts - expected).abs().sum() / 2 / counts.sum().clamp(min=1)).item()
    impossible = (expected <= 0) & (counts > 0)
    if impossible.any():
        return Fit(p_value=0.0, total_variation=total_variation, worst=int(impossible.int().argmax()))
    likely = expected >= LEAST_EXPECTED
    parts = torch.where(likely, (counts - expected) ** 2 / expected.clamp(min=1e-300), 0.0)
    rare, observed_rare = expected[~likely].sum(), counts[~likely].sum()
    statistic = parts.sum() + ((observed_rare - rare) ** 2 / rare if rare > 0 else 0.0)
    degrees = max(1, int(likely.sum()) + int(rare > 0) - constraints)
    p_value = torch.special.gammaincc(torch.tensor(degrees / 2, dtype=torch.float64), statistic / 2)
    return Fit(p_value=p_value.item(), total_variation=total_variation, worst=int(parts.argmax()))


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
def continuation_law(target: Target, prompt: list[int], length: int, sampling: Sampling) -> ContinuationLaw:
    """The law of the next `length` tokens, by uncached passes over every prefix that has mass."""
    prefixes, law = torch.tensor([prompt], device=target.device), torch.ones(1, dtype=torch.float64)
    for _ in range(length):
        logits = [
            target.model.model(input_ids=some, use_cache=False).logits[:, -1, : target.vocabulary_size].double().cpu()
            for some in prefixes.split(PREFIXES_PER_PASS)
        ]
        probs = sampling.probs(torch.cat(logits))
        parents, tokens = probs.nonzero(as_tuple=True)
        law = law[parents] * probs[parents, tokens]
        prefixes = torch.cat([prefixes[parents.to(prefixes.device)], tokens.to(prefixes.device).unsqueeze(1)], 1)
    return ContinuationLaw(tokens=prefixes[:, len(prompt) :].cpu(), probs=law)
