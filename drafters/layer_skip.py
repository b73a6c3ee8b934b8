"""The target drafts for itself, without some of its sub-layers (Draft & Verify: Zhang et al., 2024)."""

from collections.abc import Callable

from torch import Tensor

from framework.draft import Draft, DraftedNode, Law, Outcome, Shape
from framework.growing_chain import GrowingChain
from framework.layer_set import LayerSet, evenly, load_layer_set
from framework.sampling import Sampling
from framework.sequences import Sequences
from framework.skipped_model import SubLayers
from framework.target import Target


class LayerSkip:
    """Draws a chain from the target minus a set of sub-layers, on the target's own weights and verified cache.

    Its steps write keys and values of their own from pending's slot on. The target's pass over pending and the nodes
    writes those very slots again before it sees them, so nothing is copied and nothing has to be undone.
    """

    law = Law.IID
    shape = Shape.CHAIN
    keep_drafting: Callable[[DraftedNode], Tensor] | None = None

    def __init__(
        self,
        target: Target,
        *,
        layers: str | None,
        skip_attention: list[int] | float | None,
        skip_mlp: list[int] | float | None,
        exit_after: int | None,
    ):
        """
        Args:
            target: who drafts for itself.
            layers: a file that experiments.search_layers wrote for this target; None where one of the others is given.
            skip_attention: blocks without their attention, counted from 0; or a share of all, in [0, 1], at even
                distances; None skips none.
            skip_mlp: blocks without their MLP.
            exit_after: early exit after so many blocks; all later sub-layers are skipped.

        Raises:
            FileNotFoundError: no file at `layers`.
            ValueError: not exactly one set is given, it does not fit the target, or the target cannot be taken apart.
        """
        sub_layers = SubLayers(target.model.model)
        self.skip = _chosen(target, sub_layers.num_layers, layers, skip_attention, skip_mlp, exit_after)
        self._model = target.model.sharing_cache(sub_layers.without(self.skip))

    def num_uniforms(self, gamma: int) -> int:
        return gamma

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        chain = GrowingChain(
            gamma=gamma,
            active=sequences.active,
            sampling=self._sampling,
            uniforms=uniforms,
            keep_drafting=self.keep_drafting,
        )
        # The target has read all that lies before pending.
        while chain.add(self._after(chain.last if chain.num_nodes else sequences.pending, sequences, chain.num_nodes)):
            pass
        return chain.draft()

    def _after(self, tokens: Tensor, sequences: Sequences, depth: int) -> Tensor:
        """[B, V] logits of what follows tokens [B], which lie so deep below pending."""
        start, visible = sequences.lengths - 1 + depth, sequences.longest + depth
        return self._model.forward(tokens.unsqueeze(1), start, visible=visible)[:, 0]

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass


def _chosen(
    target: Target,
    num_layers: int,
    layers: str | None,
    skip_attention: list[int] | float | None,
    skip_mlp: list[int] | float | None,
    exit_after: int | None,
) -> LayerSet:
    """The one set that is given."""
    given = {
        "drafter.layers": layers is not None,
        "drafter.exit_after": exit_after is not None,
        "drafter.skip_attention or drafter.skip_mlp": skip_attention is not None or skip_mlp is not None,
    }
    if sum(given.values()) != 1:
        names = [name for name, is_given in given.items() if is_given]
        raise ValueError(
            f"{' and '.join(names) or 'no set of layers'} {'are' if len(names) > 1 else 'is'} given; allowed: one of "
            f"{', '.join(given)}. Set the others to null"
        )
    if layers is not None:
        return load_layer_set(layers, target, num_layers)
    if exit_after is not None:
        return LayerSet.exit_after(exit_after, num_layers)
    return LayerSet(
        num_layers,
        _layers("skip_attention", skip_attention, num_layers),
        _layers("skip_mlp", skip_mlp, num_layers),
    )


def _layers(knob: str, value: object, num_layers: int) -> tuple[int, ...]:
    """The layers that a list names, or a share of them at even distances."""
    if isinstance(value, float) and 0 <= value <= 1:
        return evenly(round(value * num_layers), num_layers)
    if value is None or isinstance(value, list | tuple):
        return tuple(value or ())
    raise ValueError(
        f"drafter.{knob} is {value!r}; allowed: a list of layers such as [3,5], a share of them from 0.0 to "
        "1.0, or null"
    )
