"""How far a lossy rule leads away from the target's law, on the laws it really met."""

import torch
from torch import Tensor

from framework.draft import Draft, Law, Outcome, Shape, TargetRows
from framework.verifiers.verifier import Verifier

POSITIONS = 256  # of a point, at most so many are looked at: each asks the rule about every token that may be drafted
LIKELIEST = 512  # tokens of q that are; the others hold next to nothing of it


class Divergence:
    """Total variation between a token that comes out of a rule and the target's law of it.

    Taken of the first token of a round, by the rule's own laws, summed over all that the drafter may have drafted: 0
    for an exact rule, but for the mass of q beyond its likeliest tokens. Of chains and single chosen tokens only.

    Attributes:
        found: at each position that was looked at.
    """

    def __init__(self, verifier: Verifier, *, most: int):
        """
        Args:
            most: how many positions are looked at.
        """
        self.found: list[float] = []
        self._verifier = verifier
        self._most = most

    def watch(self, outcome: Outcome) -> None:
        """Look at a round; the engine's `watch`."""
        draft = outcome.draft
        if draft.shape is not Shape.CHAIN or not draft.num_nodes or len(self.found) >= self._most:
            return
        for row in (outcome.active & draft.valid[:, 0]).nonzero().flatten().tolist():
            if len(self.found) < self._most:
                self.found.append(self._at(outcome.target, draft, row))

    def _at(self, target: TargetRows, draft: Draft, row: int) -> float:
        logits = target.logits[row, 0]
        q = None if draft.law is Law.ONE_HOT else draft.dense_probs(len(logits))[row, 0]
        emitted = emitted_law(self._verifier, target, logits, q, int(draft.tokens[row, 0]))
        p = target.sampling.probs(logits[None])[0].double()
        return (emitted - p).abs().sum().item() / 2


def emitted_law(verifier: Verifier, target: TargetRows, logits: Tensor, q: Tensor | None, token: int) -> Tensor:
    """[V] float64: the law of the first token that a round commits, whatever of q was drafted.

    Args:
        verifier: a rule for chains.
        target: gives the sampling.
        logits: [V] the target's, after what was committed.
        q: [V] what the draft's token was drawn from; None where `token` was chosen.
        token: the one that was drafted.
    """
    tokens = torch.tensor([token], device=logits.device)
    weights = torch.ones(1, dtype=torch.float64, device=logits.device)
    if q is not None:
        masses, tokens = q.topk(min(LIKELIEST, len(q)))
        tokens = tokens[masses > 0]
        weights = q[tokens].double() / q[tokens].double().sum()
    size = len(tokens)
    one_node = Draft(
        tokens=tokens.unsqueeze(1),
        parent=torch.full((size, 1), -1, device=logits.device),
        valid=torch.ones(size, 1, dtype=torch.bool, device=logits.device),
        law=Law.ONE_HOT if q is None else Law.IID,
        probs=None if q is None else q.expand(size, 1, len(logits)),
        support=None,
        shape=Shape.CHAIN,
    )
    rows = TargetRows(logits.expand(size, 2, len(logits)), one_node, target.sampling)
    stop_law = verifier.stop_law(rows, one_node).double()
    lost = verifier.replacement(rows, one_node, torch.zeros_like(tokens)).double()
    emitted = (weights * stop_law[:, 0]) @ lost
    return emitted.index_add(0, tokens, weights * stop_law[:, 1])
