"""DFlash's layers: a block of mask tokens after pending, all scored in one pass (Chen et al., 2026, 2602.06036).

B rows, M tokens of a pass, T tokens before pending, S positions of a block, n hidden layers of the target, H hidden,
Vd draft vocabulary. The block of a row fills positions T to T + S - 1; slot = position.
"""

from typing import cast

import torch
from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from framework.models.attention_masks import additive
from framework.models.cache_slots import Slots


class MarkovHead(nn.Module):
    """Adds W2 W1[previous token] to the logits of a position, so that a block is drafted token by token (DSpark)."""

    def __init__(self, *, num_tokens: int, draft_vocabulary: int, rank: int):
        super().__init__()
        self.markov_w1 = nn.Embedding(num_tokens, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, Vd] from previous tokens [B] int64."""
        return self.markov_w2(self.embedded(tokens))

    def embedded(self, tokens: Tensor) -> Tensor:
        """[B, rank] from tokens [B] int64."""
        return self.markov_w1(tokens.clamp(max=self.markov_w1.num_embeddings - 1))


class ConfidenceHead(nn.Module):
    """Predicts the probability that the token of a position is accepted, before it is drafted (DSpark)."""

    def __init__(self, width: int):
        super().__init__()
        self.proj = nn.Linear(width, 1)

    def forward(self, states: Tensor) -> Tensor:
        """[B] in [0, 1] from states [B, width]."""
        return self.proj(states).squeeze(-1).sigmoid()


class DflashLayers(nn.Module):
    """Qwen3 layers whose block attends to itself in both directions, and to the target's states before it.

    The states of n of the target's layers are fused to c = RMS(fc(states)). In every layer, c provides the keys and
    values of the tokens before pending. They depend on no other layer, so they are written once, when a token is
    committed. The input of the block is the embeddings of pending and of S - 1 mask tokens.

    Attributes:
        embed_tokens: embeddings of the drafter's own; None: the target's.
        lm_head: output layer of its own; None: the target's.
        d2t: [Vd] int64: draft token i is token i + d2t[i]; None: both vocabularies are the same.
        markov_head: None: a position does not depend on the tokens drafted before it.
        confidence_head: None: no confidence is predicted.
    """

    d2t: Tensor | None

    def __init__(
        self,
        config: Qwen3Config,
        *,
        num_features: int,
        own_embeddings: bool = False,
        own_output: bool = False,
        draft_vocabulary: int | None = None,
        markov_rank: int = 0,
        confidence: str | None = None,
    ):
        """
        Args:
            config: sizes of the layers.
            num_features: n * H of the target.
            own_embeddings: whether the drafter has embeddings of its own.
            own_output: whether it has an output layer of its own.
            draft_vocabulary: Vd; None: that of the target.
            markov_rank: rank of the Markov head; 0: none.
            confidence: input of the confidence head: hidden, or hidden_and_token; None: no such head.
        """
        super().__init__()
        width, vocabulary = config.hidden_size, draft_vocabulary or config.vocab_size
        self.fc = nn.Linear(num_features, width, bias=False)
        self.hidden_norm, self.norm = (Qwen3RMSNorm(width, eps=config.rms_norm_eps) for _ in range(2))
        self.layers = nn.ModuleList(Qwen3DecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.rotary_emb = Qwen3RotaryEmbedding(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, width) if own_embeddings else None
        self.lm_head = nn.Linear(width, vocabulary, bias=False) if own_output else None
        self.register_buffer("d2t", torch.zeros(vocabulary, dtype=torch.int64) if draft_vocabulary else None)
        self.markov_head = self.confidence_head = None
        if markov_rank:
            self.markov_head = MarkovHead(num_tokens=config.vocab_size, draft_vocabulary=vocabulary, rank=markov_rank)
        self._confidence = confidence
        if confidence:
            self.confidence_head = ConfidenceHead(width + (markov_rank if confidence == "hidden_and_token" else 0))

    def write_context(self, features: Tensor, positions: Tensor, slots: Slots) -> None:
        """Write keys and values of committed tokens, within a pass of `slots`.

        Args:
            features: [B, M, n * H] the target's states.
            positions: [1 or B, M] int64.
            slots: slots of as many layers, in a pass that writes these positions.
        """
        fused = self.hidden_norm(self.fc(features.to(self.fc.weight)))
        cosine, sine = self.rotary_emb(fused, positions)
        for index, layer in enumerate(self.layers):
            attention = cast(Qwen3Attention, layer.self_attn)
            key, value = (
                each.unflatten(-1, (-1, attention.head_dim))
                for each in (attention.k_proj(fused), attention.v_proj(fused))
            )
            key = attention.k_norm(key).transpose(1, 2)
            _, key = apply_rotary_pos_emb(key, key, cosine, sine)
            slots.cache.update(key, value.transpose(1, 2), index)

    def forward(self, embedded: Tensor, positions: Tensor, slots: Slots, sees: Tensor) -> Tensor:
        """
        Args:
            embedded: [B, S, H] embeddings of pending and of the mask tokens.
            positions: [B, S] int64.
            slots: slots in a pass that writes these positions.
            sees: [B, S, W] bool: the slots that each position attends to.

        Returns:
            [B, S, H] inputs of the output layer.
        """
        states, mask = embedded.to(self.fc.weight), additive(sees, self.fc.weight.dtype)
        rotary = self.rotary_emb(states, positions)
        for layer in self.layers:
            states = layer(
                states,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=slots.cache,
                position_embeddings=rotary,
            )
        return self.norm(states)

    def confidence(self, states: Tensor, previous: Tensor) -> Tensor:
        """[B] in [0, 1]: predicted acceptance of the token of one position.

        Args:
            states: [B, H] outputs of the layers at the position.
            previous: [B] int64: the token before it.
        """
        assert self.confidence_head is not None, "the drafter has no confidence head"
        if self._confidence == "hidden_and_token":
            assert self.markov_head is not None, "the confidence head needs the Markov head"
            states = torch.cat([states, self.markov_head.embedded(previous)], -1)
        return self.confidence_head(states)
