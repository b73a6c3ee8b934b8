"""A small model is fitted to a target's law, so that its drafts are accepted more often.

B rows, T tokens, V vocabulary. p is the target's law and q the small model's, both at temperature 1.
"""

import textwrap
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from framework.pretrained import load_draft_model
from framework.target import Target

WINDOWS_AT_ONCE = 8  # when evaluating


def cross_entropy(p_logits: Tensor, q_logits: Tensor, tokens: Tensor) -> Tensor:
    """-log q of the text's own tokens; the target is not asked."""
    return functional.cross_entropy(q_logits[:, :-1].mT, tokens[:, 1:])


def forward_kl(p_logits: Tensor, q_logits: Tensor, tokens: Tensor) -> Tensor:
    """KL(p || q): q must cover whatever p may say."""
    return (
        functional.kl_div(q_logits.log_softmax(2), p_logits.log_softmax(2), log_target=True, reduction="none")
        .sum(2)
        .mean()
    )


def reverse_kl(p_logits: Tensor, q_logits: Tensor, tokens: Tensor) -> Tensor:
    """KL(q || p): q must not say what p would not."""
    return forward_kl(q_logits, p_logits, tokens)


def total_variation(p_logits: Tensor, q_logits: Tensor, tokens: Tensor) -> Tensor:
    """Half of Σ |p - q|, which is 1 - alpha: the share of rejected tokens itself (Zhou et al., 2024)."""
    return (p_logits.softmax(2) - q_logits.softmax(2)).abs().sum(2).mean() / 2


LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "cross_entropy": cross_entropy,
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "total_variation": total_variation,
}


class Distillation:
    """Knowledge distillation for speculative decoding (DistillSpec; Zhou et al., 2024), over windows of text."""

    def __init__(self, target: Target, *, loss: str, path: str | None, config: dict[str, object]):
        """
        Args:
            target: the teacher; stays frozen.
            loss: one of LOSSES.
            path: folder or hub name of a model to go on with; None begins with a new one.
            config: of the new model, in the words of transformers; its vocabulary is the target's.

        Raises:
            OSError: nothing loadable at the path.
            ValueError: a target with an encoder, a knob out of its range, a model with another tokenizer, or one that
                lacks tokens.
        """
        if target.model.text_start:
            raise ValueError(
                "target has an encoder, and this distils decoder-only models; allowed: a decoder-only target, or "
                "python -m experiments.make_pair, which trains encoder-decoder drafters beside their target"
            )
        if loss not in LOSSES:
            raise ValueError(f"training.trainable.loss is {loss!r}; allowed: {', '.join(LOSSES)}")
        self._target, self._loss = target, LOSSES[loss]
        self.model: PreTrainedModel = _new_model(config, target) if path is None else _loaded(path, target)
        if self.model.config.vocab_size < target.vocabulary_size:
            raise ValueError(
                f"training.trainable.path is {path!r}, a model with a vocabulary of {self.model.config.vocab_size}; "
                f"allowed: at least the target's, {target.vocabulary_size}"
            )
        # As it will draft, without dropout; the mode that a folder is loaded in, too.
        self.module: nn.Module = self.model.float().to(target.device).eval()

    def loss(self, tokens: Tensor) -> Tensor:
        """Scalar; tokens [B, T] int64.

        Raises:
            ValueError: T < 2, or more than the model has positions for.
        """
        most = getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or tokens.shape[1]
        if not 2 <= tokens.shape[1] <= most:
            raise ValueError(
                f"training.window is {tokens.shape[1]}; allowed: 2 to the trained model's context, {most} "
                "(training.trainable.config.max_position_embeddings)"
            )
        p_logits = torch.empty(0) if self._loss is cross_entropy else self._teacher(tokens)
        return self._loss(p_logits, self._logits(self.model, tokens), tokens)

    @torch.no_grad()
    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        """alpha is Σ min(p, q) on the text, at temperature 1 and, where both are argmaxes, at temperature 0."""
        drawn, greedy = [], []
        for windows in tokens.split(WINDOWS_AT_ONCE):
            p, q = self._teacher(windows).softmax(2), self._logits(self.model, windows).softmax(2)
            drawn.append(torch.minimum(p, q).sum(2).flatten())
            greedy.append((p.argmax(2) == q.argmax(2)).float().flatten())
        return {"alpha(T=1)": torch.cat(drawn).mean().item(), "alpha(T=0)": torch.cat(greedy).mean().item()}

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write the model with the target's tokenizer, as drafter=small_transformer loads it."""
        bars = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        self.model.save_pretrained(folder)
        if bars:
            logging.enable_progress_bar()
        self._target.tokenizer.save_pretrained(folder)

    @torch.no_grad()
    def _teacher(self, tokens: Tensor) -> Tensor:
        return self._logits(self._target.model.model, tokens)

    def _logits(self, model: PreTrainedModel, tokens: Tensor) -> Tensor:
        """[B, T, V] float32; rows of an output layer beyond V are padding."""
        return model(input_ids=tokens, use_cache=False).logits[..., : self._target.vocabulary_size].float()


def _loaded(path: str, target: Target) -> PreTrainedModel:
    served = load_draft_model(path=path, dtype="float32", attention="sdpa", key="training.trainable")(target)
    return served.model.requires_grad_(True)


def _new_model(config: dict[str, object], target: Target) -> PreTrainedModel:
    try:
        made = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config, vocab_size=target.vocabulary_size))
        made(
            input_ids=torch.zeros(1, 2, dtype=torch.int64)
        )  # what does not fit together is said by a pass at the latest
    except Exception as error:  # whatever a family makes of its config
        reason = textwrap.shorten(str(error), 160, placeholder=" ...")
        raise ValueError(f"training.trainable.config is {config!r}; transformers says: {reason}") from error
    return made
