"""Twins of a decoder without some of its sub-layers: they share its parameters, and the decoder is left as it is."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from framework.conditioned_decoder import num_decoder_layers
from framework.layer_set import LayerSet
from framework.twins import replaced, twin

ATTENTIONS = ("self_attn", "attn", "attention", "self_attention")
MLPS = ("mlp", "feed_forward")


class SubLayers:
    """A decoder whose blocks are known to be x + attention(norm(x)), then x + MLP(norm(x)), or a likeness of it.

    A skipped sub-layer adds nothing to its residual stream, and norms that only it needs are not computed. A block
    without either hands on what it was given.
    """

    def __init__(self, model: PreTrainedModel):
        """
        Raises:
            ValueError: the blocks cannot be taken apart like that; the message gives the reason.
        """
        self._model = model
        self._path, blocks = _find_blocks(model)
        width = model.config.get_text_config().hidden_size
        self._blocks = [_T5Block(block) if _is_t5(block) else _Block(block, width) for block in blocks]
        for block in self._blocks:
            if reason := block.refusal():
                raise ValueError(f"{_unfit(model)}: {reason}; choose another drafter=")

    @property
    def num_layers(self) -> int:
        return len(self._blocks)

    def without(self, skip: LayerSet) -> PreTrainedModel:
        """The decoder without these sub-layers; all that is left is the decoder's own.

        Every block keeps its place, because a decoder may tell its blocks what depends on it.
        """
        blocks = [
            block.without(attention=layer in skip.skip_attention, mlp=layer in skip.skip_mlp)
            for layer, block in enumerate(self._blocks)
        ]
        return replaced(self._model, self._path, nn.ModuleList(blocks))


def _find_blocks(model: PreTrainedModel) -> tuple[list[str], nn.ModuleList]:
    """Where a decoder keeps its blocks: the names that lead there, and the blocks."""
    depth, decoder = num_decoder_layers(model), model.get_decoder()
    inside = "".join(f"{name}." for name, module in model.named_modules() if module is decoder and name)
    for name, module in decoder.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth and all(map(_can_be_taken_apart, module)):
            return (inside + name).split("."), module
    raise ValueError(
        f"{_unfit(model)}: it has no list of {depth} blocks with an attention ({', '.join(ATTENTIONS)}) and an MLP "
        f"({', '.join(MLPS)}) each; choose another drafter="
    )


def _unfit(model: PreTrainedModel) -> str:
    return f"layer_skip cannot take the target ({type(model).__name__}) apart"


def _can_be_taken_apart(block: nn.Module) -> bool:
    return _is_t5(block) or _sub_layer_names(block) is not None


def _is_t5(block: nn.Module) -> bool:
    sub_layers = getattr(block, "layer", None)
    return isinstance(sub_layers, nn.ModuleList) and hasattr(sub_layers[0], "SelfAttention")


def _sub_layer_names(block: nn.Module) -> tuple[str, str] | None:
    """What a block calls its attention and its MLP; None if it lacks one."""
    children = dict(block.named_children())
    attention = next((name for name in ATTENTIONS if name in children), None)
    mlp = next((name for name in MLPS if name in children), None)
    return (attention, mlp) if attention and mlp else None


class _Block:
    """One block and the versions of it that lack something, each made once."""

    def __init__(self, block: nn.Module, width: int):
        self._block, self._width = block, width
        names = _sub_layer_names(block)
        assert names is not None
        self._attention, self._mlp = names
        self._versions: dict[tuple[bool, bool], nn.Module] = {(False, False): block}

    def refusal(self) -> str | None:
        """Why skipping a sub-layer would not be to add nothing, or None if it would."""
        given = self._random_input()
        try:
            same = torch.equal(self._trial({self._attention: _Nothing(True), self._mlp: _Nothing(False)}, given), given)
        except Exception as failure:  # whatever a foreign block may raise
            return f"its blocks do not run without attention and MLP ({type(failure).__name__}: {failure})"
        return None if same else "its blocks do more to their input than to add attention and MLP"

    def without(self, *, attention: bool, mlp: bool) -> nn.Module:
        key = (attention, mlp)
        if key not in self._versions:
            self._versions[key] = self._without_both() if attention and mlp else self._without_one(attention)
        return self._versions[key]

    def _without_both(self) -> nn.Module:
        block = twin(self._block, {})
        block.forward = _hand_on  # on the copy: the block itself keeps its own
        return block

    def _without_one(self, attention: bool) -> nn.Module:
        """Without attention, or without the MLP; and without what only that one needs.

        What that is, shows in a trial with a see-through in place of the sub-layer that stays.
        """
        gone, stays = (self._attention, self._mlp) if attention else (self._mlp, self._attention)
        replaced: dict[str, nn.Module] = {gone: _Nothing(attention)}
        see_through = {stays: _SeeThrough(not attention)}
        given = self._random_input()
        expected = self._trial(replaced | see_through, given)
        for name, _ in self._block.named_children():
            less = replaced | {name: nn.Identity()}
            if name not in (gone, stays) and torch.equal(self._trial(less | see_through, given), expected):
                replaced = less
        return twin(self._block, replaced)

    @torch.no_grad()
    def _trial(self, replaced: dict[str, nn.Module], given: Tensor) -> Tensor:
        return twin(self._block, replaced)(given)

    def _random_input(self) -> Tensor:
        """[1, 1, H]; ordinary numbers, so that a norm changes them."""
        like = next(self._block.parameters())
        return torch.randn(1, 1, self._width, generator=torch.Generator().manual_seed(0)).to(like)


class _T5Block:
    """A block of T5's decoder: x + self-attention(norm(x)), then cross-attention and the MLP alike.

    Its attention is both, what looks at the text and what looks at the source.
    """

    def __init__(self, block: nn.Module):
        self._block = block

    def refusal(self) -> None:
        """Nothing speaks against it."""

    def without(self, *, attention: bool, mlp: bool) -> nn.Module:
        own, across, feed_forward = cast(nn.ModuleList, self._block.layer)
        if attention:
            own, across = _PassedOver(own.SelfAttention), _PassedOver(None)
        kept = nn.ModuleList([own, across, nn.Identity() if mlp else feed_forward])
        return twin(self._block, {"layer": kept.train(self._block.training)})


class _PassedOver(nn.Module):
    """Stands where an attention of T5 is skipped: hands on its input, and the bias that the first one makes for all."""

    def __init__(self, attention: Any):
        super().__init__()
        self.attention: Any = attention if getattr(attention, "has_relative_attention_bias", False) else None

    def forward(self, hidden_states: Tensor, *args: Any, position_bias: Tensor | None = None, **kwargs: Any) -> Any:
        if self.attention is not None and position_bias is None:
            position_bias = self.attention.compute_bias()  # of a twin that is told where its tokens stand
        return hidden_states, position_bias, None


class _Nothing(nn.Module):
    """Stands where a sub-layer is skipped: adds zero."""

    def __init__(self, is_attention: bool):
        super().__init__()
        self.is_attention = is_attention

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        nothing = torch.zeros_like(hidden_states)
        return (nothing, None) if self.is_attention else nothing


class _SeeThrough(_Nothing):
    """Stands where a sub-layer would stay, in a trial: hands on its input."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return (hidden_states, None) if self.is_attention else hidden_states


def _hand_on(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return hidden_states
