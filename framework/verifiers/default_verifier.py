"""The usual exact rule for a kind of draft."""

from framework.core.draft import SamplingScheme, Shape
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.tree_walk import TreeWalk
from framework.verifiers.verifier import Verifier


def default_verifier(scheme: SamplingScheme, shape: Shape) -> Verifier:
    """Speculative sampling for a chain, the tree walk for a tree of chosen tokens, otherwise recursive rejection."""
    if shape is Shape.CHAIN:
        return SpeculativeSampling()
    return TreeWalk() if scheme is SamplingScheme.ONE_HOT else RecursiveRejection()
