"""A head learns from text which drafted tokens will be kept (SpecDec++; Huang, Guo and Wang, 2024).

B windows of T tokens, N places in them, V vocabulary.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from framework.acceptance_head import AcceptanceHead, features_of, save_head
from framework.cached_lm import CachedLM
from framework.draft import DraftedNode
from framework.sampling import argmax, draw
from framework.target import Target
from framework.trainable import FILLER, model_inputs, texts_of
from framework.whole_numbers import check_whole

WINDOWS_AT_ONCE = 8  # when evaluating


class AcceptanceTraining:
    """Behind every token of a text the small model drafts one more, and the two laws say how likely that is kept.

    Half of the windows are drafted as above temperature 0: a token is drawn from q, and kept with min(1, p / q). The
    others as at temperature 0: it is the likeliest one, and kept if it is the target's. A text stands for what was
    committed, those drafted tokens included that were kept. The loss is cross-entropy, in which rejections weigh more.
    """

    def __init__(
        self,
        target: Target,
        *,
        model: Callable[[Target], CachedLM],
        rejection_weight: float,
        width: int,
        num_blocks: int,
    ):
        """
        Args:
            target: whose law decides; stays frozen.
            model: builds the small model that drafts; stays frozen.
            rejection_weight: what a rejection weighs in the loss beside an acceptance; above 1 the head's probabilities
                are lower than the true ones.
            width, num_blocks: of the head.

        Raises:
            OSError: no model there.
            ValueError: a knob out of its range, or a model with another tokenizer.
        """
        for key, value in (("width", width), ("num_blocks", num_blocks)):
            check_whole(f"training.trainable.{key}", value, least=1)
        if not 0 < rejection_weight < float("inf"):
            raise ValueError(f"training.trainable.rejection_weight is {rejection_weight!r}; allowed: a number > 0")
        self._target, self._model = target, model(target)
        self._weight = torch.tensor(1 / rejection_weight, device=target.device)  # of an acceptance beside a rejection
        self.module: nn.Module = AcceptanceHead(width=width, num_blocks=num_blocks).to(target.device)

    def loss(self, tokens: Tensor) -> Tensor:
        """Scalar; tokens [B, T] or [B, 2, T] int64.

        Raises:
            ValueError: T < 2.
        """
        if tokens.shape[-1] < 2:
            raise ValueError(f"training.window is {tokens.shape[-1]}; allowed: at least 2")
        halves = ((tokens[::2], True), (tokens[1::2], False))
        found = [self._drafted(windows, drawn) for windows, drawn in halves if len(windows)]
        features, kept = (torch.cat(each) for each in zip(*found, strict=True))
        return functional.binary_cross_entropy_with_logits(self.module(features), kept, pos_weight=self._weight)

    @torch.no_grad()
    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        """How often a kept token is given more than a rejected one: by the head, and by the drafter itself."""
        found: dict[str, float] = {}
        for name, drawn in (("T=1", True), ("T=0", False)):
            parts = [self._drafted(some, drawn) for some in tokens.split(WINDOWS_AT_ONCE)]
            features, kept = (torch.cat(each) for each in zip(*parts, strict=True))
            found[f"auc({name})"] = ranked_right(self.module(features), kept)
            found[f"auc of confidence({name})"] = ranked_right(features[:, 0], kept)
        return found

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write the head with what it knows of held-out windows, as gamma=stop_head loads it."""
        assert isinstance(self.module, AcceptanceHead)
        save_head(folder, self.module, self.evaluate(held_out))

    @torch.no_grad()
    def _drafted(self, tokens: Tensor, drawn: bool) -> tuple[Tensor, Tensor]:
        """Features [N, 3] of the tokens drafted behind every place, and the probability [N] of keeping each."""
        # The same windows give the same drafts, so that a training that was killed goes on as if it had not been.
        random = torch.Generator(tokens.device).manual_seed(int(tokens.sum()))
        p, q = (self._law(model, tokens) for model in (self._target.model, self._model))
        if not drawn:
            drafted = argmax(q)
            return features_of(DraftedNode(q, drafted, depth=1)), (argmax(p) == drafted).float()
        drafted = draw(q, torch.rand(len(q), dtype=torch.float64, device=q.device, generator=random))
        node = DraftedNode(q, drafted, depth=1)
        p_drafted = p.gather(1, drafted.unsqueeze(1)).squeeze(1)
        return features_of(node), (p_drafted / node.confidence).clamp(max=1)

    def _law(self, served: CachedLM, tokens: Tensor) -> Tensor:
        """[N, V] float32 at temperature 1: what comes behind every token of the texts but the last."""
        texts, model = texts_of(tokens), served.model
        inputs = model_inputs(tokens) if served.text_start else {"input_ids": texts.clamp(min=0)}
        logits = model(**inputs, use_cache=False).logits[:, :-1, : self._target.vocabulary_size]
        return logits[texts[:, 1:] != FILLER].float().softmax(1)


def ranked_right(scores: Tensor, kept: Tensor) -> float:
    """The probability that a kept token has a higher score than a rejected one: the area under the ROC curve.

    Args:
        scores: [N] float32.
        kept: [N] float32: the probability that each was kept; it counts as much as kept, and the rest as rejected.
    """
    values, group = scores.unique(return_inverse=True)
    sums = [torch.zeros(len(values), dtype=torch.float64, device=scores.device) for _ in range(2)]
    for total, weight in zip(sums, (kept, 1 - kept), strict=True):
        total.scatter_add_(0, group, weight.double())
    accepted, rejected = sums
    below = rejected.cumsum(0) - rejected / 2  # of equal scores, half of the pairs are right
    return float((accepted * below).sum() / (accepted.sum() * rejected.sum()))
