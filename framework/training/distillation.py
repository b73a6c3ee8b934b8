"""Distillation of a small model from the target, so that its drafts are accepted more often.

N positions of the training text with a known next token, V vocabulary. p is the target's distribution and q the small
model's, both at temperature 1.
"""

import math
import textwrap
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from framework.core.option_error import OptionError
from framework.models.hub import without_progress_bars
from framework.models.pretrained import load_draft_model
from framework.models.target import Target
from framework.training.batch_shares import mean_over_processes
from framework.training.trainable import ids_of, is_learned, model_inputs, texts_of

WINDOWS_AT_ONCE = 8  # batch size of evaluation
SPECIAL_TOKENS = ("pad_token_id", "eos_token_id", "decoder_start_token_id")  # copied from the target's config


def cross_entropy(p_logits: Tensor, q_logits: Tensor, next_tokens: Tensor) -> Tensor:
    """-log q of the text's own tokens; p is not used."""
    return functional.cross_entropy(q_logits, next_tokens)


def forward_kl(p_logits: Tensor, q_logits: Tensor, next_tokens: Tensor) -> Tensor:
    """KL(p || q): q must cover every token that p covers."""
    return functional.kl_div(q_logits.log_softmax(1), p_logits.log_softmax(1), log_target=True, reduction="batchmean")


def reverse_kl(p_logits: Tensor, q_logits: Tensor, next_tokens: Tensor) -> Tensor:
    """KL(q || p): q must avoid every token that p avoids."""
    return forward_kl(q_logits, p_logits, next_tokens)


def total_variation(p_logits: Tensor, q_logits: Tensor, next_tokens: Tensor) -> Tensor:
    """Half of Σ |p - q|, which is 1 - alpha, the rejection rate itself (Zhou et al., 2024)."""
    return (p_logits.softmax(1) - q_logits.softmax(1)).abs().sum(1).mean() / 2


def jensen_shannon(p_logits: Tensor, q_logits: Tensor, next_tokens: Tensor) -> Tensor:
    """Half of KL(p || m) + KL(q || m), where m is the mean of p and q: a compromise of both KLs, at most log 2."""
    log_p, log_q = p_logits.log_softmax(1), q_logits.log_softmax(1)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    return (forward_kl(log_p, log_m, next_tokens) + forward_kl(log_q, log_m, next_tokens)) / 2


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
DIVERGENCES: dict[str, Loss] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jensen_shannon": jensen_shannon,
    "total_variation": total_variation,
}
LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, **DIVERGENCES}


class Distillation:
    """Knowledge distillation for speculative decoding (DistillSpec; Zhou et al., 2024), on windows of text.

    A target with an encoder is distilled on pairs of source and answer, with its distributions over the answers; a
    decoder-only model of such a target reads the answers alone.
    """

    def __init__(self, target: Target, *, loss: str, path: str | None, config: dict[str, object]):
        """
        Args:
            target: the teacher; stays frozen.
            loss: one of LOSSES.
            path: folder or hub name of a model to train further; None: a new model.
            config: transformers config of a new model; its vocabulary size is the target's.

        Raises:
            OSError: no loadable model at the path.
            ValueError: an option out of range, a model with another tokenizer, a model with a smaller vocabulary than
                the target's, or a new model with an encoder for a target without one.
        """
        if loss not in LOSSES:
            raise OptionError("loss", loss, f"{', '.join(LOSSES)}")
        self._target, self._loss = target, LOSSES[loss]
        self.model: PreTrainedModel = _new_model(config, target) if path is None else _loaded(path, target)
        if self.model.config.vocab_size < target.vocabulary_size:
            problem = f"a model with a vocabulary of {self.model.config.vocab_size}"
            raise OptionError("path", path, f"at least the target's, {target.vocabulary_size}", problem)
        # Without dropout, as the model drafts, and as a model from a folder is loaded.
        self.module: nn.Module = self.model.float().to(target.device).eval()

    def loss(self, tokens: Tensor) -> Tensor:
        """Scalar loss of windows [B, T] or pairs [B, 2, T] int64.

        Raises:
            ValueError: T < 2, or T is larger than the model's context.
        """
        length = tokens.shape[-1]
        most = getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or length
        if not 2 <= length <= most:
            allowed = f"2 to the trained model's context, {most} (trainable.config.max_position_embeddings)"
            raise OptionError("window", length, allowed)
        p_logits = torch.empty(0) if self._loss is cross_entropy else self._teacher(tokens)
        next_tokens = texts_of(tokens)[:, 1:]
        known = is_learned(next_tokens)
        mean = self._loss(p_logits, self._logits(self.model, tokens), next_tokens[known])
        return mean * (known.sum() / mean_over_processes(known.sum()))

    @torch.no_grad()
    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        """alpha on the text: the mean of Σ min(p, q) at temperature 1, and the argmax agreement at temperature 0."""
        drawn, greedy = [], []
        for some in tokens.split(WINDOWS_AT_ONCE):
            p, q = self._teacher(some).softmax(1), self._logits(self.model, some).softmax(1)
            drawn.append(torch.minimum(p, q).sum(1))
            greedy.append((p.argmax(1) == q.argmax(1)).float())
        return {"alpha(T=1)": torch.cat(drawn).mean().item(), "alpha(T=0)": torch.cat(greedy).mean().item()}

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write the model with the target's tokenizer, in the form that drafter=small_transformer loads."""
        save_model(folder, self.model, self._target.tokenizer)

    @torch.no_grad()
    def _teacher(self, tokens: Tensor) -> Tensor:
        return self._logits(self._target.model.model, tokens)

    def _logits(self, model: PreTrainedModel, tokens: Tensor) -> Tensor:
        """[N, V] float32 logits; the output layer's padding beyond V is cut off."""
        texts = texts_of(tokens)
        inputs = model_inputs(tokens) if model.config.is_encoder_decoder else {"input_ids": ids_of(texts)}
        logits = model(**inputs, use_cache=False).logits[:, :-1, : self._target.vocabulary_size]
        return logits[is_learned(texts[:, 1:])].float()


def save_model(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a model with its tokenizer, without a progress bar."""
    with without_progress_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _loaded(path: str, target: Target) -> PreTrainedModel:
    served = load_draft_model(path=path, dtype="float32", attention="sdpa")(target)
    return served.model.requires_grad_(True)


def _new_model(config: dict[str, object], target: Target) -> PreTrainedModel:
    read = torch.zeros(1, 2, dtype=torch.int64)
    try:
        settings = AutoConfig.for_model(**config, vocab_size=target.vocabulary_size)
        if settings.is_encoder_decoder:
            for key in SPECIAL_TOKENS:  # None if the target's config lacks it
                setattr(settings, key, getattr(target.model.model.config, key, None))
            made = AutoModelForSeq2SeqLM.from_config(settings)
            made(**model_inputs(read.unsqueeze(1).expand(-1, 2, -1)))
        else:
            made = AutoModelForCausalLM.from_config(settings)
            made(input_ids=read)
    except Exception as error:  # a model family may raise anything; the pass finds remaining misfits
        reason = textwrap.shorten(str(error), 160, placeholder=" ...")
        raise OptionError("config", config, f"a config that transformers accepts; it says: {reason}") from error
    if settings.is_encoder_decoder and not target.model.text_start:
        allowed = "a decoder-only one, since the target is decoder-only and has no source for an encoder"
        raise OptionError("config.model_type", settings.model_type, allowed)
    return made
