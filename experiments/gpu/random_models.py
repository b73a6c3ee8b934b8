"""Models of any size with random weights, built on the device itself, and prompts for them."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from drafters.small_transformer import SmallTransformer
from experiments.gpu.parts import drafter_named
from framework.conformance.tiny_models import tiny_tokenizer
from framework.core.drafter import Drafter
from framework.models import attention as fused_attention
from framework.models.attention import AUTO
from framework.models.cached_lm import CachedLM
from framework.models.pretrained import DTYPES, as_draft_model, served
from framework.models.target import Target


def random_llama(sizes: Mapping[str, Any], *, device: torch.device, dtype: str, seed: int = 0) -> PreTrainedModel:
    """A Llama with random weights.

    Args:
        sizes: entries of its config, in place of transformers' defaults.
        device: device on which the weights are drawn.
        dtype: dtype of the weights.
        seed: seed of the weights; the global generators are left unchanged.
    """
    fused_attention.register()
    config = AutoConfig.for_model("llama", **sizes)
    generators = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=generators), torch.device(device):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])
    return model.eval().requires_grad_(False)


def random_target(sizes: Mapping[str, Any], *, device: torch.device, dtype: str) -> Target:
    """A target with random weights and an unused tokenizer."""
    return random_target_of(random_llama(sizes, device=device, dtype=dtype), AUTO)


def random_pair(
    sizes: Mapping[str, Any], *, layers: int, factor: float, device: torch.device, dtype: str
) -> tuple[Target, CachedLM]:
    """A random target, and a draft model of its first layers that agrees with it as a trained one would.

    Args:
        sizes: entries of the target's config.
        layers: layers of the draft model, which has copies of the target's embeddings and head.
        factor: factor on the outputs of the target's other layers; the smaller, the higher alpha.
        device: device of both models.
        dtype: dtype of both models.
    """
    large = random_llama(sizes, device=device, dtype=dtype)
    small = random_llama({**sizes, "num_hidden_layers": layers}, device=device, dtype=dtype)
    small.load_state_dict(large.state_dict(), strict=False)  # which leaves the target's other layers out
    for layer in large.model.layers[layers:]:
        layer.self_attn.o_proj.weight.mul_(factor)
        layer.mlp.down_proj.weight.mul_(factor)
    target = random_target_of(large, AUTO)
    return target, as_draft_model(small, target)


def random_target_of(model: PreTrainedModel, attention: str) -> Target:
    """A target of a random model, with an attention implementation of `target.attention` and an unused tokenizer."""
    width = model.config.vocab_size
    cached = served(model, attention, vocabulary_size=width)
    return Target(cached, tiny_tokenizer(), vocabulary_size=width, fingerprint="random")


def drafter_for(name: str, sizes: Mapping[str, Any], target: Target) -> Drafter:
    """A drafter of conf/drafter for a random target; `small_transformer` has a random Llama of these sizes."""
    if name != "small_transformer":
        return drafter_named(name, target)

    def model(target: Target) -> CachedLM:
        dtype = str(target.model.model.dtype).removeprefix("torch.")
        return as_draft_model(random_llama(sizes, device=target.device, dtype=dtype, seed=1), target)

    return SmallTransformer(target, model=model)


def random_prompts(target: Target, lengths: list[int]) -> list[list[int]]:
    """Random tokens of the target's vocabulary, the same on every device."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(target.vocabulary_size, (length,), generator=generator).tolist() for length in lengths]
