"""Clones of a decoder without some sub-layers; they share its parameters and leave it unchanged."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from framework.drafting.layer_set import LayerSet
from framework.models.encoder_decoder import find_blocks, num_decoder_layers
from framework.models.model_support import longest_context
from framework.models.module_clone import clone, clone_replacing

# A block may have several of a kind: cross-attention, an MLP's two layers, experts that all tokens share.
ATTENTIONS = ("self_attn", "attn", "attention", "self_attention", "encoder_attn")
MLPS = ("mlp", "feed_forward", "block_sparse_moe", "shared_mlp", "fc1", "fc2")
FEW_TOKENS = 4  # length of the pass that records the calls of blocks

Versions = dict[tuple[bool, bool], nn.Module]  # keys: attention is skipped, MLP is skipped


class SubLayers:
    """A decoder whose blocks verifiably add attention and MLP to their input, sequentially or in parallel.

    A skipped sub-layer leaves the residual stream unchanged, and norms that only it needs are not computed. The
    constructor checks every block on random input: without both sub-layers the block is the identity, and attention and
    MLP alone, applied one after the other or summed, reproduce the whole block.
    """

    def __init__(self, model: PreTrainedModel):
        """
        Args:
            model: the model of the decoder; it is not modified.

        Raises:
            ValueError: the blocks cannot be split into such sub-layers; the message gives the reason.
        """
        self._model = model
        self._path, blocks = _find_blocks(model)
        self._blocks: list[Versions] = []
        for block, call in zip(blocks, _record_calls(model, blocks), strict=True):
            try:
                versions = _t5_versions(block) if _is_t5(block) else _versions(block, call)
                reason = _fault(versions, call)
            except Exception as failure:  # third-party blocks may raise anything
                what = str(failure).strip().split("\n")[0]
                reason = f"its blocks do not run without attention and MLP ({type(failure).__name__}: {what})"
            if reason:
                raise ValueError(f"{_unfit(model)}: {reason}; choose another drafter=")
            if not _is_t5(block):
                versions[True, True] = _handing_on(block, call)
            self._blocks.append(versions)

    @property
    def num_layers(self) -> int:
        return len(self._blocks)

    def without(self, skip: LayerSet) -> PreTrainedModel:
        """A clone of the decoder without these sub-layers; it shares all other modules.

        Every block keeps its index, because a decoder may call its blocks with arguments that depend on it.
        """
        blocks = [
            versions[layer in skip.skip_attention, layer in skip.skip_mlp]
            for layer, versions in enumerate(self._blocks)
        ]
        return clone_replacing(self._model, self._path, nn.ModuleList(blocks))


def _find_blocks(model: PreTrainedModel) -> tuple[list[str], nn.ModuleList]:
    """As `find_blocks`, for blocks with sub-layers."""
    if (found := find_blocks(model, _can_be_taken_apart)) is not None:
        return found
    raise ValueError(
        f"{_unfit(model)}: it has no list of {num_decoder_layers(model)} blocks with an attention "
        f"({', '.join(ATTENTIONS)}) and an MLP ({', '.join(MLPS)}) each; choose another drafter="
    )


def _unfit(model: PreTrainedModel) -> str:
    return f"layer_skip cannot take the target ({type(model).__name__}) apart"


def _can_be_taken_apart(block: nn.Module) -> bool:
    names = dict(block.named_children())
    return _is_t5(block) or all(any(name in names for name in kind) for kind in (ATTENTIONS, MLPS))


def _is_t5(block: nn.Module) -> bool:
    sub_layers = getattr(block, "layer", None)
    return isinstance(sub_layers, nn.ModuleList) and hasattr(sub_layers[0], "SelfAttention")


# Recorded calls of blocks


@dataclass(frozen=True)
class _Returned:
    """Form of a module's return value: hidden states, alone or as first entry of a tuple.

    Attributes:
        width: width of the hidden states.
        others: number of further entries of the tuple; None: no tuple.
    """

    width: int
    others: int | None

    @classmethod
    def like(cls, returned: Any) -> "_Returned":
        return cls(_hidden(returned).shape[-1], len(returned) - 1 if isinstance(returned, tuple) else None)

    def packed(self, hidden: Tensor) -> Any:
        return hidden if self.others is None else (hidden, *[None] * self.others)


def _hidden(returned: Any) -> Tensor:
    return cast(Tensor, returned[0] if isinstance(returned, tuple) else returned)


def _given(arguments: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    return cast(Tensor, arguments[0] if arguments else named["hidden_states"])


@dataclass
class _Call:
    """One recorded call of a block by its model.

    Attributes:
        arguments: positional arguments.
        named: keyword arguments.
        returned: form of the block's return value.
        children: form of each child's return value, in the order in which the children ran.
    """

    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    returned: _Returned = _Returned(0, None)
    children: dict[str, _Returned] = field(default_factory=dict)

    @torch.no_grad()
    def repeated(self, block: nn.Module, hidden: Tensor) -> Tensor:
        """Hidden states [1, T, H] that a block computes from `hidden` [1, T, H], all other arguments as recorded."""
        if self.arguments:
            return _hidden(block(hidden, *self.arguments[1:], **self.named))
        return _hidden(block(**self.named | {"hidden_states": hidden}))

    def random_input(self) -> Tensor:
        """Normally distributed input [1, T, H], which a norm does not leave unchanged."""
        given = _given(self.arguments, self.named)
        return torch.randn(given.shape, generator=torch.Generator().manual_seed(0)).to(given)


@torch.no_grad()
def _record_calls(model: PreTrainedModel, blocks: nn.ModuleList) -> list[_Call]:
    """The call of every block, recorded in one short pass of the model."""
    calls, hooks = [_Call() for _ in blocks], []
    for block, call in zip(blocks, calls, strict=True):
        hooks.append(block.register_forward_pre_hook(partial(_note_arguments, call), with_kwargs=True))
        hooks.append(block.register_forward_hook(partial(_note_returned, call)))
        for name, child in block.named_children():
            hooks.append(child.register_forward_hook(partial(_note_child, call, name)))
    config = model.config.get_text_config()
    num_tokens = min(FEW_TOKENS, longest_context(config) or FEW_TOKENS)
    tokens = torch.arange(num_tokens, device=model.device).unsqueeze(0) % config.vocab_size
    text = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    try:
        model(input_ids=tokens, use_cache=False, **text)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _note_arguments(call: _Call, block: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    call.arguments, call.named = arguments, named


def _note_returned(call: _Call, block: nn.Module, arguments: tuple[Any, ...], returned: Any) -> None:
    call.returned = _Returned.like(returned)


def _note_child(call: _Call, name: str, child: nn.Module, arguments: tuple[Any, ...], returned: Any) -> None:
    if isinstance(_hidden(returned), Tensor):
        call.children[name] = _Returned.like(returned)


# Blocks without sub-layers


def _versions(block: nn.Module, call: _Call) -> Versions:
    """Four versions of a block: whole, without attention, without MLP, and without both."""
    attention, mlp = ([name for name in kind if name in call.children] for kind in (ATTENTIONS, MLPS))
    no_attention, no_mlp = (_replacements(block, call, gone, attention + mlp) for gone in (attention, mlp))
    given = call.random_input()
    if not torch.equal(call.repeated(clone(block, no_attention | no_mlp), given), given):
        # Norms on the residual stream itself, as in BART, are skipped with the sub-layer before them.
        no_attention |= _following(call, attention, mlp)
        no_mlp |= _following(call, mlp, attention)
    return {
        (False, False): block,
        (True, False): clone(block, no_attention),
        (False, True): clone(block, no_mlp),
        (True, True): clone(block, no_attention | no_mlp),
    }


def _replacements(block: nn.Module, call: _Call, gone: list[str], sub_layers: list[str]) -> dict[str, nn.Module]:
    """Replacements of skipped sub-layers, and of children that the block's output then no longer depends on."""
    replacements: dict[str, nn.Module] = {name: _Nothing(call.children[name]) for name in gone}
    given = call.random_input()
    expected = call.repeated(clone(block, replacements), given)
    for name in call.children:
        if name in sub_layers:
            continue
        less = replacements | {name: nn.Identity()}
        try:
            needless = torch.equal(call.repeated(clone(block, less), given), expected)
        except Exception:  # the child's output has another form than its input
            needless = False
        if needless:
            replacements = less
    return replacements


