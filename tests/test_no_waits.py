"""Nothing between a drafter's laws and a round's outcome asks the device: run on tensors that hold no numbers."""

import pytest
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from drafters.transformer_tree import _Growing
from framework.draft import Draft, Law, Shape, TargetRows
from framework.sampling import Sampling, draw
from framework.tree import Chain, Tree
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


def round_of(rule: Verifier, law: Law, shape: Shape, *, known: bool) -> tuple[torch.Tensor, ...]:
    kind, parents = (Chain, range(-1, 3)) if shape is Shape.CHAIN else (Tree, TREE)
    tree, number = kind.shared(parents, 2, torch.device("cpu")), len(parents)
    with FakeTensorMode(allow_non_fake_inputs=True):
        tokens = torch.randint(0, WIDTH, (2, number))
        probs = None if law is Law.ONE_HOT else torch.rand(2, number, WIDTH)
        parent = tree.parent if known else torch.zeros(2, number, dtype=torch.int64)
        draft = Draft(tokens, parent, tokens > 0, law, probs, shape=shape, known_tree=tree if known else None)
        draft = draft.offered(~draft.tree.behind(tokens == 1))
        target = TargetRows(torch.rand(2, number + 1, WIDTH), draft, Sampling(temperature=0.7))
        stop = draw(rule.stop_law(target, draft), torch.rand(2, dtype=torch.float64))
        replacement = rule.replacement(target, draft, stop)
        return draft.tree.path(stop), draft.offered_depth, replacement


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("rule", [*ANY_TREE, *CHAINS_ONLY], ids=lambda rule: type(rule).__name__)
def test_no_rule_asks_the_device(rule, known):
    for shape in (Shape.CHAIN, Shape.TREE) if rule in ANY_TREE else (Shape.CHAIN,):
        for law in Law:
            path, depth, replacement = round_of(rule, law, shape, known=known)
            assert path.shape[0] == 2 and depth.shape == (2,) and replacement.shape == (2, WIDTH)


class _Asks(TreeWalk):
    def __init__(self, question):
        self.question = question

    def replacement(self, target, draft, stop):
        self.question(stop)
        return target.probs(stop)


def test_a_question_would_be_seen():
    for question in (torch.nonzero, torch.Tensor.item, torch.Tensor.tolist, bool):
        with pytest.raises((DataDependentOutputException, DynamicOutputShapeException, RuntimeError)):
            round_of(_Asks(lambda stop, ask=question: ask(stop[0] > 0)), Law.ONE_HOT, Shape.TREE, known=True)


@pytest.mark.parametrize("law", Law)
def test_a_tree_grows_without_asking(law):
    tree = Tree.shared(TREE[:6], 2, torch.device("cpu"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        growing = _Growing(Sampling(), law, torch.rand(2, 6, dtype=torch.float64))
        growing.add(torch.rand(2, 1, WIDTH), 2)
        assert growing.add(torch.rand(2, 2, WIDTH), 2).shape == (2, 4)
        assert growing.draft(tree, Shape.TREE).tokens.shape == (2, 6)
