"""Layers for multi-token prediction that targets are published with (DeepSeek-AI, 2024, 2412.19437).

B rows, M pairs read, W seen, H hidden, V vocabulary. transformers drops these layers when it loads a target, so they
are read from the checkpoint itself. The decoder layer inside is of the class of the target's own layers.
"""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from framework.core.option_error import OptionError
from framework.heads.draft_layer import TargetEnds
from framework.heads.published_files import PublishedFiles, fill, open_published
from framework.models.encoder_decoder import find_blocks
from framework.models.target import Target

CHAINED = ("after_norm", "before_norm")
FULL = "full_attention"


@dataclass(frozen=True)
class _Layout:
    """Names of the tensors of one layer; {index} counts the layers.

    Attributes:
        prefix: beginning of all names of a layer.
        names: names in the checkpoint by names in `MtpLayer`; `block.` is the decoder layer.
        hidden_first: whether the state comes before the embedding in the input of the projection.
        after_the_targets: whether layers are counted on from the target's.
    """

    prefix: str
    names: dict[str, str]
    hidden_first: bool = False
    after_the_targets: bool = False


_MIMO = {"token_norm": "token_layernorm", "hidden_norm": "hidden_layernorm", "join": "input_proj",
         "last_norm": "final_layernorm"}  # fmt: skip
LAYOUTS = {
    "DeepSeek-V3, GLM-4.5": _Layout(
        "model.layers.{index}.",
        {"token_norm": "enorm", "hidden_norm": "hnorm", "join": "eh_proj", "last_norm": "shared_head.norm"},
        after_the_targets=True,
    ),
    "Qwen3-Next, Qwen3.5": _Layout(
        "mtp.",
        {"token_norm": "pre_fc_norm_embedding", "hidden_norm": "pre_fc_norm_hidden", "join": "fc", "last_norm": "norm",
         "block": "layers.{index}"},
    ),
    "MiMo": _Layout("model.mtp_layers.{index}.", _MIMO, hidden_first=True),
    "speculators": _Layout("mtp_layers.{index}.", _MIMO),
}  # fmt: skip
OF_THE_TARGET = ("embed_tokens.weight", "shared_head.head.weight")  # copies of the target's own


class MtpLayer(nn.Module):
    """Reads pairs of a state and the token after it, like EAGLE's layer, and predicts the state at that token.

    The first state is the input of the target's output layer; a predicted one is fed back after its norm, or before it.
    """

    hidden_layers: tuple[int, ...] = ()  # as of `EagleLayer`

    def __init__(
        self,
        ends: TargetEnds,
        block: nn.Module,
        norm: Callable[[], nn.Module],
        rotary: Callable[[Tensor, Tensor], Any],
        *,
        hidden_first: bool,
        chained: str,
    ):
        """
        Args:
            ends: embeddings and output layer of the target.
            block: a decoder layer of the target's class.
            norm: makes a norm of the target's class.
            rotary: the target's rotary embedding of states at positions.
            hidden_first: whether the state comes before the embedding in the input of the projection.
            chained: after_norm or before_norm: the state that is fed back.
        """
        super().__init__()
        self._ends, self._rotary = ends, rotary
        self.token_norm, self.hidden_norm, self.last_norm = norm(), norm(), norm()
        self.join = nn.Linear(2 * ends.hidden_size, ends.hidden_size, bias=False)
        self.block = block
        self._hidden_first, self._after_norm = hidden_first, chained == "after_norm"

    @property
    def dtype(self) -> torch.dtype:
        return self.join.weight.dtype

    def known(self, states: Tensor, features: Tensor | None) -> Tensor:
        """States to pair with tokens: the input of the target's output layer."""
        return states

    def forward(self, states: Tensor, tokens: Tensor, positions: Tensor, *, pairs: Any, mask: Tensor) -> Tensor:
        """[B, M, H] states predicted at these tokens; arguments as for `EagleLayer.forward`."""
        hidden = self.hidden_norm(states.to(self.join.weight))
        embedded = self.token_norm(self._ends.embedded(tokens).to(self.join.weight))
        joined = self.join(torch.cat([hidden, embedded] if self._hidden_first else [embedded, hidden], -1))
        read = self.block(
            joined,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=pairs,
            position_embeddings=self._rotary(joined, positions),
        )
        read = read[0] if isinstance(read, tuple) else read
        return self.last_norm(read) if self._after_norm else read

    def scored(self, states: Tensor) -> Tensor:
        """[..., V] logits before temperature from predicted states [..., H]."""
        return self._ends.scored(states if self._after_norm else self.last_norm(states))


def read_mtp(path: str | None, target: Target, *, chained: str) -> MtpLayer:
    """Read the layer of a checkpoint.

    Args:
        path: folder or hub name of a checkpoint in one of LAYOUTS; None: the target's own.
        target: the target that the layer belongs to.
        chained: after_norm, as in SGLang and transformers, or before_norm, as in vLLM.

    Raises:
        OSError: the files cannot be read.
        ValueError: no such layer, several of them, one of another target, or a target whose layers cannot be cloned.
    """
    if chained not in CHAINED:
        raise OptionError("chained", chained, ", ".join(CHAINED))
    model = target.model.model
    path = path or model.config.name_or_path
    if not path:
        raise OptionError("path", path or None, "a folder or hub name, since the target was not loaded from one")
    files, ends = open_published(path), TargetEnds(target)
    num_layers = model.config.get_text_config().num_hidden_layers
    layout, tensors = _read(files, num_layers)
    layer = _build(files, model, ends, hidden_first=layout.hidden_first, chained=chained)
    fused = _with_fused_experts(tensors, layer)
    like = {"dtype": ends.like["dtype"], "device": target.device}
    fill(layer, fused, files=files, sizes={"hidden size": ends.hidden_size}, **like)
    layer.name_or_path = path  # type: ignore[assignment]  # as for models of transformers
    return layer