def _following(call: _Call, sub_layer: list[str], other: list[str]) -> dict[str, nn.Module]:
    """Identities in place of the children that run after a sub-layer and before the other one."""
    found: dict[str, nn.Module] = {}
    follows = False
    for name in call.children:
        follows = name in sub_layer or (follows and name not in other)
        if follows and name not in sub_layer:
            found[name] = nn.Identity()
    return found


def _handing_on(block: nn.Module, call: _Call) -> nn.Module:
    """A clone of a block that returns its input."""
    idle: nn.Module = clone(block, {})
    returned = call.returned
    # Set on the clone; the block keeps its own forward.
    idle.forward = lambda *arguments, **named: returned.packed(_given(arguments, named))
    return idle


class _Nothing(nn.Module):
    """Replacement of a skipped sub-layer that returns zeros."""

    def __init__(self, returned: _Returned):
        super().__init__()
        self._returned = returned

    def forward(self, *arguments: Any, **named: Any) -> Any:
        given = _given(arguments, named)
        return self._returned.packed(given.new_zeros(*given.shape[:-1], self._returned.width))


def _t5_versions(block: nn.Module) -> Versions:
    """As `_versions`, for T5, whose sub-layers add the residual themselves; attention is self- and cross-attention."""
    own, across, feed_forward = cast(nn.ModuleList, block.layer)
    idle = [_PassedOver(own.SelfAttention), _PassedOver(None)]
    layers = {
        (True, False): [*idle, feed_forward],
        (False, True): [own, across, nn.Identity()],
        (True, True): [*idle, nn.Identity()],
    }
    made = {
        skipped: clone(block, {"layer": nn.ModuleList(kept).train(block.training)}) for skipped, kept in layers.items()
    }
    return {(False, False): block} | made


