"""EAGLE's layers: predict the target's next state from its states at a token and from the token after it.

B rows, M pairs read, W seen, E width of embeddings, H hidden, n hidden layers of the target, Vd draft vocabulary.
"""

from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3MLP

from framework.heads.draft_layer import TargetEnds
from framework.models.target import Target

Config: TypeAlias = LlamaConfig | Qwen3Config  # qwen3: norms of queries and keys


class Block(nn.Module):
    """Attention and gated MLP of transformers' Llama or Qwen3 layer; the attention may read a wider input."""

    def __init__(self, config: Config, *, width: int, biases: frozenset[str] = frozenset()):
        """
        Args:
            config: sizes of the layer.
            width: width of the attention's input.
            biases: projections of the attention that have a bias, among q, k, v, o.
        """
        super().__init__()
        is_qwen3 = isinstance(config, Qwen3Config)
        self.self_attn = (Qwen3Attention if is_qwen3 else LlamaAttention)(config, 0)
        for kind in "qkvo":
            old = getattr(self.self_attn, f"{kind}_proj")
            inputs = old.in_features if kind == "o" else width
            setattr(self.self_attn, f"{kind}_proj", nn.Linear(inputs, old.out_features, bias=kind in biases))
        self.mlp = (Qwen3MLP if is_qwen3 else LlamaMLP)(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, inputs: Tensor, residual: Tensor, rotary: tuple[Tensor, Tensor], pairs: Any, mask: Tensor
    ) -> Tensor:
        """[B, M, H]: residual [B, M, H] plus attention to inputs [B, M, width], plus the MLP of the sum."""
        attended, _ = self.self_attn(
            inputs, position_embeddings=rotary, attention_mask=mask.to(inputs.device), past_key_values=pairs
        )
        states = residual + attended
        return states + self.mlp(self.post_attention_layernorm(states))


class WideBlock(Block):
    """A block with the two norms before its attention."""

    def __init__(self, config: Config, *, width: int, biases: frozenset[str]):
        """Arguments as of `Block`; the embeddings fill what the states leave of the width."""
        super().__init__(config, width=width, biases=biases)
        hidden = config.hidden_size
        self.input_layernorm = LlamaRMSNorm(width - hidden, eps=config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(hidden, eps=config.rms_norm_eps)


class EagleLayer(nn.Module):
    """Reads pairs of a state and the token after it; predicts the state at that token, which scores the next token.

    The layer reads the drawn token, which resolves the uncertainty of sampling. Predicted states can replace known
    ones, so the layer drafts autoregressively.

    Attributes:
        config: sizes of the layer.
        ends: embeddings and output layer of the target.
        embed_tokens: embeddings of the drafter's own; None: the target's.
        hidden_layers: the target's hidden layers that known states are made from; (): they are the input of its output
            layer.
    """

    fc: nn.Linear

    def __init__(self, target: Target, config: Config, *, own_embeddings: bool, hidden_layers: tuple[int, ...] = ()):
        super().__init__()
        config._attn_implementation = "sdpa"
        self.config, self.ends, self.hidden_layers = config, TargetEnds(target), hidden_layers
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size) if own_embeddings else None

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def embedding_size(self) -> int:
        """E."""
        return self.ends.embedding_size if self.embed_tokens is None else self.embed_tokens.embedding_dim

    @property
    def support(self) -> Tensor | None:
        """[Vd] int64: token ids of the draft vocabulary; None: the target's vocabulary."""
        return None

    def known(self, states: Tensor, features: Tensor | None) -> Tensor:
        """[B, M, H] states to pair with tokens, from `Outcome.states` [B, M, H] and `Outcome.features`."""
        raise NotImplementedError

    def forward(self, states: Tensor, tokens: Tensor, positions: Tensor, *, pairs: Any, mask: Tensor) -> Tensor:
        """
        Args:
            states: [B, M, H] known or predicted states.
            tokens: [B, M] int64: the token after each state.
            positions: [1 or B, M] int64: positions of the pairs in the text.
            pairs: a `Cache` of transformers, or its `update`, with the keys and values of earlier passes.
            mask: [1 or B, 1, M, W] added to the scores.

        Returns:
            [B, M, H] states predicted at these tokens.
        """
        raise NotImplementedError

    def scored(self, states: Tensor) -> Tensor:
        """[..., Vd] logits before temperature from predicted states [..., H]."""
        raise NotImplementedError

    def _embedded(self, tokens: Tensor) -> Tensor:
        """[..., E] from tokens [...] int64."""
        own = self.embed_tokens
        embedded = self.ends.embedded(tokens) if own is None else own(tokens.clamp(max=own.num_embeddings - 1))
        return embedded.to(self.fc.weight)


