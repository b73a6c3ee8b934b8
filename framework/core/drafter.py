"""The Drafter protocol: the interface that the decoding loop requires, and its optional extensions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, TypeGuard

from torch import Tensor, nn

from framework.core.draft import Draft, DraftedNode, Outcome, SamplingScheme, Shape
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences


class Drafter(Protocol):
    """Interface of a drafter. A factory builds it from `target: Target` and the options of its yaml.

    A generation calls begin, then propose and observe once per round, and begin again for the next batch. The
    drafter owns the state that it keeps between rounds, including its rollback. State that outlives a generation
    changes in `learn` only (`Learner`). The drafter reads `sequences` and never writes them.
    """

    scheme: SamplingScheme
    """Sampling scheme of the drafts. At temperature 0, where drawing is choosing, drafts may be ONE_HOT instead."""

    shape: Shape

    def num_uniforms(self, gamma: int) -> int:
        """Number of uniforms per row that `propose` may use for a draft of depth gamma."""
        ...

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        """Begin a batch after prefill, with the first token pending. Forget earlier sequences; keep learned state."""
        ...

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Draft at most gamma >= 1 tokens deep after pending. Called once per round, before the target pass.

        The same sequences and uniforms must give the same draft. A smaller gamma, with the first of these uniforms,
        must give the beginning of that draft: drafts get shorter near the end of the longest row, and the output of
        a row must not depend on the other rows in its batch.

        Args:
            sequences: committed tokens; drafts for inactive rows are allowed and ignored.
            gamma: largest depth.
            uniforms: [B, num_uniforms(gamma)] float64 in [0, 1), fresh in every round.
        """
        ...

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        """Update the state after the commit of a round; also called after rounds without a proposal.

        The tensors of `outcome` are valid until this returns.
        """
        ...


class TreeDrafter(Drafter, Protocol):
    """Interface of a drafter whose shape is not CHAIN, or whose drafts end at a depth of their own."""

    def num_nodes(self, gamma: int) -> int:
        """Most nodes of a draft of depth gamma; buffers are sized for it."""
        ...


def most_nodes(drafter: Drafter, gamma: int) -> int:
    """Most nodes of a draft of depth gamma: gamma itself for a drafter without `num_nodes`."""
    return drafter.num_nodes(gamma) if hasattr(drafter, "num_nodes") else gamma


ShouldContinue: TypeAlias = Callable[[DraftedNode], Tensor]
"""Maps the last drafted nodes to [B] bool: whether the draft of each row continues after them."""


class StepwiseDrafter(Drafter, Protocol):
    """Optional: a drafter that drafts node by node, and lets the gamma policy end a draft early.

    `framework.drafting.chain_builder.ChainBuilder` implements this.
    """

    stepwise: bool
    """Whether drafts can end early: True, except for a wrapper around a drafter that is not stepwise."""

    def propose(
        self, sequences: Sequences, gamma: int, uniforms: Tensor, should_continue: ShouldContinue | None = None
    ) -> Draft:
        """As `Drafter.propose`.

        Args:
            should_continue: called after every node except the last; None: drafts are gamma deep. Where it returns
                False, the node stays offered and later nodes of the row are not `valid`; the draft ends once no
                active row continues.
        """
        ...


class HostDrafter(Drafter, Protocol):
    """Optional: a drafter that looks its drafts up in host memory; `propose` stays outside compiled graphs.

    `propose` gets its uniforms on the host. `sequences.texts` holds the committed tokens without a device
    synchronisation.
    """

    on_host: bool
    """True."""


class Lookup(HostDrafter, Protocol):
    """Optional: a drafter of ONE_HOT chains that gives its tokens without a draft.

    The loop can then make shadow drafts (`framework.gamma_policies.gamma_policy.WithShadowDrafts`).
    """

    def look_up(self, sequences: Sequences, gamma: int) -> list[list[int]]:
        """The tokens per row that `propose` would draft; may be called in any round, in place of it."""
        ...


def looks_up(drafter: Drafter) -> TypeGuard[Lookup]:
    """Whether the drafter is a Lookup."""
    is_chosen = drafter.scheme is SamplingScheme.ONE_HOT and drafter.shape is Shape.CHAIN
    return callable(getattr(drafter, "look_up", None)) and drafts_on_host(drafter) and is_chosen


class WithTrees(Drafter, Protocol):
    """Optional: a drafter with a fixed tree for every depth, reused from round to round."""

    def build_trees(self, num_rows: int, max_gamma: int) -> None:
        """Build the trees of depths up to max_gamma; called before `begin`.

        A tree built by a compiled round would be one of its outputs.
        """
        ...


def has_trees(drafter: Drafter) -> TypeGuard[WithTrees]:
    """Whether the drafter is one WithTrees."""
    return hasattr(drafter, "build_trees")


class Resuming(Drafter, Protocol):
    """Optional: a drafter with a model of its own, which reads committed tokens when it drafts.

    A compiled graph is specialised on the number of tokens that it reads. In a compiled round without a draft,
    `observe` therefore leaves the host's number of unread tokens as it is, and the loop counts them.
    """

    def resume(self, sequences: Sequences, num_tokens: int) -> None:
        """Read committed tokens, so that the next draft starts as after a round of the same gamma.

        Called before a compiled round with a draft, unless the round before had the same gamma.

        Args:
            sequences: committed tokens.
            num_tokens: most tokens committed to a row in the rounds without a draft just before.
        """
        ...


def resumes(drafter: Drafter) -> TypeGuard[Resuming]:
    """Whether the drafter is a Resuming one."""
    return hasattr(drafter, "resume")


