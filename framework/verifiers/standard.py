"""The exact rule that is usual for a kind of draft."""

from framework.draft import Law, Shape
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.tree_walk import TreeWalk
from framework.verifiers.verifier import Verifier


def standard_rule(law: Law, shape: Shape) -> Verifier:
    """Speculative sampling for a chain, the walk for a tree of chosen tokens, else recursive rejection."""
    if shape is Shape.CHAIN:
        return SpeculativeSampling()
    return TreeWalk() if law is Law.ONE_HOT else RecursiveRejection()
