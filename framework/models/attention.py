"""Attention implementations that a model may run with; two of them are our own, and read shared keys once.

B rows, M tokens read, W slots seen, K key-value heads, G query heads for each of these, D size of a key, E of a value.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from framework.kernels import small_attention

FUSED, FLEX = OURS = ("fused", "flex")
# Flash attention takes no explicit mask. transformers' flex attention repeats keys unless the number of heads is a
# power of two, and on a CPU compiles a kernel for every shape of an eager pass.
IMPLEMENTATIONS = (*OURS, "sdpa", "eager")
AUTO = "auto"  # fused attention if the probe passes with it, else the model's own
CHOICES = (AUTO, *IMPLEMENTATIONS)
MOST_TOKENS = 16  # over all rows, on a CPU; sdpa is faster for more, unless each row has one token
MOST_TOKENS_ON_GPU = 32  # per row; one block of sdpa reads all keys of a row and head, so that few rows leave most idle
# Arguments of transformers' sdpa, which is called if dropout or position_bias is in use.
SDPA_ARGUMENTS = ("scaling", "is_causal", "dropout", "position_bias")
# The added ones have no effect here: the mask includes windows, and queries and keys are already rotated.
KNOWN_ARGUMENTS = {*SDPA_ARGUMENTS, "position_ids", "sliding_window", "use_cache", "output_router_logits"}


def attention_of(model: PreTrainedModel) -> str:
    """Name of the attention implementation of a model's decoder."""
    return str(model.config.get_text_config()._attn_implementation)


def own_attention(model: PreTrainedModel) -> str:
    """Name of the attention implementation that transformers chooses for a model by default."""
    return model.get_correct_attn_implementation(None) if can_change(model) else attention_of(model)


def can_change(model: PreTrainedModel) -> bool:
    """Whether a loaded model can switch to another implementation; older architectures have only their own."""
    return model._can_set_attn_implementation()


