"""The largest acceptance probability that any exact rule can reach with several drafts of one token.

A rule couples the drafts with the emitted token y ~ p, and accepts at most where y is among them. The best coupling is
the solution of a linear program over V ** k tuples of drafts (Sun et al., 2023, SpecTr). By duality its value is

    1 + min over A of p(A) - Q(A),

where A is a set of tokens and Q(A) the probability that all drafts are in A; the best A holds the tokens with the
smallest ratios p / q, so V + 1 sets suffice (Hu et al., 2025, 2502.18779).

B rows, V vocabulary.
"""

import math

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, TargetRows

# Nodes of the integral over the logarithm of time, where the trapezoidal rule errs by less than 1e-6.
FIRST, LAST, STEP = -13.0, 28.0, 0.5


def optimal_acceptance(p: Tensor, q: Tensor, number: Tensor, scheme: SamplingScheme) -> Tensor:
    """Probability that y ~ p is among the drafts under the best coupling.

    Args:
        p: [B, V] distribution of the emitted token.
        q: [B, V] distribution of the first draft.
        number: [B] int64 drafts of each row; 0: none. WITHOUT_REPLACEMENT, at most the tokens with q > 0.
        scheme: IID or WITHOUT_REPLACEMENT.

    Returns:
        [B] float64.
    """
    p, q = p.double(), q.double()
    order = torch.where(q > 0, p / q, torch.inf).argsort(1)
    p, q = p.gather(1, order), q.gather(1, order)
    if scheme is SamplingScheme.IID:
        all_in = q.cumsum(1).clamp(max=1) ** number.unsqueeze(1)
    else:
        all_in = _all_in_without_replacement(q, number)
    gap = (p.cumsum(1) - all_in).amin(1).clamp(max=0)
    return torch.where(number > 0, (1 + gap).clamp(min=0), 0.0)


def optimum_after_pending(target: TargetRows, draft: Draft) -> Tensor:
    """[B] float64: the largest probability that a child of pending is accepted, over the draws of these children.

    Chosen tokens are not drawn, so their optimum is their mass under p.
    """
    p = target.probs(torch.zeros_like(draft.parent[:, 0]))
    first = draft.valid & (draft.parent == -1)
    if draft.probs is None:
        chosen = torch.zeros_like(p).scatter_add(1, draft.tokens, first.to(p.dtype)) > 0
        return p.double().where(chosen, 0).sum(1)
    q = draft.probs_of_nodes(first.int().argmax(1), p.shape[1])
    return optimal_acceptance(p, q, first.sum(1), draft.scheme)


def _all_in_without_replacement(q: Tensor, number: Tensor) -> Tensor:
    """[B, V]: probability that `number` draws without replacement are among the tokens 0 to i.

    Tokens drawn without replacement are in the order in which independent exponential clocks of rates q ring. The first
    k are in A if k clocks of A ring before the first one outside, whose rate is q(outside).
    """
    inside = q.cumsum(1)
    outside = torch.cat([q[:, 1:].flip(1).cumsum(1).flip(1), torch.zeros_like(q[:, :1])], 1)
    enough, tail = torch.zeros_like(q), torch.zeros_like(q)
    for node in range(round((LAST - FIRST) / STEP) + 1):
        time = math.exp(FIRST + node * STEP)
        tail = _rung(q, inside, number, time)
        enough = enough + STEP * time * outside * (-time * outside).exp() * tail
    # Later rings outside: by then the clocks of A that ring at all have rung.
    return (enough + (-time * outside).exp() * tail).clamp(max=1)


def _rung(q: Tensor, inside: Tensor, number: Tensor, time: float) -> Tensor:
    """[B, V]: probability that `number` of the clocks 0 to i have rung at `time`.

    Exactly j have rung with probability exp(-q(A) t) e_j, where e_j is the elementary symmetric polynomial of the
    odds exp(q t) - 1; e_j over i + 1 clocks is a running sum of odds times e_(j - 1) over the earlier ones.
    """
    log_odds = q * time + (-torch.expm1(-q * time)).log()
    fewer = log_sum = earlier = torch.zeros_like(q)
    for rung in range(int(number.max())):
        if rung:
            log_sum = torch.logcumsumexp(log_odds + earlier, 1)
            earlier = torch.cat([torch.full_like(q[:, :1], -torch.inf), log_sum[:, :-1]], 1)
        fewer = fewer + (log_sum - inside * time).exp().where(number.unsqueeze(1) > rung, 0)
    return (1 - fewer).clamp(min=0)