class _PassedOver(nn.Module):
    """Replacement of a skipped T5 attention: returns its input, and the position bias that block 0 shares with all."""

    def __init__(self, attention: Any):
        super().__init__()
        self.attention: Any = attention if getattr(attention, "has_relative_attention_bias", False) else None

    def forward(self, hidden_states: Tensor, *args: Any, position_bias: Tensor | None = None, **kwargs: Any) -> Any:
        if self.attention is not None and position_bias is None:
            length = hidden_states.shape[1]
            # Clones with a position per row override compute_bias.
            position_bias = self.attention.compute_bias(length, length, device=hidden_states.device)
        return hidden_states, position_bias, None


# Check of the versions


def _fault(versions: Versions, call: _Call) -> str | None:
    """Reason why the block does not just add attention and MLP to its input; None: it does."""
    given = call.random_input()
    if not torch.equal(call.repeated(versions[True, True], given), given):
        return "its blocks do more to their input than to add attention and MLP"
    whole, attended, fed = (
        call.repeated(versions[each], given) for each in ((False, False), (False, True), (True, False))
    )
    in_turn, summed = call.repeated(versions[True, False], attended), attended + fed - given
    if not any(_is_close(each, whole) for each in (in_turn, summed)):
        return "attention and MLP of its blocks, one after the other or summed, do not make up the whole block"
    return None


def _is_close(made: Tensor, expected: Tensor) -> bool:
    """Equal up to rounding, relative to the largest absolute value."""
    error, size = (each.double().abs().max() for each in (made - expected, expected))
    return bool(error <= 8 * torch.finfo(expected.dtype).eps * (1 + size))
