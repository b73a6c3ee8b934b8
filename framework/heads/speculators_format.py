"""Drafters as folders of the `speculators` package, which vLLM loads.

They are written from config and tensors of the layout in which their own projects publish them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from framework.heads.published_files import Export

VERSION = "0.9.0"  # of the package that `make check-speculators` installs
# Entries of a config that describe the layers.
OF_LAYERS = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta",
    "rope_scaling", "attention_bias", "mlp_bias", "layer_types", "sliding_window",
)  # fmt: skip
ARCHITECTURES = {"eagle3": "Eagle3Speculator", "peagle": "PEagleSpeculator", "dflash": "DFlashSpeculator"}
OF_EAGLE3 = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "target_hidden_size", "mask_token_id")


def entries_of(config: PreTrainedConfig) -> dict[str, Any]:
    """Entries of OF_LAYERS, with those of rotary positions as earlier versions of transformers name them."""
    settings = config.to_dict()
    rotary = dict(settings.pop("rope_parameters", None) or {})
    settings["rope_theta"] = rotary.pop("rope_theta", None)
    settings["rope_scaling"] = None if rotary.get("rope_type", "default") == "default" else rotary
    return {key: settings[key] for key in OF_LAYERS if settings.get(key) is not None}


def speculators_eagle3(
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    name: str,
    architectures: list[str],
    layers: list[int],
    speculative_tokens: int,
) -> Export:
    """An EAGLE-3 drafter; or P-EAGLE, if it has the tensor mask_hidden.

    Args:
        config: in the original layout, of which `OF_LAYERS`, `OF_EAGLE3` and draft_vocab_size are used.
        tensors: in the original layout (`midlayer.*`, `fc`, `norm`, `lm_head`, `d2t`, `t2d`), with embed_tokens.weight
            if the embeddings are not the target's; of P-EAGLE also mask_hidden [1, 1, 3 H].
        name: folder or hub name of the target, which the package reads too.
        architectures: class names of the target.
        layers: the target's hidden states that fc reads, as indices of `hidden_states`.
        speculative_tokens: tokens per draft, >= 1.
    """
    further = {
        "draft_vocab_size": config["draft_vocab_size"],
        "eagle_aux_hidden_state_layer_ids": layers,
        "norm_before_residual": False,  # vLLM takes true where it is absent
    } | {key: config[key] for key in OF_EAGLE3 if key in config}
    kind = "peagle" if "mask_hidden" in tensors else "eagle3"
    tensors = {key.replace("midlayer.", "layers.0.", 1): tensor for key, tensor in tensors.items()}
    return _export(kind, config, tensors, further, name, architectures, speculative_tokens)


def speculators_dflash(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, name: str, architectures: list[str]
) -> Export:
    """A DFlash drafter; the package takes embeddings and output layer from the target.

    Args:
        config: in the original layout, of which `OF_LAYERS`, block_size and dflash_config are used. Its
            target_layer_ids number the layers' outputs, so 0 is `hidden_states[1]`.
        tensors: in the original layout (`fc`, `hidden_norm`, `layers.*`, `norm`).
        name: folder or hub name of the target, which the package reads too.
        architectures: class names of the target.
    """
    settings = config["dflash_config"]
    block = config.get("block_size") or settings["block_size"]
    further = {
        "draft_vocab_size": config["vocab_size"],
        "block_size": block,
        "aux_hidden_state_layer_ids": [layer + 1 for layer in settings["target_layer_ids"]],
        "mask_token_id": settings["mask_token_id"],
    }
    return _export("dflash", config, tensors, further, name, architectures, block - 1)


def _export(
    kind: str,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    further: Mapping[str, Any],
    name: str,
    architectures: list[str],
    speculative_tokens: int,
) -> Export:
    proposal = {"proposal_type": "greedy", "speculative_tokens": speculative_tokens}
    settings = {
        "architectures": [ARCHITECTURES[kind]],
        "speculators_model_type": kind,
        "speculators_version": VERSION,
        "transformer_layer_config": {key: config[key] for key in OF_LAYERS if key in config},
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [proposal | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": name, "architectures": architectures},
        },
        **further,
    }
    own = {key: tensor.detach().clone(memory_format=torch.contiguous_format) for key, tensor in tensors.items()}
    method = {"method": "eagle3", "parallel_drafting": True} if kind == "peagle" else {"method": kind}
    speculative = {**method, "num_speculative_tokens": speculative_tokens}
    return Export(config=settings, tensors=own, speculative_config=speculative)