class EagleOneLayer(EagleLayer):
    """EAGLE-1 and 2 (Li et al., 2024, 2401.15077): the predicted states are scored by the target's output layer.

    f = fc([e(x); h]), s = f + Attn(f), y = s + MLP(RMS(s)), with h the input of the output layer.
    """

    def __init__(
        self,
        target: Target,
        config: Config,
        *,
        has_bias: bool = True,
        biases: frozenset[str] = frozenset(),
        own_embeddings: bool = False,
    ):
        """
        Args:
            target: provides the output layer, and the embeddings if own_embeddings is False.
            config: sizes of the layer.
            has_bias: whether fc has a bias.
            biases: as for `Block`.
        """
        super().__init__(target, config, own_embeddings=own_embeddings)
        hidden = config.hidden_size
        self.fc = nn.Linear(self.embedding_size + hidden, hidden, bias=has_bias)
        self.layers = nn.ModuleList([Block(config, width=hidden, biases=biases)])

    def known(self, states: Tensor, features: Tensor | None) -> Tensor:
        return states

    def forward(self, states: Tensor, tokens: Tensor, positions: Tensor, *, pairs: Any, mask: Tensor) -> Tensor:
        device = states.device
        joined = self.fc(torch.cat([self._embedded(tokens), states.to(self.fc.weight)], -1))
        rotary = self.rotary_emb(joined, positions.to(joined.device))
        return self.layers[0](joined, joined, rotary, pairs, mask).to(device)

    def scored(self, states: Tensor) -> Tensor:
        return self.ends.scored(states)


