"""Attention implementations that a model may run with, and the one that transformers chooses for it."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from framework.models import attention

# Flash attention takes no explicit mask, and flex attention no dense one.
IMPLEMENTATIONS = (attention.NAME, "sdpa", "eager")
AUTO = "auto"  # fused attention if the probe passes with it, else the model's own
CHOICES = (AUTO, *IMPLEMENTATIONS)


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
