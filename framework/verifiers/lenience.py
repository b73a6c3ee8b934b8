"""Lenience: speculative sampling that keeps more than it should, by a stated factor (Leviathan et al., 2023, A.5)."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from framework.draft import Draft, Law, Shape, TargetRows
from framework.verifiers.speculative_sampling import SpeculativeSampling, first_loss, require_chain
from framework.verifiers.verifier import Guarantee


class Lenience:
    """Speculative sampling with q multiplied by l: keep x with probability min(1, p(x) / (l q(x))). Lossy below l = 1.

    No token comes out with more than p / l; nothing bounds it from below, so variety can suffer. A node is kept with
    probability sum_x min(p / l, q). The paper leaves open what follows a loss; here it is norm((p - l q)+), which
    keeps within p / l.

    At temperature 0 a drafted token is kept if the model finds it at least l times as likely as its best token, both
    at temperature 1 whatever else the sampling says, and after a loss comes the argmax. The paper prints this with
    <=, which cannot be meant: it would keep the worst tokens and, at l = 1, every token, while the paper's own alpha
    at l = 1 is the ordinary one and grows as l falls.

    l = 1 is speculative sampling itself: at temperature 0, too, where of several best tokens it keeps the smallest
    id alone and l < 1 keeps them all.
    """

    guarantee = Guarantee.LOSSY
    token_rule = False

    def __init__(self, *, lenience: float):
        """
        Args:
            lenience: l, in (0, 1].

        Raises:
            ValueError: lenience is not such a number.
        """
        if not isinstance(lenience, int | float) or isinstance(lenience, bool) or not 0 < lenience <= 1:
            raise ValueError(f"verifier.lenience is {lenience!r}; allowed: a number in (0, 1]")
        self.lenience = lenience
        self._exact_rule = SpeculativeSampling()

    def check(self, law: Law, shape: Shape) -> None:
        """
        Raises:
            ValueError: the draft is not a chain.
        """
        require_chain(shape, verifier="lenience")

    def stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: the chance of keeping all nodes before a row and losing the next one."""
        if self._compares_with_the_best(target):
            return first_loss(self._near_the_best(target, draft), draft.prob_of_tokens(), draft.valid)
        return self._exact_rule.stop_law(target, target.once(self._scaled, draft))

    def replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: the residual where a node was lost, p itself where none was offered and at temperature 0."""
        if self._compares_with_the_best(target):
            return target.probs(stop)
        return self._exact_rule.replacement(target, target.once(self._scaled, draft), stop)

    def _compares_with_the_best(self, target: TargetRows) -> bool:
        return target.sampling.greedy and self.lenience < 1

    def _near_the_best(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N] float32: 1 where softmax(logits)(x) >= l max softmax(logits), else 0; NaN where logits are no law."""
        logits = target.logits[:, :-1]  # on a chain, row i is what node i was drawn after
        logits = logits if logits.dtype == torch.float64 else logits.float()
        best = logits.amax(2)
        behind = best - logits.gather(2, draft.tokens.unsqueeze(2)).squeeze(2)
        near = behind <= -math.log(self.lenience)  # the softmax's denominators cancel
        return torch.where(best.isfinite(), near.float(), torch.nan)

    def _scaled(self, target: TargetRows, draft: Draft) -> Draft:
        """The draft with l q in place of q, which is no law, but all that the rule asks for."""
        if draft.probs is not None:
            return replace(draft, probs=self._times_lenience(draft.probs))
        ids = draft.tokens.unsqueeze(2)
        masses = self._times_lenience(torch.ones_like(ids, dtype=target.all_probs.dtype))
        return replace(draft, law=Law.IID, probs=masses, support=ids)

    def _times_lenience(self, q: Tensor) -> Tensor:
        """l q, and above zero wherever q is: a product that underflows would say that the token cannot be drawn."""
        return torch.where(q > 0, (self.lenience * q).clamp(min=torch.finfo(q.dtype).tiny), q)
