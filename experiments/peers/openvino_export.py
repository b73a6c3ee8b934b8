"""Conversion of a model of transformers to OpenVINO in float32, with its KV cache as states, and of its tokenizer."""

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer

INPUTS = ("input_ids", "attention_mask", "position_ids", "beam_idx")  # as OpenVINO GenAI names them
CACHED, NEW = 3, 2  # tokens of the traced pass, different so that no length is mistaken for another


def why_no_openvino(model: PreTrainedModel) -> str:
    """Return why a model cannot be converted; empty: it can."""
    config = model.config
    if config.is_encoder_decoder:
        return "an encoder-decoder model; OpenVINO's conversion knows decoder-only ones"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
        return "a model of other layers than full attention, which alone OpenVINO's conversion knows"
    return ""


def write_openvino(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model and a tokenizer for OpenVINO GenAI to a folder, which is made.

    Args:
        model: a decoder-only model, all of whose layers cache keys and values; it is not modified.
        tokenizer: tokenizer of the target, which OpenVINO compares between target and draft model.
        folder: gets openvino_model.xml, openvino_tokenizer.xml, and their weights.
    """
    import openvino
    from openvino_tokenizers import convert_tokenizer

    folder.mkdir(parents=True)
    openvino.save_model(as_openvino(model), folder / "openvino_model.xml", compress_to_fp16=False)
    openvino.save_model(convert_tokenizer(tokenizer), folder / "openvino_tokenizer.xml")


@torch.no_grad()
def as_openvino(model: PreTrainedModel) -> Any:
    """Convert a model to an `openvino.Model` whose states are its KV cache."""
    import openvino
    from openvino._offline_transformations import apply_make_stateful_transformation

    plain = _plain_copy(model)
    tokens = torch.zeros(2, CACHED + NEW, dtype=torch.int64)
    cache = plain(input_ids=tokens[:, :CACHED], use_cache=True).past_key_values
    positions = torch.arange(CACHED, CACHED + NEW).expand(2, NEW)
    beams = torch.arange(2, dtype=torch.int32)
    inputs = (tokens[:, CACHED:], torch.ones_like(tokens), positions, beams, *_states(cache))
    with warnings.catch_warnings():  # OpenVINO converts traces; lengths that become constants here are checked by tests
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(_PassOfTensors(plain), inputs, check_trace=False)
    converted = openvino.convert_model(traced, example_input=inputs)
    states = [f"{layer}.{part}" for layer in range(len(cache.layers)) for part in ("key", "value")]
    names = [*INPUTS, *(f"past_key_values.{state}" for state in states)]
    for port, name, example in zip(converted.inputs, names, inputs, strict=True):
        port.get_tensor().set_names({name})
        heads_and_size = {1: example.shape[1], 3: example.shape[3]} if example.dim() == 4 else {}
        port.get_node().set_partial_shape(
            openvino.PartialShape([heads_and_size.get(axis, -1) for axis in range(example.dim())])
        )
    for port, name in zip(converted.outputs, ["logits", *(f"present.{state}" for state in states)], strict=True):
        port.get_tensor().set_names({name})
    converted.validate_nodes_and_infer_types()
    kept = {f"past_key_values.{state}": f"present.{state}" for state in states}
    apply_make_stateful_transformation(converted, kept)
    _begin_empty(converted)
    return converted


def _plain_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Copy of a model in float32 with `sdpa`, without changes made to the module itself."""
    plain = AutoModelForCausalLM.from_config(
        copy.deepcopy(model.config), dtype=torch.float32, attn_implementation="sdpa"
    )
    plain.load_state_dict(model.state_dict())
    return plain.eval()


class _PassOfTensors(torch.nn.Module):
    """A pass over new tokens, whose arguments and results are tensors alone."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, beam_idx: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the logits, then keys and values of every layer."""
        cache = DynamicCache()
        for keys, values in zip(past[::2], past[1::2], strict=True):
            layer = DynamicLayer()
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys.index_select(0, beam_idx), values.index_select(0, beam_idx)
            cache.layers.append(layer)
        places = torch.arange(attention_mask.shape[1])
        visible = places <= places[attention_mask.shape[1] - input_ids.shape[1] :, None]
        output = self.model(
            input_ids=input_ids,
            attention_mask=visible & attention_mask[:, None, None].bool(),
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        return output.logits, *_states(output.past_key_values)


def _states(cache: DynamicCache) -> list[Tensor]:
    return [states for layer in cache.layers for states in (layer.keys, layer.values)]


def _begin_empty(model: Any) -> None:
    """Let every state begin with as many rows as there are prompts, and no token."""
    from openvino import opset13

    shape = opset13.shape_of(model.input("input_ids"), output_type="i64")
    rows = opset13.gather(shape, opset13.constant([0], np.int64), opset13.constant(0, np.int64))
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            _, *others = (dimension.min_length for dimension in node.get_output_partial_shape(0))
            sizes = [rows, *(opset13.constant([size], np.int64) for size in others)]
            node.set_arguments([opset13.broadcast(opset13.constant(0.0, np.float32), opset13.concat(sizes, 0))])
    model.validate_nodes_and_infer_types()