class Following(Drafter, Protocol):
    """Optional: a drafter that keeps parts of its drafts, and can take turns with drafters that draft other tokens."""

    def follow(self, sequences: Sequences, outcome: Outcome) -> None:
        """Update the state after the commit of another drafter's draft; called in place of `observe`."""
        ...


def follow(drafter: Drafter, sequences: Sequences, outcome: Outcome) -> None:
    """Pass on the outcome of another drafter's draft; `observe` takes it unless the drafter is a Following one."""
    (drafter.follow if hasattr(drafter, "follow") else drafter.observe)(sequences, outcome)


class Rewindable(Drafter, Protocol):
    """Optional: a drafter that supports taking tokens back, so that it can draft for another drafter's model."""

    def rewind(self, sequences: Sequences) -> None:
        """Roll rows back to an earlier round; called in place of `begin`.

        All tokens before pending are a prefix of the tokens committed at the last `observe`; pending may differ.
        """
        ...


class Refillable(Drafter, Protocol):
    """Optional: a drafter whose rows can take other prompts one by one (`framework.decoding.refill`)."""

    refillable: bool
    """Whether they can; True where the attribute is missing."""

    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        """Begin other prompts in some rows after their prefill, as `begin` does in all rows; the other rows go on.

        Args:
            rows: these R rows of the batch.
            sequences: the sequences of these rows alone.
            prefill: the outcome of these rows alone.
        """
        ...


def is_refillable(drafter: Drafter) -> TypeGuard[Refillable]:
    """Whether rows can take other prompts one by one, as for a Refillable drafter."""
    return hasattr(drafter, "begin_rows") and getattr(drafter, "refillable", True)


class WithHiddenLayers(Drafter, Protocol):
    """Optional: a drafter that reads states between the target's layers, beside those before its output layer."""

    hidden_layers: tuple[int, ...]
    """Layers whose states `Outcome.features` holds, in this order, by the index of transformers' `hidden_states`.

    0 is the target's embeddings, i the output of its layer i, the last one before the final norm; of an
    encoder-decoder model the decoder's. Passes capture nothing else.
    """


def hidden_layers_of(drafter: Drafter) -> tuple[int, ...]:
    """Hidden layers of a WithHiddenLayers drafter; none for any other."""
    return getattr(drafter, "hidden_layers", ())


class WithModels(Drafter, Protocol):
    """Optional: a drafter with models or trained parts of its own, whose names and sizes records state."""

    @property
    def models(self) -> Sequence[nn.Module]:
        """Models that draft, the one nearest to the target first; a `name_or_path` gives a model its name."""
        ...


def models_of(drafter: Drafter) -> Sequence[nn.Module]:
    """Models of a WithModels drafter; none for any other."""
    return getattr(drafter, "models", ())


class Remembering(Drafter, Protocol):
    """Optional: a drafter whose drafts depend on earlier generations.

    Earlier generations must use other seeds than the current one: a draft that depends on the uniforms of a seed,
    through the remembered state, must not be verified with the same uniforms.
    """

    remembers: bool
    """Whether drafts depend on earlier generations."""

    def state_dict(self) -> dict[str, Any]:
        """A copy of the learned state and of the examples kept for later updates."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state_dict`; called between generations."""
        ...


class Learner(Remembering, Protocol):
    """Optional: a drafter that learns while it drafts.

    Its rounds are not compiled, because compiled graphs hold old weights, unless it is a HostDrafter: its
    learned state then stays outside the graphs. Engines ask once, when they are made, whether a drafter learns.
    """

    def learn(self, sequences: Sequences) -> None:
        """Learn from the latest round; called after every round, and the only place where learned state changes.

        If drafting changes, later drafts must be those of a drafter begun with these sequences.
        """
        ...


def remembers(drafter: Drafter) -> TypeGuard[Remembering]:
    """Whether drafts depend on earlier generations, as for a Remembering drafter."""
    return getattr(drafter, "remembers", False)


def learns(drafter: Drafter) -> TypeGuard[Learner]:
    """Whether the drafter is a Learner; with remembers = False, its options leave it nothing to learn."""
    return hasattr(drafter, "learn") and getattr(drafter, "remembers", True)


def compiles(drafter: Drafter) -> bool:
    """Whether rounds with this drafter can be compiled: no graph serves trees that the host finds."""
    return drafter.shape is Shape.CHAIN if drafts_on_host(drafter) else not learns(drafter)


@contextmanager
def preserve_learned_state(drafter: Drafter) -> Iterator[None]:
    """Restore the drafter's learned state after the block."""
    before = drafter.state_dict() if remembers(drafter) else None
    try:
        yield
    finally:
        if before is not None and remembers(drafter):
            drafter.load_state_dict(before)


def rewinds(drafter: Drafter) -> TypeGuard[Rewindable]:
    """Whether the drafter is Rewindable."""
    return hasattr(drafter, "rewind")


def is_stepwise(drafter: Drafter) -> TypeGuard[StepwiseDrafter]:
    """Whether the drafter is a StepwiseDrafter."""
    return getattr(drafter, "stepwise", False)


def proposal(
    drafter: Drafter, sequences: Sequences, gamma: int, uniforms: Tensor, should_continue: ShouldContinue | None = None
) -> Draft:
    """Call `propose`; should_continue can end the draft early if the drafter is a StepwiseDrafter."""
    if should_continue is not None and is_stepwise(drafter):
        return drafter.propose(sequences, gamma, uniforms, should_continue)
    return drafter.propose(sequences, gamma, uniforms)


def drafts_on_host(drafter: Drafter) -> bool:
    """Whether the drafter is a HostDrafter."""
    return getattr(drafter, "on_host", False)
