"""Training of an acceptance head on text (SpecDec++; Huang, Guo and Wang, 2024).

B windows of T tokens, N positions in them, V vocabulary.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from framework.core.draft import DraftedNode
from framework.core.option_error import OptionError, options_under
from framework.core.sampling import argmax, draw
from framework.core.validation import check_whole
from framework.heads.acceptance_head import AcceptanceHead, save_head
from framework.models.cached_lm import CachedLM
from framework.models.target import Target
from framework.training.batch_shares import mean_over_processes, uniforms_per_window
from framework.training.target_states import output_layer_input
from framework.training.trainable import ids_of, is_learned, model_inputs, texts_of

WINDOWS_AT_ONCE = 8  # batch size of evaluation
KINDS = ("T=1", "T=0")  # temperatures of the drafts


class AcceptanceTraining:
    """Fits a head to the acceptance probability of one token drafted after every position of a text.

    The label is the acceptance probability under p and q. Every window is drafted twice. As above temperature 0, the
    token is drawn from q and accepted with probability min(1, p / q); as at temperature 0, the token is the most likely
    one, accepted if it is also the target's. The text before a position stands for the committed tokens and the
    accepted part of a draft. The loss is cross-entropy with a weight for rejections.
    """

    def __init__(
        self,
        target: Target,
        *,
        model: Callable[[Target], CachedLM],
        rejection_weight: float,
        width: int,
        num_blocks: int,
        hidden_state: bool,
    ):
        """
        Args:
            target: provides p; stays frozen.
            model: builds the small model, which provides q; stays frozen.
            rejection_weight: weight of a rejection in the loss relative to an acceptance, > 0; above 1 the head's
                probabilities are lower than the true ones.
            width: width of the head.
            num_blocks: number of residual blocks of the head.
            hidden_state: whether the head also reads the small model's last hidden state, as published; it then fits
                this model alone.

        Raises:
            OSError: no model at its path.
            ValueError: an option out of range, or a model with another tokenizer.
        """
        for key, value in (("width", width), ("num_blocks", num_blocks)):
            check_whole(key, value, least=1)
        if not 0 < rejection_weight < float("inf"):
            raise OptionError("rejection_weight", rejection_weight, "a number > 0")
        with options_under("model"):
            self._target, self._model = target, model(target)
        self._weight = torch.tensor(1 / rejection_weight, device=target.device)  # weight of an acceptance
        state_size = self._model.model.get_output_embeddings().in_features if hidden_state else 0
        self.module: nn.Module = AcceptanceHead(width=width, num_blocks=num_blocks, state_size=state_size).to(
            target.device
        )

    def loss(self, tokens: Tensor) -> Tensor:
        """Scalar loss of tokens [B, T] or [B, 2, T] int64.

        Raises:
            ValueError: T < 2.
        """
        if tokens.shape[-1] < 2:
            raise OptionError("window", tokens.shape[-1], "at least 2")
        features, kept = (torch.cat(each) for each in zip(*self._drafted(tokens).values(), strict=True))
        nats = functional.binary_cross_entropy_with_logits(
            self.module(features), kept, pos_weight=self._weight, reduction="sum"
        )
        return nats / mean_over_processes(torch.tensor(len(kept), device=nats.device))

    @torch.no_grad()
    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        """AUC of the head and of the drafter's own confidence as predictors of acceptance."""
        found: dict[str, float] = {}
        parts = [self._drafted(some) for some in tokens.split(WINDOWS_AT_ONCE)]
        for name in KINDS:
            features, kept = (torch.cat(each) for each in zip(*(part[name] for part in parts), strict=True))
            found[f"auc({name})"] = ranked_right(self.module(features), kept)
            found[f"auc of confidence({name})"] = ranked_right(features[:, 0], kept)
        return found

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write the head, with its metrics on held-out windows, in the form that gamma=stop_head loads."""
        assert isinstance(self.module, AcceptanceHead)
        save_head(folder, self.module, self.evaluate(held_out))

    @torch.no_grad()
    def _drafted(self, tokens: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Features [N, 3 + H] of the tokens drafted after every position, and their acceptance probabilities [N].

        By the names in KINDS.
        """
        p, q = (self._probs(model, tokens) for model in (self._target.model, self._model))
        assert isinstance(self.module, AcceptanceHead)
        hidden = self._states(tokens) if self.module.state_size else None
        known = is_learned(texts_of(tokens)[:, 1:])
        drawn, likely = draw(q, uniforms_per_window(tokens, known.shape[1])[known]), argmax(q)
        node = DraftedNode(q, drawn, depth=1, hidden=hidden)
        p_drawn = p.gather(1, drawn.unsqueeze(1)).squeeze(1)
        inputs_of = self.module.inputs_of
        return {
            "T=1": (inputs_of(node), (p_drawn / node.confidence).clamp(max=1)),
            "T=0": (inputs_of(DraftedNode(q, likely, depth=1, hidden=hidden)), (argmax(p) == likely).float()),
        }

    def _states(self, tokens: Tensor) -> Tensor:
        """[N, H] input of the small model's output layer at the same positions as `_probs`."""
        states = output_layer_input(self._model.model, tokens)[:, :-1]
        return states[is_learned(texts_of(tokens)[:, 1:])]

    def _probs(self, served: CachedLM, tokens: Tensor) -> Tensor:
        """[N, V] float32 distributions at temperature 1 after every token of the texts but the last."""
        texts, model = texts_of(tokens), served.model
        inputs = model_inputs(tokens) if served.text_start else {"input_ids": ids_of(texts)}
        logits = model(**inputs, use_cache=False).logits[:, :-1, : self._target.vocabulary_size]
        return logits[is_learned(texts[:, 1:])].float().softmax(1)


def ranked_right(scores: Tensor, kept: Tensor) -> float:
    """Probability that an accepted token has a higher score than a rejected one: the area under the ROC curve.

    Args:
        scores: [N] float32.
        kept: [N] float32: acceptance probabilities; a token counts as accepted with this weight, and as rejected with
            the remaining weight.
    """
    values, group = scores.unique(return_inverse=True)
    sums = [torch.zeros(len(values), dtype=torch.float64, device=scores.device) for _ in range(2)]
    for total, weight in zip(sums, (kept, 1 - kept), strict=True):
        total.scatter_add_(0, group, weight.double())
    accepted, rejected = sums
    below = rejected.cumsum(0) - rejected / 2  # pairs of equal scores count half
    return float((accepted * below).sum() / (accepted.sum() * rejected.sum()))
