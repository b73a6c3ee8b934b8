"""Self-speculation: the target drafts for itself with some sub-layers skipped (Draft & Verify; Zhang et al., 2024)."""

from torch import Tensor

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.drafter import ShouldContinue
from framework.core.option_error import OptionError
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.drafting.chain_builder import ChainBuilder
from framework.drafting.layer_set import LayerSet, evenly, load_layer_set
from framework.drafting.layer_skip_model import SubLayers
from framework.models.target import Target


class LayerSkip:
    """Draws a chain from the target without some sub-layers, on the target's own weights and verified KV cache.

    Draft steps write their own keys and values from pending's slot on. The target's pass over pending and the nodes
    overwrites these slots before it attends to them, so nothing is copied or rolled back.
    """

    scheme = SamplingScheme.IID
    shape = Shape.CHAIN
    stepwise = True

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
            target: the target, which also drafts.
            layers: file written by `experiments.search_layers` for this target; None: another option gives the set.
            skip_attention: blocks whose attention is skipped, counted from 0; or a share of all blocks, in [0, 1],
                evenly spaced; None: no attention is skipped.
            skip_mlp: blocks whose MLP is skipped, in the same forms.
            exit_after: number of blocks before an early exit; all later sub-layers are skipped. None: no early exit.

        Raises:
            FileNotFoundError: `layers` is no file.
            ValueError: not exactly one set is given, the set does not fit the target, or the target's blocks cannot be
                split into sub-layers.
        """
        sub_layers = SubLayers(target.model.model)
        self.skip = _chosen(target, sub_layers.num_layers, layers, skip_attention, skip_mlp, exit_after)
        self._model = target.model.sharing_cache(sub_layers.without(self.skip))

    def num_uniforms(self, gamma: int) -> int:
        return gamma

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling

    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        pass

    def propose(
        self, sequences: Sequences, gamma: int, uniforms: Tensor, should_continue: ShouldContinue | None = None
    ) -> Draft:
        chain = ChainBuilder(
            gamma=gamma,
            active=sequences.active,
            sampling=self._sampling,
            uniforms=uniforms,
            should_continue=should_continue,
        )
        # The target has cached every token before pending.
        while chain.add(self._after(chain.last if chain.num_nodes else sequences.pending, sequences, chain.num_nodes)):
            pass
        return chain.draft()

    def _after(self, tokens: Tensor, sequences: Sequences, depth: int) -> Tensor:
        """[B, V] logits after tokens [B], which are `depth` tokens after pending."""
        start, visible = sequences.lengths - 1 + depth, sequences.longest + depth
        return self._model.forward(tokens.unsqueeze(1), start, visible=visible).logits[:, 0]

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
    """The layer set, from the only option that gives one."""
    given = {
        "layers": layers is not None,
        "exit_after": exit_after is not None,
        "skip_attention or skip_mlp": skip_attention is not None or skip_mlp is not None,
    }
    if sum(given.values()) != 1:
        names = [name for name, is_given in given.items() if is_given]
        problem = f"and {' and '.join(names) or 'no set of layers'} {'are' if len(names) > 1 else 'is'} given"
        raise OptionError("layers", layers, f"one of {', '.join(given)}, the others null", problem)
    if layers is not None:
        return load_layer_set(layers, target, num_layers)
    if exit_after is not None:
        return LayerSet.exit_after(exit_after, num_layers)
    return LayerSet(
        num_layers,
        _layers("skip_attention", skip_attention, num_layers),
        _layers("skip_mlp", skip_mlp, num_layers),
    )


def _layers(option: str, value: object, num_layers: int) -> tuple[int, ...]:
    """Indices of the listed layers, or of a share of all layers, evenly spaced."""
    if isinstance(value, float) and 0 <= value <= 1:
        return evenly(round(value * num_layers), num_layers)
    if value is None or isinstance(value, list | tuple):
        return tuple(value or ())
    raise OptionError(option, value, "a list of layers such as [3,5], a share of them from 0.0 to 1.0, or null")
