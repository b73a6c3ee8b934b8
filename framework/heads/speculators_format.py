"""EAGLE-3 drafters for other projects: the original layout, and folders of the `speculators` package, which vLLM loads.

Both are written from the original layout's config and tensors (`midlayer.*`, `fc`, `norm`, `lm_head`, `d2t`, `t2d`).
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from framework.heads.published_files import Export

VERSION = "0.9.0"  # of the package that `make check-speculators` installs
# Entries of the original config that describe the layer.
OF_LAYER = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta",
    "rope_scaling", "attention_bias", "mlp_bias",
)  # fmt: skip
OF_DRAFTER = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "target_hidden_size")


def speculators_eagle3(
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    name: str,
    architectures: list[str],
    layers: list[int],
    speculative_tokens: int,
) -> Export:
    """An EAGLE-3 drafter as a folder of the `speculators` package.

    Args:
        config: in the original layout; `OF_LAYER` and `OF_DRAFTER` are used, and draft_vocab_size.
        tensors: in the original layout, with embed_tokens.weight: the package takes absent embeddings from the target.
        name: folder or hub name of the target, which the package reads too.
        architectures: class names of the target.
        layers: the target's hidden states that fc reads, as indices of `hidden_states`.
        speculative_tokens: tokens per draft, >= 1.
    """
    proposal = {"proposal_type": "greedy", "speculative_tokens": speculative_tokens}
    settings = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        "transformer_layer_config": {key: config[key] for key in OF_LAYER if key in config},
        "draft_vocab_size": config["draft_vocab_size"],
        "eagle_aux_hidden_state_layer_ids": layers,
        "norm_before_residual": False,  # vLLM takes true where it is absent
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [proposal | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": name, "architectures": architectures},
        },
    } | {key: config[key] for key in OF_DRAFTER if key in config}
    renamed = {_layer_named(name): tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    speculative = {"method": "eagle3", "num_speculative_tokens": speculative_tokens}
    return Export(config=settings, tensors=renamed, speculative_config=speculative)


def _layer_named(name: str) -> str:
    return name.replace("midlayer.", "layers.0.", 1) if name.startswith("midlayer.") else name
