"""Lenience: speculative sampling that accepts more tokens, by a stated factor (Leviathan et al., 2023, A.5)."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.core.validation import check_number
from framework.verifiers.speculative_sampling import SpeculativeSampling, first_loss, require_chain
from framework.verifiers.verifier import Guarantee


class Lenience:
    """Accept x with probability min(1, p(x) / (l q(x))): speculative sampling with l q for q, lossy for l < 1.

    A token's output probability is at most p / l; it has no lower bound, so diversity can suffer. A node is accepted
    with probability sum_x min(p / l, q). The paper leaves the distribution after a rejection open; here it is
    norm((p - l q)+), which respects the bound p / l.

    At temperature 0 a drafted token is accepted if the target finds it at least l times as likely as its best token,
    both at temperature 1 without other sampling settings. A rejected token is replaced by the argmax. The paper prints
    <= here, an apparent misprint: that rule would accept the worst tokens and, at l = 1, every token, whereas the
    paper's alpha at l = 1 is the ordinary one and grows as l falls.

    l = 1 is speculative sampling, also at temperature 0, where it accepts only the smallest id among tied best tokens;
    l < 1 accepts all of them.
    """

    guarantee = Guarantee.LOSSY
    token_rule = False

    def __init__(self, *, lenience: float):
        """
        Args:
            lenience: l, in (0, 1].

        Raises:
            ValueError: lenience is not a number in this range.
        """
        check_number("lenience", lenience, lambda value: 0 < value <= 1, "a number in (0, 1]")
        self.lenience = lenience
        self._exact_rule = SpeculativeSampling()

    def check(self, scheme: SamplingScheme, shape: Shape) -> None:
        """
        Raises:
            ValueError: the draft is not a chain.
        """
        require_chain(shape, verifier="lenience")

    def stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: probability of accepting all nodes up to a row and rejecting the next one."""
        if self._compares_with_the_best(target):
            return first_loss(self._near_the_best(target, draft), draft.prob_of_tokens(), draft.valid)
        return self._exact_rule.stop_probs(target, target.cached(self._scaled, draft))

    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: the residual where a node was rejected; p where none was offered, or at temperature 0."""
        if self._compares_with_the_best(target):
            return target.probs(stop)
        return self._exact_rule.next_token_probs(target, target.cached(self._scaled, draft), stop)

    def _compares_with_the_best(self, target: TargetRows) -> bool:
        return target.sampling.greedy and self.lenience < 1

    def _near_the_best(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N] float32: 1 where softmax(logits)(x) >= l max softmax(logits), else 0.

        NaN where the logits define no distribution.
        """
        logits = target.logits[:, :-1]  # on a chain, row i is the parent of node i
        logits = logits if logits.dtype == torch.float64 else logits.float()
        best = logits.amax(2)
        gap = best - logits.gather(2, draft.tokens.unsqueeze(2)).squeeze(2)
        near = gap <= -math.log(self.lenience)  # the softmax's denominators cancel
        return torch.where(best.isfinite(), near.float(), torch.nan)

    def _scaled(self, target: TargetRows, draft: Draft) -> Draft:
        """The draft with l q in place of q; the rule does not need it normalised."""
        if draft.probs is not None:
            return replace(draft, probs=self._times_lenience(draft.probs))
        ids = draft.tokens.unsqueeze(2)
        masses = self._times_lenience(torch.ones_like(ids, dtype=target.all_probs.dtype))
        return replace(draft, scheme=SamplingScheme.IID, probs=masses, support=ids)

    def _times_lenience(self, q: Tensor) -> Tensor:
        """l q, positive wherever q is: a product that underflows to 0 would mark the token as impossible."""
        least = torch.finfo(q.dtype).tiny * torch.finfo(q.dtype).eps  # the smallest subnormal number
        return torch.where(q > 0, (self.lenience * q).clamp(min=least), q)
