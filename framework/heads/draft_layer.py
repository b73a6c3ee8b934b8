"""Draft layer: one trained Transformer layer between the target's frozen embeddings and output layer.

M tokens read, W seen, H hidden, V vocabulary; `...` stands for any leading axes.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from framework.models.target import Target

HEAD_WIDTH = 64  # width of an attention head

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention: queries, keys and values, [..., heads, M, H / heads] each, to an output of the queries' shape."""


class TargetEnds:
    """Embeddings and output layer of a target, which a module uses without holding them as parts of its own.

    Attributes:
        hidden_size: H, the width of the output layer's input.
        embedding_size: width of the embeddings.
        num_known: tokens with an embedding.
        like: dtype and device of the output layer.
    """

    def __init__(self, target: Target):
        model = target.model.model
        embeddings, output = model.get_input_embeddings(), model.get_output_embeddings()
        self.num_known, self.embedding_size = embeddings.weight.shape
        self.hidden_size: int = output.weight.shape[1]
        self._width = target.vocabulary_size
        self.like = like = {"dtype": output.weight.dtype, "device": output.weight.device}  # int8 layers compute it
        # Functions, so that a copy of a module copies nothing of the target.
        self._embeddings: Callable[[Tensor], Tensor] = lambda tokens: embeddings(tokens)
        self._output: Callable[[Tensor], Tensor] = lambda states: output(states.to(**like))

    def embedded(self, tokens: Tensor) -> Tensor:
        """[..., H] from tokens [...] int64."""
        return self._embeddings(tokens.clamp(min=0, max=self.num_known - 1))

    def scored(self, states: Tensor) -> Tensor:
        """[..., V] logits before temperature from states [..., H]; the output layer's padding beyond V is cut off."""
        return self._output(states)[..., : self._width].to(states.device)


class DraftLayer(nn.Module):
    """Joins the target's states with token embeddings; the target's own output layer scores the result.

    Embeddings and output layer are the target's and stay frozen; only the layer between them is trained.
    """

    def __init__(self, target: Target):
        """
        Args:
            target: provides the embeddings and the output layer; the layer gets the output layer's dtype and device.
        """
        super().__init__()
        self._ends = ends = TargetEnds(target)
        hidden_size = ends.hidden_size
        self._num_heads = hidden_size // HEAD_WIDTH if hidden_size % HEAD_WIDTH == 0 else 1
        self.join = nn.Linear(hidden_size + ends.embedding_size, hidden_size, bias=False)
        self.attention_norm, self.mlp_norm, self.last_norm = (nn.RMSNorm(hidden_size) for _ in range(3))
        self.attention_in = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.attention_out = nn.Linear(hidden_size, hidden_size, bias=False)
        self.mlp_in = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.mlp_out = nn.Linear(4 * hidden_size, hidden_size, bias=False)
        self.to(**ends.like)

    @property
    def hidden_size(self) -> int:
        return self.join.out_features

    def joined(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """[..., H] from states of the target [..., H] and tokens [...] int64."""
        embedded = self._ends.embedded(tokens)
        return self.join(torch.cat([hidden.to(self.join.weight), embedded.to(self.join.weight)], -1))

    def passed(self, states: Tensor, attend: Attend) -> Tensor:
        """[..., M, H] states after attention and MLP, both pre-norm."""
        # [..., heads, M, H / heads] each
        query, key, value = (
            each.unflatten(-1, (self._num_heads, -1)).transpose(-3, -2)
            for each in self.attention_in(self.attention_norm(states)).chunk(3, -1)
        )
        states = states + self.attention_out(attend(query, key, value).transpose(-3, -2).flatten(-2))
        return states + self.mlp_out(functional.silu(self.mlp_in(self.mlp_norm(states))))

    def scored(self, states: Tensor) -> Tensor:
        """[..., V] logits before temperature from states [..., H]; the output layer's padding beyond V is cut off."""
        return self._ends.scored(states)