def _read(files: PublishedFiles, num_layers: int) -> tuple[_Layout, dict[str, Tensor]]:
    """The layout of a checkpoint, and its tensors by the names of `MtpLayer`."""
    for layout in LAYOUTS.values():
        first = num_layers if layout.after_the_targets else 0
        prefix, following = (layout.prefix.format(index=index) for index in (first, first + 1))
        begins = (prefix, following)
        tensors = files.tensors(lambda name: name.startswith(begins))  # noqa: B023
        if not tensors:
            continue
        names = {ours: theirs.format(index=0) for ours, theirs in layout.names.items()}
        more = [name for name in tensors if _is_of_another(name, prefix, names)]
        if more:
            raise _refusal(files, f"which has more than one layer for multi-token prediction: {more[0]}")
        named = {_renamed(name.removeprefix(prefix), names): tensor for name, tensor in tensors.items()}
        return layout, {name: tensor for name, tensor in named.items() if name not in _copies()}
    raise _refusal(files, f"which has no layer for multi-token prediction in the layouts of {', '.join(LAYOUTS)}")


def _is_of_another(name: str, prefix: str, names: dict[str, str]) -> bool:
    rest = name.removeprefix(prefix)
    return not name.startswith(prefix) or ("block" in names and bool(re.match(r"layers\.[1-9]", rest)))


def _renamed(name: str, names: dict[str, str]) -> str:
    for ours, theirs in names.items():
        if name.startswith(f"{theirs}."):
            return ours + name.removeprefix(theirs)
    return f"block.{name}"


def _copies() -> set[str]:
    return {f"block.{name}" for name in OF_THE_TARGET}


def _build(
    files: PublishedFiles, model: PreTrainedModel, ends: TargetEnds, *, hidden_first: bool, chained: str
) -> MtpLayer:
    """A layer of the target's class, whose weights are not set yet."""
    found, rotary = find_blocks(model), getattr(model.get_decoder(), "rotary_emb", None)
    like = None if found is None else found[1][-1]
    config = _config_of_one(model)
    kinds_of_positions = any(
        isinstance(each, dict) for each in (getattr(config, "rope_parameters", None) or {}).values()
    )
    if like is None or rotary is None or not hasattr(like, "input_layernorm") or kinds_of_positions:
        needed = "they need input_layernorm and rotary positions of one kind"
        raise _refusal(files, f"and layers of {config.model_type} cannot be cloned: {needed}")
    norm = cast(Callable[..., nn.Module], type(like.input_layernorm))
    eps = getattr(config, "rms_norm_eps", None)
    block: Callable[..., nn.Module] = type(like)
    return MtpLayer(
        ends,
        block(config, 0),
        lambda: norm(ends.hidden_size) if eps is None else norm(ends.hidden_size, eps=eps),
        lambda states, positions: rotary(states, positions),
        hidden_first=hidden_first,
        chained=chained,
    )


def _config_of_one(model: PreTrainedModel) -> PreTrainedConfig:
    """The target's config, with one layer of full attention and experts where the target has them."""
    config = copy.deepcopy(model.config.get_text_config())
    config.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        config.layer_types = [FULL]
    if getattr(config, "mlp_layer_types", None):
        config.mlp_layer_types = config.mlp_layer_types[-1:]
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = 0
    config._attn_implementation = "sdpa"
    return config


def _with_fused_experts(tensors: dict[str, Tensor], layer: MtpLayer) -> dict[str, Tensor]:
    """Tensors in which the matrices of single experts are stacked, as transformers holds them."""
    if not any(name.endswith("experts.gate_up_proj") for name in layer.state_dict()):
        return tensors
    single, of_experts = {}, re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
    for name in list(tensors):
        if match := of_experts.fullmatch(name):
            single[match[1], match[3], int(match[2])] = tensors[name]
    fused = {name: tensor for name, tensor in tensors.items() if not of_experts.fullmatch(name)}
    for base in {base for base, _, _ in single}:
        gate, up, down = (
            [tensor for (owner, of, _), tensor in sorted(single.items(), key=lambda item: item[0][2])
             if (owner, of) == (base, kind)] for kind in ("gate", "up", "down")
        )  # fmt: skip
        if len(gate) == len(up):
            fused[f"{base}.gate_up_proj"] = torch.stack([torch.cat(both) for both in zip(gate, up, strict=True)])
        if down:
            fused[f"{base}.down_proj"] = torch.stack(down)
    return fused


def _refusal(files: PublishedFiles, problem: str) -> OptionError:
    return OptionError(files.place.option, files.path, "a checkpoint of this target with one such layer", problem)