@contextmanager
def running_with(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Run a model with another attention implementation in the block."""
    before = attention_of(model)
    if implementation == before:
        yield
        return
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def register() -> None:
    """Register both attentions of this module with transformers under their names."""
    AttentionInterface.register(FUSED, fused_attention)
    AttentionInterface.register(FLEX, blockwise_attention)
    for name in OURS:
        AttentionMaskInterface.register(name, sdpa_mask)


def fused_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Grouped-query attention that treats the heads with shared keys as more tokens of one head.

    Few tokens take another `Way` than sdpa. Causal passes without a mask, bool masks, dropout and position biases go to
    transformers' sdpa; the first two only without softcap and sinks, the last unless `Way.OPERATOR` is taken.

    Args:
        module: the calling layer.
        query: [B, K * G, M, D].
        key: [B, K, W, D].
        value: [B, K, W, E].
        attention_mask: [B, 1, M, W], added to the scores, or bool; None: causal, or every slot if M = 1.
        softcap: scores become softcap * tanh(score / softcap) (Gemma 2).
        s_aux: [K * G] attention sinks: the logit of an extra key without a value, per head (gpt-oss).
        others: scaling, and arguments of other implementations.

    Returns:
        [B, M, K * G, E], and None in place of the weights.

    Raises:
        TypeError: an argument, or a combination of arguments, is not implemented.
    """
    _refuse_unknown(FUSED, others, KNOWN_ARGUMENTS, "eager or sdpa")
    num_rows, num_heads, num_tokens, size = query.shape
    plain = softcap is None and s_aux is None
    causal = attention_mask is None and num_tokens > 1
    bool_mask = attention_mask if attention_mask is not None and attention_mask.dtype == torch.bool else None
    way, bias = _way(query, plain), others.get("position_bias")
    if (
        others.get("dropout")
        or (bias is not None and way is not Way.OPERATOR)
        or (plain and (causal or bool_mask is not None))
    ):
        if not plain:
            raise TypeError("fused attention does not combine softcap or s_aux with dropout or position_bias")
        given = {name: others[name] for name in SDPA_ARGUMENTS if name in others}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **given)
    if bool_mask is not None:
        attention_mask = as_scores(bool_mask, query.dtype)
    if causal and _is_causal(module, others.get("is_causal")):
        slots = torch.arange(key.shape[2], device=query.device)  # the tokens are in the first slots
        attention_mask = as_scores(slots <= slots[:num_tokens, None], query.dtype)[None, None]
    scale = others.get("scaling") or size**-0.5
    if way is Way.OPERATOR:
        if bias is not None:
            attention_mask = bias if attention_mask is None else attention_mask + bias
        mask, sinks = attention_mask, s_aux
        return small_attention.attend(query, key, value, mask=mask, sinks=sinks, scale=scale, softcap=softcap), None
    if way is Way.HEADS:
        mixed = _one_token_of_many_heads(query, key, value, attention_mask, scale)
        return mixed.transpose(1, 2).contiguous(), None
    shared = query.reshape(num_rows, key.shape[1], -1, size)  # [B, K, G * M, D]
    if attention_mask is not None:
        attention_mask = attention_mask.repeat(1, 1, num_heads // key.shape[1], 1)
    if way is Way.SDPA:
        mixed = scaled_dot_product_attention(shared, key, value, attn_mask=attention_mask, scale=scale)
    else:
        sinks = None if s_aux is None else s_aux.reshape(key.shape[1], -1, 1).expand(-1, -1, num_tokens).flatten(1)
        scores = _products(shared, key) * scale
        weights = _softmax(scores, attention_mask, softcap, sinks)
        mixed = _mixture(weights, value).to(query.dtype)
    return mixed.reshape(num_rows, num_heads, num_tokens, -1).transpose(1, 2).contiguous(), None


class Way(Enum):
    """Ways to compute attention over shared keys.

    Attributes:
        SDPA: PyTorch's kernel, in which one block reads all keys of a row and head.
        HEADS: the same for one token of many heads, where cuDNN gives the keys of a row and head to several blocks.
        PRODUCTS: matrix products and a softmax.
        OPERATOR: our operator for few tokens in a compiled graph on a CPU.
    """

    SDPA = "sdpa"
    HEADS = "heads"
    PRODUCTS = "products"
    OPERATOR = "operator"


def _way(query: Tensor, plain: bool) -> Way:
    """The fastest way for a query [B, K * G, M, D] that has an implementation of its options."""
    num_rows, _, num_tokens, _ = query.shape
    if query.device.type == "cuda":
        if num_tokens > MOST_TOKENS_ON_GPU:
            return Way.SDPA if plain else Way.PRODUCTS
        return Way.HEADS if plain and _is_half(query) and _cudnn_splits_keys() else Way.PRODUCTS
    is_small = num_tokens == 1 or num_rows * num_tokens <= MOST_TOKENS
    serves = query.device.type == "cpu" and not (torch.is_grad_enabled() and query.requires_grad)  # has no derivative
    if serves and is_small and torch.compiler.is_compiling() and small_attention.is_available():
        return Way.OPERATOR
    return Way.SDPA if plain else Way.PRODUCTS


def blockwise_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockMask | Tensor | None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """PyTorch's flex attention: kernels that compute the mask, and skip blocks of slots that no token sees.

    Calls without a BlockMask, as for prompts and cross-attention, go to fused attention. On a GPU compiled graphs hold
    a fused kernel, and eager passes call one; passes on a CPU are eager, and compute all scores. Arguments and results
    are those of `fused_attention`; sinks, position biases and dropout are not implemented.

    Raises:
        TypeError: an argument is not implemented.
    """
    if not isinstance(attention_mask, BlockMask):
        return fused_attention(module, query, key, value, attention_mask, softcap, s_aux, **others)
    known = KNOWN_ARGUMENTS - {"position_bias", "dropout"}
    _refuse_unknown(FLEX, others | {"s_aux": s_aux, "dropout": others.get("dropout") or None}, known, FUSED)
    as_is = torch.compiler.is_compiling() or query.device.type == "cpu"
    attend: Any = flex_attention if as_is else _compiled_flex()
    mixed = attend(
        query,
        key,
        value,
        score_mod=None if softcap is None else _softcapped(softcap),
        block_mask=attention_mask,
        scale=others.get("scaling"),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return mixed.transpose(1, 2).contiguous(), None


def _softcapped(softcap: float) -> Callable[..., Tensor]:
    """Change of a score in flex attention."""

    def change(score: Tensor, row: Tensor, head: Tensor, token: Tensor, slot: Tensor) -> Tensor:
        return softcap * (score / softcap).tanh()

    return change


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    return torch.compile(flex_attention)


def _refuse_unknown(name: str, arguments: dict[str, Any], known: set[str], instead: str) -> None:
    """
    Raises:
        TypeError: an argument that is in use is not among the known ones.
    """
    if unknown := [each for each, value in arguments.items() if each not in known and not _is_off(value)]:
        raise TypeError(f"{name} attention does not implement {', '.join(unknown)}; use attention={instead}")


def _is_off(argument: object) -> bool:
    return argument is None or argument is False


def _one_token_of_many_heads(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """[B, H, M, E] from [B, H, M, D], by a kernel for single tokens, which shares the keys of a head among blocks.

    Args:
        mask: [B, 1, M, W], added to the scores, or None.
    """
    num_heads, num_tokens = query.shape[1:3]
    if mask is not None and num_tokens > 1:
        mask = mask.expand(-1, num_heads, -1, -1).flatten(1, 2).unsqueeze(2)
    each = query.flatten(1, 2).unsqueeze(2)  # [B, H * M, 1, D]
    grouped = each.shape[1] > key.shape[1]
    mixed = scaled_dot_product_attention(each, key, value, attn_mask=mask, scale=scale, enable_gqa=grouped)
    return mixed.squeeze(2).unflatten(1, (num_heads, num_tokens))


@torch.compiler.assume_constant_result
def _cudnn_splits_keys() -> bool:
    """Whether sdpa of half precision goes to cuDNN, which has kernels for single tokens: since Hopper."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


def _products(query: Tensor, key: Tensor) -> Tensor:
    """[B, K, N, W] float32 (float64 for float64 inputs) from [B, K, N, D] and [B, K, W, D]."""
    if key.device.type == "cuda" and _is_half(key):  # matrix units sum half precision in float32
        products = torch.bmm(query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), out_dtype=torch.float32)
        return products.unflatten(0, key.shape[:2])
    return _at_least_float32(query) @ _at_least_float32(key).transpose(2, 3)


def _softmax(scores: Tensor, mask: Tensor | None, softcap: float | None, sinks: Tensor | None) -> Tensor:
    """[B, K, N, W] weights; with sinks, [K, N], they sum to less than 1."""
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if mask is not None:
        scores = scores + mask.to(scores.dtype)
    if sinks is None:
        return scores.softmax(3)
    sinks = sinks.to(scores.dtype).unsqueeze(-1)
    highest = torch.maximum(scores.amax(3, keepdim=True), sinks)
    weights = (scores - highest).exp()
    return weights / (weights.sum(3, keepdim=True) + (sinks - highest).exp())


def _mixture(weights: Tensor, value: Tensor) -> Tensor:
    """[B, K, N, E] from weights [B, K, N, W] and values [B, K, W, E]."""
    if value.device.type == "cuda" and _is_half(value):
        return weights.to(value.dtype) @ value
    return weights @ value.to(weights.dtype)


def _is_half(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.bfloat16, torch.float16)


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _is_causal(module: torch.nn.Module, given: bool | None) -> bool:
    return bool(getattr(module, "is_causal", True) if given is None else given)


def as_scores(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., M, W]: 0 where a bool mask is true, the lowest number of the dtype elsewhere."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)
