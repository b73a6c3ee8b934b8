"""Attention masks of a pass over cache slots: causal or tree, full, sliding-window or chunked, by position.

B rows, M tokens read, W slots seen.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PretrainedConfig

from framework.models.attention import as_scores

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"  # kinds of layers in `layer_types`
SPAN_SIZES = ("sliding_window", "attention_chunk_size")  # config keys with the span of the last two kinds


@dataclass(frozen=True)
class Span:
    """Positions that a kind of layer attends to: all up to the query's, the last `window`, or those of its `chunk`."""

    window: int | None = None
    chunk: int | None = None

    @property
    def size(self) -> int | None:
        """Most positions that a query sees, its own included; None: all up to its own."""
        return self.window or self.chunk

    def within(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """[B, M, W] bool from positions [B, M] and [1 or B, W] int64; None where the span excludes nothing."""
        if self.window:
            return keys.unsqueeze(1) > queries.unsqueeze(2) - self.window
        if self.chunk:
            return keys.unsqueeze(1) // self.chunk == queries.unsqueeze(2) // self.chunk
        return None


class AttentionMasks:
    """Attention masks in the form that a model takes: one for all layers, or a dict from kind of layer to mask.

    Models whose config lists several kinds in `layer_types` take a dict, like the one from transformers' `generate`.

    Attributes:
        spans: the span of each kind of layer.
        shortest: size of the shortest span; None: all layers see all earlier positions.
    """

    def __init__(self, config: PretrainedConfig):
        """
        Args:
            config: config of the decoder.
        """
        window, chunk = (getattr(config, name, None) for name in SPAN_SIZES)
        by_kind = {FULL: Span(), SLIDING: Span(window=window), CHUNKED: Span(chunk=chunk)}
        kinds = layer_kinds(config)
        if not kinds:  # all layers are of one kind, which follows from the sizes
            kinds = {SLIDING if window else CHUNKED if chunk else FULL}
        # Layers with attention and a recurrent state are of another kind, and see everything.
        self.spans = {kind: by_kind[kind] for kind in sorted(kinds & by_kind.keys() or {FULL})}
        self._unmasked = kinds - by_kind.keys()
        self.shortest = min((span.size for span in self.spans.values() if span.size), default=None)

    def of(self, sees: Tensor, queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor | dict[str, Tensor | None]:
        """Additive masks [B, 1, M, W]: 0 where a query attends, the lowest number elsewhere.

        Args:
            sees: [B, M, W] bool: slots that hold the token itself or an earlier one on its path.
            queries: [B, M] int64 positions of the tokens read.
            keys: [1 or B, W] int64 positions of the tokens in the slots.
            dtype: dtype of the scores.
        """
        masks: dict[Span, Tensor] = {}
        for span in self.spans.values():
            if span not in masks:
                within = span.within(queries, keys)
                masks[span] = additive(sees if within is None else sees & within, dtype)
        if len(masks) == 1:
            return next(iter(masks.values()))
        return dict.fromkeys(self._unmasked) | {kind: masks[span] for kind, span in self.spans.items()}


def layer_kinds(config: PretrainedConfig) -> set[str]:
    """Kinds of layers in the `layer_types` of a config; empty if it has none."""
    return set(getattr(config, "layer_types", None) or [])


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, 1, M, W]: additive mask from a mask [B, M, W] bool."""
    # With a bool mask, eager attention is silently wrong, and sdpa converts it in every layer.
    return as_scores(seen, dtype).unsqueeze(1)
