"""Growing a T5 to larger sizes without a change of its outputs (Net2Net, Chen et al., 2016, 1511.05641)."""

import torch
from torch import Tensor
from transformers import T5ForConditionalGeneration

SIZES = ("d_model", "d_ff", "num_heads", "num_layers", "num_decoder_layers")
NOISE = 0.5  # of a random weight; it lets the copies of a weight part when they are trained
READING, WRITING = ("q", "k", "v", "wi", "wi_0", "wi_1"), ("o", "wo")


def differing_size(small: T5ForConditionalGeneration, large: T5ForConditionalGeneration) -> str | None:
    """Name of a size of `large` to which `small` cannot be grown; None: it can be."""
    ours, theirs = small.config, large.config
    for name in (*SIZES, "d_kv", "vocab_size", "feed_forward_proj", "tie_word_embeddings", "scale_decoder_outputs"):
        before, after = getattr(ours, name), getattr(theirs, name)
        if before != after and (name not in SIZES or after < before or (name == "d_model" and after % before)):
            return name
    return None


@torch.no_grad()
def grow_into(small: T5ForConditionalGeneration, large: T5ForConditionalGeneration) -> None:
    """Give `large`, which has random weights, weights with which its outputs are those of `small`.

    The hidden state is repeated d_model / d_model times, which root mean square normalisation leaves as it is. Weights
    that read it are divided among the copies, unevenly, so that training can tell the copies apart. New heads, new
    units and new blocks write nothing at first.
    """
    times = large.config.d_model // small.config.d_model
    known = small.state_dict()
    for name, weight in large.named_parameters():
        *_, layer, _ = name.split(".")
        old = known.get(name)
        if layer in WRITING:
            weight.zero_()
            if old is not None:
                weight[:, : old.shape[1]] = old.repeat(times, 1)
        elif old is None:
            continue
        elif layer in READING:
            weight[: old.shape[0]] = _divided(old, times, like=weight[: old.shape[0]])
        elif layer == "relative_attention_bias":
            weight.zero_()
            weight[:, : old.shape[1]] = old
        else:  # embeddings and norms
            weight.copy_(old.repeat(*([1] * (old.ndim - 1)), times))
    # The output layer sums over the copies, and may divide by the root of d_model.
    large.decoder.final_layer_norm.weight.div_(times**0.5 if large.config.scale_decoder_outputs else times)


def _divided(old: Tensor, times: int, *, like: Tensor) -> Tensor:
    """[A, times * B]: parts that add up to `old`, [A, B], each apart by noise as large as random weights."""
    noise = NOISE * like.reshape(len(old), times, -1)
    parts = old.unsqueeze(1) / times + (noise - noise.mean(1, keepdim=True))
    return parts.reshape(len(old), -1)
