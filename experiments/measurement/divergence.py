"""Total variation between a lossy rule's output and the target's distribution, at positions of real generations."""

import torch
from torch import Tensor

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape, TargetRows
from framework.verifiers.verifier import Verifier

POSITIONS = 256  # examined per point at most: each evaluates the rule for every token that may be drafted
LIKELIEST = 512  # tokens of q that are evaluated; the others have negligible mass


class Divergence:
    """Total variation between the token emitted by a rule and the target's distribution.

    It is computed for the first token of a round, from the rule's own distributions, summed over all tokens that may
    be drafted. An exact rule has 0, up to the mass of q outside its `LIKELIEST` tokens. Only chains are examined, with
    drawn or one-hot tokens.

    Attributes:
        found: total variation at each examined position.
    """

    def __init__(self, verifier: Verifier, *, most: int):
        """
        Args:
            most: maximum number of examined positions.
        """
        self.found: list[float] = []
        self._verifier = verifier
        self._most = most

    def on_round(self, outcome: Outcome) -> None:
        """Examine a round; passed to the engine as `on_round`."""
        draft = outcome.draft
        if draft.shape is not Shape.CHAIN or not draft.num_nodes or len(self.found) >= self._most:
            return
        for row in (outcome.active & draft.valid[:, 0]).nonzero().flatten().tolist():
            if len(self.found) < self._most:
                assert outcome.target is not None, "a round of the loop has the target's probabilities"
                self.found.append(self._at(outcome.target, draft, row))

    def _at(self, target: TargetRows, draft: Draft, row: int) -> float:
        logits = target.logits[row, 0]
        q = None if draft.scheme is SamplingScheme.ONE_HOT else draft.dense_probs(len(logits))[row, 0]
        goes_on = bool(draft.valid[row, 1:2].any())
        emitted = emitted_distribution(self._verifier, target, logits, q, int(draft.tokens[row, 0]), goes_on)
        p = target.sampling.probs(logits[None])[0].double()
        return (emitted - p).abs().sum().item() / 2


def emitted_distribution(
    verifier: Verifier, target: TargetRows, logits: Tensor, q: Tensor | None, token: int, goes_on: bool = False
) -> Tensor:
    """Return the distribution of the first token committed by a round, marginalised over the drafted token.

    Args:
        verifier: a rule for chains.
        target: source of the sampling settings.
        logits: [V] target logits after the committed tokens.
        q: [V] distribution of the drafted token; None: a one-hot draft of `token`.
        token: drafted token id, used only where q is None.
        goes_on: whether the draft has a second node, by which some rules judge the first one. It is a copy of the first
            and has no part in the first token otherwise.

    Returns:
        [V] float64 probabilities.
    """
    tokens = torch.tensor([token], device=logits.device)
    weights = torch.ones(1, dtype=torch.float64, device=logits.device)
    if q is not None:
        masses, tokens = q.topk(min(LIKELIEST, len(q)))
        tokens = tokens[masses > 0]
        weights = q[tokens].double() / q[tokens].double().sum()
    size, nodes = len(tokens), 2 if goes_on else 1
    draft = Draft.chain(
        tokens.unsqueeze(1).expand(size, nodes),
        SamplingScheme.ONE_HOT if q is None else SamplingScheme.IID,
        probs=None if q is None else q.expand(size, nodes, len(logits)),
    )
    rows = TargetRows(logits.expand(size, nodes + 1, len(logits)), draft, target.sampling)
    stop_probs = verifier.stop_probs(rows, draft).double()
    replaced = verifier.next_token_probs(rows, draft, torch.zeros_like(tokens)).double()
    emitted = (weights * stop_probs[:, 0]) @ replaced
    return emitted.index_add(0, tokens, weights * (1 - stop_probs[:, 0]))
