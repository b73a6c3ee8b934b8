"""Sizes of a decoder-only model that its time per pass depends on, from a preset or a config.json."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from experiments.projection.presets import check_above_zero, check_keys, read_preset
from experiments.results.model_names import short_name
from framework.core.option_error import OptionError, UnreadableError

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "kv_lora_rank")
TOLERANCE = 0.02  # of published numbers of parameters, which have two digits
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class ModelSize:
    """Counts of a decoder-only transformer.

    Attributes:
        name: name of the model.
        parameters: all parameters; shared ones count once.
        read: parameters that a pass reads: all but input embeddings that are not the output layer, too.
        layers: layers with full attention.
        sliding_layers: layers whose tokens attend to the last `window` tokens only.
        window: length of that window; 0 without such layers.
        heads: query heads.
        kv_heads: heads of keys and values.
        head_dim: numbers per head.
        source: document that states the sizes.
        unverified: names of the sizes that could not be read in the source itself.
    """

    name: str
    parameters: int
    read: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    sliding_layers: int = 0
    window: int = 0
    source: str = ""
    unverified: tuple[str, ...] = ()

    @classmethod
    def chosen(cls, key: str, given: object) -> Self:
        """Read a preset by name, a yaml of the same form, or the config.json of a model's folder.

        Raises:
            ValueError, OSError: the message names the yaml key.
        """
        path = Path(str(given))
        if isinstance(given, str) and (path.is_dir() or path.name == "config.json"):
            folder = path if path.is_dir() else path.parent
            try:
                config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
            except (OSError, ValueError, KeyError) as error:
                line = str(error).strip().splitlines()[0]
                raise UnreadableError(key, given, "a folder with the config.json of a model", line) from None
            return cls.of_config(config, name=short_name(str(folder.resolve())), source=str(path), key=key)
        content = read_preset("models", key, given)
        check_keys(f"{key} {given}", content, ("name", "source", "billions", "config"), ("unverified",))
        check_above_zero(f"{key} {given}: billions", content["billions"])
        size = cls.of_values(content["config"], name=content["name"], source=content["source"], key=key)
        if abs(size.parameters / 1e9 / content["billions"] - 1) > TOLERANCE:
            allowed = f"{size.parameters / 1e9:.3g}, the parameters of its config"
            raise OptionError(f"{key} {given}: billions", content["billions"], allowed)
        return replace(size, unverified=tuple(content.get("unverified") or ()))

    @classmethod
    def of_values(cls, values: Mapping[str, Any], *, name: str, source: str, key: str) -> Self:
        """Sizes from the entries of a config.json, `model_type` among them."""
        try:
            config = AutoConfig.for_model(**values)
        except (TypeError, ValueError) as error:
            raise OptionError(key, name, "a config with model_type", str(error).splitlines()[0]) from None
        return cls.of_config(config, name=name, source=source, key=key)

    @classmethod
    def of_config(cls, config: PreTrainedConfig, *, name: str, source: str, key: str) -> Self:
        """Sizes from a config of transformers; its model is built without memory for the weights.

        Raises:
            ValueError: the model is not a dense decoder with attention in every layer.
        """
        allowed = "a decoder without experts, with attention in every layer"
        if some := [each for each in EXPERTS if getattr(config, each, None)]:
            raise OptionError(key, name, allowed, f"whose config has {some[0]}")
        types = _layer_types(config)
        if other := set(types) - {FULL, SLIDING}:
            raise OptionError(key, name, allowed, f"which has layers of {', '.join(sorted(other))}")
        try:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config)
        except (ValueError, TypeError) as error:
            raise OptionError(key, name, allowed, f"not built: {str(error).splitlines()[0][:100]}") from None
        parameters = sum(each.numel() for each in model.parameters())
        embeddings, output = model.get_input_embeddings(), model.get_output_embeddings()
        is_shared = output is not None and embeddings.weight is output.weight
        return cls(
            name=name,
            parameters=parameters,
            read=parameters - (0 if is_shared else embeddings.weight.numel()),
            layers=types.count(FULL),
            sliding_layers=types.count(SLIDING),
            window=config.sliding_window if SLIDING in types else 0,
            heads=config.num_attention_heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            source=source,
        )

    @property
    def all_layers(self) -> int:
        """Number of layers of both kinds."""
        return self.layers + self.sliding_layers

    def attended(self, tokens: int) -> int:
        """Tokens that the layers read after a text of that length, summed over the layers."""
        return self.layers * tokens + self.sliding_layers * min(tokens, self.window)


def _layer_types(config: PreTrainedConfig) -> list[str]:
    """Kind of attention by layer; a config without this list has the same kind everywhere."""
    stated = getattr(config, "layer_types", None)
    if stated:
        return list(stated)
    return [SLIDING if getattr(config, "sliding_window", None) else FULL] * config.num_hidden_layers