class EagleThreeLayer(EagleLayer):
    """EAGLE-3 (Li et al., 2025, 2503.01840): reads several of the target's hidden layers, and has an output layer.

    g = fc(a), with a the hidden layers' states; u = [RMS(e(x)); RMS(g)], s = g + Attn(u), y = s + MLP(RMS(s)), and the
    logits are W RMS(y). A predicted y takes the place of g. In P-EAGLE (Hui et al., 2026, 2602.01469), all drafted
    tokens are predicted at once: x is a mask token from the second one on, and a the learned mask_hidden.

    Attributes:
        d2t: [Vd] int64: draft token i is token i + d2t[i]; None: both vocabularies are the same.
        t2d: [V] bool: the tokens of the draft vocabulary.
        flags: the four options of norms, by their names.
        mask_token: of P-EAGLE; None: the layer reads its own predictions.
    """

    d2t: Tensor | None
    t2d: Tensor | None

    def __init__(
        self,
        target: Target,
        config: Config,
        *,
        hidden_layers: tuple[int, ...],
        draft_vocabulary: int | None = None,
        biases: frozenset[str] = frozenset(),
        own_embeddings: bool = False,
        norm_before_residual: bool = False,
        norm_before_fc: bool = False,
        fc_norm: bool = False,
        norm_output: bool = False,
        mask_token: int | None = None,
    ):
        """
        Args:
            target: provides the embeddings if own_embeddings is False.
            config: sizes of the layer; its vocab_size is V.
            hidden_layers: n layers of the target, by the index of transformers' `hidden_states`.
            draft_vocabulary: Vd, at first the tokens of the smallest ids; None: V.
            biases: as for `Block`.
            norm_before_residual: whether RMS(g) takes the place of g in s.
            norm_before_fc: whether all n states together are normed before fc.
            fc_norm: whether each of them is.
            norm_output: whether RMS(y) takes the place of y as the next state.
            mask_token: id of the mask token of P-EAGLE.
        """
        super().__init__(target, config, own_embeddings=own_embeddings, hidden_layers=hidden_layers)
        hidden, num_states, width = config.hidden_size, len(hidden_layers), self.ends.hidden_size

        def norm(size: int) -> LlamaRMSNorm:
            return LlamaRMSNorm(size, eps=config.rms_norm_eps)

        self.input_norm = norm(num_states * width) if norm_before_fc else None
        self.fc_norm = nn.ModuleList(norm(width) for _ in range(num_states)) if fc_norm else None
        self.fc = nn.Linear(num_states * width, hidden, bias=False)
        self.midlayer = WideBlock(config, width=self.embedding_size + hidden, biases=biases)
        self.norm = norm(hidden)
        self.lm_head = nn.Linear(hidden, draft_vocabulary or config.vocab_size, bias=False)
        ids = None if draft_vocabulary is None else torch.zeros(draft_vocabulary, dtype=torch.int64)
        self.register_buffer("d2t", ids)
        self.register_buffer("t2d", None if ids is None else torch.arange(config.vocab_size) < len(ids))
        self.flags = {
            "norm_before_residual": norm_before_residual,
            "norm_before_fc": norm_before_fc,
            "fc_norm": fc_norm,
            "norm_output": norm_output,
        }
        self.mask_token = mask_token
        self.mask_hidden = None if mask_token is None else nn.Parameter(torch.zeros(1, 1, num_states * width))
        self._width = target.vocabulary_size

    def draft_from(self, tokens: Tensor) -> None:
        """Make these tokens [Vd] int64 the draft vocabulary."""
        assert self.d2t is not None and self.t2d is not None, "built without draft_vocabulary"
        self.d2t.copy_(tokens - torch.arange(len(tokens), device=tokens.device))
        self.t2d.zero_()[tokens] = True

    @property
    def support(self) -> Tensor | None:
        return None if self.d2t is None else self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def known(self, states: Tensor, features: Tensor | None) -> Tensor:
        assert features is not None, "the layer needs Outcome.features"
        device, features = features.device, features.to(self.fc.weight)
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            each = zip(self.fc_norm, features.chunk(len(self.fc_norm), -1), strict=True)
            features = torch.cat([norm(part) for norm, part in each], -1)
        return self.fc(features).to(device)

    def masked_pair(self) -> tuple[int, Tensor]:
        """Token and state [1, 1, H] that P-EAGLE reads in the place of drafted ones."""
        assert self.mask_token is not None and self.mask_hidden is not None, "built without mask_token"
        return self.mask_token, self.known(self.mask_hidden, self.mask_hidden)

    def forward(self, states: Tensor, tokens: Tensor, positions: Tensor, *, pairs: Any, mask: Tensor) -> Tensor:
        device, states, block = states.device, states.to(self.fc.weight), self.midlayer
        normed = block.hidden_norm(states)
        inputs = torch.cat([block.input_layernorm(self._embedded(tokens)), normed], -1)
        rotary = self.rotary_emb(inputs, positions.to(inputs.device))
        predicted = block(inputs, normed if self.flags["norm_before_residual"] else states, rotary, pairs, mask)
        return (self.norm(predicted) if self.flags["norm_output"] else predicted).to(device)

    def scored(self, states: Tensor) -> Tensor:
        given = states.to(self.lm_head.weight)
        logits = self.lm_head(given if self.flags["norm_output"] else self.norm(given))
        return (logits if self.d2t is not None else logits[..., : self._width]).to(states.device)
