"""No wait for the device between a drafter's distributions and a round's outcome.

Fake tensors have no values: code that needs one raises.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from drafters.transformer_tree import _PartialTree
from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.core.sampling import Sampling, draw
from framework.core.tree import Chain, Tree
from framework.verifiers.block import BlockVerification
from framework.verifiers.k_seq import KSeq
from framework.verifiers.lenience import Lenience
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.traversal import Traversal
from framework.verifiers.tree_walk import TreeWalk
from framework.verifiers.typical import TypicalAcceptance
from framework.verifiers.verifier import Verifier

TREE = [-1, -1, 0, 0, 1, 1, 2, 4]
ANY_TREE = [Traversal(), RecursiveRejection(), KSeq(), TreeWalk(), TypicalAcceptance(epsilon=0.3, delta=0.1)]
CHAINS_ONLY = [BlockVerification(), SpeculativeSampling(), Lenience(lenience=0.5)]
WIDTH = 9


def round_of(rule: Verifier, scheme: SamplingScheme, shape: Shape, *, known: bool) -> tuple[torch.Tensor, ...]:
    kind, parents = (Chain, range(-1, 3)) if shape is Shape.CHAIN else (Tree, TREE)
    tree, number = kind.shared(parents, 2, torch.device("cpu")), len(parents)
    with FakeTensorMode(allow_non_fake_inputs=True):
        tokens = torch.randint(0, WIDTH, (2, number))
        probs = None if scheme is SamplingScheme.ONE_HOT else torch.rand(2, number, WIDTH)
        parent = tree.parent if known else torch.zeros(2, number, dtype=torch.int64)
        draft = Draft(tokens, parent, tokens > 0, scheme, probs, shape=shape, known_tree=tree if known else None)
        draft = draft.offered(~draft.tree.after(tokens == 1))
        target = TargetRows(torch.rand(2, number + 1, WIDTH), draft, Sampling(temperature=0.7))
        stop = draw(rule.stop_probs(target, draft), torch.rand(2, dtype=torch.float64))
        next_token_probs = rule.next_token_probs(target, draft, stop)
        return draft.tree.path(stop), draft.offered_depth, next_token_probs


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("rule", [*ANY_TREE, *CHAINS_ONLY], ids=lambda rule: type(rule).__name__)
def test_no_rule_asks_the_device(rule, known):
    for shape in (Shape.CHAIN, Shape.TREE) if rule in ANY_TREE else (Shape.CHAIN,):
        for scheme in SamplingScheme:
            path, depth, next_token_probs = round_of(rule, scheme, shape, known=known)
            assert path.shape[0] == 2 and depth.shape == (2,) and next_token_probs.shape == (2, WIDTH)


class _Asks(TreeWalk):
    def __init__(self, question):
        self.question = question

    def next_token_probs(self, target, draft, stop):
        self.question(stop)
        return target.probs(stop)


def test_a_question_would_be_seen():
    for question in (torch.nonzero, torch.Tensor.item, torch.Tensor.tolist, bool):
        with pytest.raises((DataDependentOutputException, DynamicOutputShapeException, RuntimeError)):
            round_of(_Asks(lambda stop, ask=question: ask(stop[0] > 0)), SamplingScheme.ONE_HOT, Shape.TREE, known=True)


@pytest.mark.parametrize("scheme", SamplingScheme)
def test_a_tree_grows_without_asking(scheme):
    tree = Tree.shared(TREE[:6], 2, torch.device("cpu"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        partial_tree = _PartialTree(Sampling(), scheme, torch.rand(2, 6, dtype=torch.float64))
        partial_tree.add(torch.rand(2, 1, WIDTH), 2)
        assert partial_tree.add(torch.rand(2, 2, WIDTH), 2).shape == (2, 4)
        assert partial_tree.draft(tree, Shape.TREE).tokens.shape == (2, 6)
