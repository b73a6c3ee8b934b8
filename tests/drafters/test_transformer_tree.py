"""Chains and trees from a small model: structure, exactness, and more accepted tokens than chains."""

import pytest
import torch
from omegaconf import OmegaConf

from drafters.transformer_tree import TransformerTree
from experiments.proof.tiny_drafters import FOLDER, tiny_factory, tiny_factory_of
from framework.conformance import check_drafter
from framework.conformance.tiny_models import tiny_target
from framework.core.draft import SamplingScheme, Shape
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.speculative_sampling import SpeculativeSampling

GREEDY = Sampling(temperature=0)
RAGGED = [[5, 6, 7, 8, 5, 6], [9], [3, 4], [1, 2, 1, 2, 1, 2, 1], [30], [7] * 20, [11, 12, 13], [2, 40, 2, 40]]
FORMS = [
    ([3, 1, 1], "iid", Shape.CHAINS),
    ([3, 2, 1], "iid", Shape.TREE),
    ([3, 2, 1], "without_replacement", Shape.TREE),
    ([1, 2, 2], "likeliest", Shape.TREE),
]


def drafter_of(target, branching, children):
    node = OmegaConf.load(FOLDER / "transformer_tree.yaml")
    node.branching, node.children = branching, children
    return tiny_factory_of(node, target.vocabulary_size)(target=target)


def generate(target, drafter, prompts, *, sampling=GREEDY, gamma=3, verifier=None, new_tokens=20):
    engine = Engine(
        target=target,
        drafter=drafter,
        verifier=verifier,
        gamma_policy=Fixed(gamma=gamma),
        sampling=sampling,
    )
    stopping = Stopping(max_new_tokens=new_tokens, eos_ids=(0,))
    return engine.generate(prompts, stopping=stopping, seeds=list(range(len(prompts))), detailed=True)


@pytest.mark.slow
@pytest.mark.usefixtures("narrow_buffers")
@pytest.mark.parametrize(("branching", "children", "shape"), FORMS)
def test_it_keeps_the_contract(branching, children, shape):
    target = tiny_target(vocabulary=5)
    assert drafter_of(target, branching, children).shape is shape
    check_drafter(lambda target: drafter_of(target, branching, children), target=target, samples=3000).require()


@pytest.mark.slow
@pytest.mark.parametrize(("branching", "children", "shape"), FORMS)
@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_greedy_tokens_equal_plain_decoding(branching, children, shape, gamma):
    """A smaller gamma cuts the tree; a larger one extends every path as a chain."""
    target = tiny_target()
    stopping = Stopping(max_new_tokens=20, eos_ids=(0,))
    expected = Autoregressive(target=target, sampling=GREEDY).generate(RAGGED, stopping=stopping, seeds=[0] * 8).tokens
    drafter = drafter_of(target, branching, children)
    assert generate(target, drafter, RAGGED, gamma=gamma).tokens == expected
    assert generate(target, drafter, RAGGED[:1], gamma=gamma).tokens == expected[:1]


@pytest.mark.slow
def test_branching_one_drafts_what_a_chain_drafts():
    target = tiny_target(dtype=torch.float64)
    one, other = drafter_of(target, [1], "iid"), tiny_factory("small_transformer", 50)(target=target)
    for sampling in (GREEDY, Sampling(), Sampling(temperature=0.8, top_k=5)):
        tree = generate(target, one, RAGGED, sampling=sampling, verifier=RecursiveRejection())
        chain = generate(target, other, RAGGED, sampling=sampling, verifier=SpeculativeSampling())
        assert tree.tokens == chain.tokens and (tree.tally.accepted == chain.tally.accepted).all()


def test_siblings_without_replacement_differ_and_are_kept_more_often_than_independent_ones():
    """Tau over 64 rows of 20 tokens with equal seeds; the gap is four times its spread."""
    target, sampling, prompts = tiny_target(vocabulary=6), Sampling(temperature=0.5), [[1, 2, 3]] * 64
    tau = {}
    for name, branching, children in (
        ("chain", [1], "iid"),
        ("independent", [3], "iid"),
        ("different", [3], "without_replacement"),
    ):
        tally = generate(target, drafter_of(target, branching, children), prompts, sampling=sampling).tally
        assert tally.metrics()["alpha/check"]
        tau[name] = tally.metrics()["tau"]
    assert tau["different"] > tau["independent"] > tau["chain"]


def test_a_distribution_with_little_support_offers_no_more_children_than_tokens():
    target = tiny_target(vocabulary=5)
    generation = generate(
        target, drafter_of(target, [4, 1], "without_replacement"), RAGGED_OF_5, sampling=Sampling(top_k=2), gamma=2
    )
    assert generation.tally.metrics()["alpha/check"]


RAGGED_OF_5 = [[1, 2, 3], [4], [2, 2, 1, 0, 3]]


@pytest.mark.parametrize(
    ("branching", "children", "message"),
    [
        ([], "iid", r"^branching is \[\]; allowed: a list of whole numbers >= 1"),
        ([2, 0], "iid", r"^branching is \[2, 0\]"),
        ([2, True], "iid", r"^branching is \[2, True\]"),
        ([60], "iid", r"as many children as the vocabulary has tokens, 50"),
        ([2], "best", r"^children is 'best'; allowed: iid, without_replacement, likeliest"),
    ],
)
def test_wrong_options_are_named(branching, children, message):
    with pytest.raises(ValueError, match=message):
        TransformerTree(tiny_target(), model=lambda target: target.model, branching=branching, children=children)


def test_distribution_and_shape_follow_from_the_options():
    def made(branching, children):
        drafter = TransformerTree(
            tiny_target(), model=lambda target: target.model, branching=branching, children=children
        )
        return drafter.scheme, drafter.shape, drafter.num_nodes(3), drafter.depth

    assert made([1], "iid") == (SamplingScheme.IID, Shape.CHAIN, 3, 1)
    assert made([4], "iid") == (SamplingScheme.IID, Shape.CHAINS, 12, 1)
    assert made([2, 3], "without_replacement") == (SamplingScheme.WITHOUT_REPLACEMENT, Shape.TREE, 2 + 6 + 6, 2)
    assert made([1, 2, 2], "likeliest") == (SamplingScheme.ONE_HOT, Shape.TREE, 1 + 2 + 4, 3)
