"""Medusa heads written in the layouts of `published_medusa.py`, for other projects."""

from typing import Any

from torch import Tensor

from framework.core.option_error import OptionError
from framework.heads.medusa_heads import MedusaHeads, load_heads
from framework.heads.published_files import Export
from framework.heads.published_medusa import ORIGINAL, ORIGINAL_FILE, VLLM
from framework.models.target import Target


def original_medusa(path: str, target: Target, *, name: str) -> Export:
    """Heads in the original project's layout: v2 if the target's output layer scores them, else v1.

    Output layers W P_k of "mapped" heads are multiplied out.

    Args:
        path: folder of the heads, or a published drafter.
        target: the target that they draft for.
        name: folder or hub name of the target.

    Raises:
        OSError, ValueError: as by `load_heads`; or an output layer has a bias, which the layout lacks.
    """
    heads, accuracies = load_heads(path, target)
    is_tied = heads.output == "tied"
    config = {
        "medusa_num_heads": heads.num_heads,
        "medusa_num_layers": heads.blocks,
        "base_model_name_or_path": name,
        "accuracies": accuracies,
    } | ({"version": "2"} if is_tied else {})
    outputs = [] if is_tied else _outputs(path, heads)
    tensors = ORIGINAL.tensors(weights=heads.weights, biases=heads.biases, outputs=outputs, blocks=heads.blocks)
    return Export(config=config, tensors=tensors, stem=ORIGINAL_FILE)


def vllm_medusa(path: str, target: Target, *, name: str) -> Export:
    """Heads in vLLM's layout; those that the target's output layer scores share a copy of it (`original_lm_head`).

    Args, errors: as for `original_medusa`.
    """
    heads, accuracies = load_heads(path, target)
    outputs = _outputs(path, heads)
    config: dict[str, Any] = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": outputs[0].shape[1],
        "vocab_size": outputs[0].shape[0],
        "num_heads": heads.num_heads,
        "num_hidden_layers": heads.blocks,
        "medusa_fc_bias": True,
        "original_lm_head": heads.output == "tied",
        "base_model_name_or_path": name,
        "accuracies": accuracies,
    }
    tensors = VLLM.tensors(weights=heads.weights, biases=heads.biases, outputs=outputs, blocks=heads.blocks)
    speculative = {"method": "medusa", "num_speculative_tokens": heads.num_heads}
    return Export(config=config, tensors=tensors, speculative_config=speculative)


def _outputs(path: str, heads: MedusaHeads) -> list[Tensor]:
    """
    Raises:
        ValueError: an output layer has a bias.
    """
    layers = heads.output_layers()
    if any(getattr(layer, "bias", None) is not None for layer in layers):
        problem = "whose output layers have a bias, which the format lacks"
        raise OptionError("path", path, "heads for a target whose output layer has no bias", problem)
    return [layer.weight for layer in layers]  # type: ignore[misc]
