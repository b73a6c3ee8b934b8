"""The walk down a tree of chosen tokens, and merged nodes of equal prefixes."""

import random
from itertools import product

import pytest
import torch

from framework.conformance.enumeration import chains
from framework.conformance.toy_distributions import logits_of, random_tables
from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.core.sampling import Sampling
from framework.verifiers.prefix_merging import MergedPrefixes
from framework.verifiers.tree_walk import TreeWalk

P = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)


def chosen(tokens: list[int], parent: list[int], *, valid: list[bool] | None = None) -> Draft:
    offered = torch.tensor([valid or [True] * len(tokens)])
    return Draft(torch.tensor([tokens]), torch.tensor([parent]), offered, SamplingScheme.ONE_HOT, shape=Shape.TREE)


def distributions_after(probs: torch.Tensor, draft: Draft) -> TargetRows:
    """Target rows with the same distribution everywhere."""
    return TargetRows(probs.log().expand(1, draft.num_nodes + 1, -1), draft, Sampling())


@pytest.mark.parametrize(
    ("tokens", "parent", "expected"),
    [
        ([0, 1], [-1, -1], [0.2, 0.5, 0.3]),
        ([0, 1], [-1, 0], [0.5, 0.5 * 0.7, 0.5 * 0.3]),
        ([0, 0], [-1, -1], [0.5, 0.5, 0]),  # the second repeats the first
        ([0, 3], [-1, -1], [0.5, 0.5, 0]),
        ([0, 1, 2], [-1, -1, -1], [0, 0.5, 0.3, 0.2]),
        # Two chains that differ after their first token: the walk continues both from the first of the equal nodes.
        ([0, 0, 1, 2], chains(2, 2), [0.5, 0.5 * 0.5, 0, 0.5 * 0.3, 0.5 * 0.2]),
        # Two equal chains.
        ([0, 0, 1, 1], chains(2, 2), [0.5, 0.5 * 0.7, 0, 0.5 * 0.3, 0]),
    ],
    ids=str,
)
def test_it_stops_where_no_child_holds_the_token_drawn(tokens, parent, expected):
    draft = chosen(tokens, parent)
    assert TreeWalk().stop_probs(distributions_after(P, draft), draft)[0].tolist() == pytest.approx(expected, abs=1e-15)


def test_what_follows_is_p_without_all_that_hangs_on_the_path():
    draft = chosen([0, 0, 1, 2], chains(2, 2))
    target = distributions_after(P, draft)
    for stop, probs in ((0, [0, 0.6, 0.4, 0]), (1, [1, 0, 0, 0]), (3, P.tolist()), (4, P.tolist())):
        assert TreeWalk().next_token_probs(target, draft, torch.tensor([stop]))[0].tolist() == pytest.approx(
            probs, abs=1e-15
        )


def test_where_children_hold_all_of_p_what_follows_is_still_a_distribution():
    # Rounding may give this stop a probability of 1e-8: its next token must still be possible.
    draft = chosen([0, 1, 2], [-1, -1, -1])
    assert TreeWalk().next_token_probs(distributions_after(P, draft), draft, torch.tensor([0]))[
        0
    ].tolist() == pytest.approx(P.tolist())


def test_what_is_not_offered_is_not_walked_to():
    draft = chosen([0, 0, 1, 2], chains(2, 2), valid=[False, True, False, True])
    target = distributions_after(P, draft)
    assert TreeWalk().stop_probs(target, draft)[0].tolist() == pytest.approx([0.5, 0, 0.5 * 0.8, 0, 0.5 * 0.2])
    assert TreeWalk().next_token_probs(target, draft, torch.tensor([2]))[0].tolist() == pytest.approx(
        [5 / 8, 3 / 8, 0, 0]
    )


def test_drawn_tokens_are_refused():
    for scheme, shape in product((SamplingScheme.IID, SamplingScheme.WITHOUT_REPLACEMENT), Shape):
        with pytest.raises(ValueError, match=rf"verifier=tree_walk .*{scheme.name}.*verifier=recursive_rejection"):
            TreeWalk().check(scheme, shape)


@pytest.mark.parametrize("num_nodes", [1, 3, 9])
def test_pooled_rows_are_those_with_the_same_tokens_on_their_paths(num_nodes):
    """Against explicit paths, on random trees of few tokens with some nodes not offered."""
    dice = random.Random(num_nodes)
    for _ in range(200):
        parent = [dice.randrange(-1, node) for node in range(num_nodes)]
        tokens = [dice.randrange(2) for _ in range(num_nodes)]
        valid: list[bool] = []
        for above in parent:
            valid.append((above < 0 or valid[above]) and dice.random() < 0.8)
        paths: list[tuple[int, ...]] = [()]
        for above, token in zip(parent, tokens, strict=True):
            paths.append((*paths[above + 1], token))
        merged = MergedPrefixes.of(chosen(tokens, parent, valid=valid))
        rows = [0, *(node + 1 for node in range(num_nodes) if valid[node])]
        for row in rows:
            first = min(other for other in rows if paths[other] == paths[row])
            assert merged.first[0, row] == first
            if row:
                assert bool(merged.is_first[0, row - 1]) == (first == row)
                same_parent = [other for other in rows if paths[other] == paths[parent[row - 1] + 1]]
                assert merged.draft.parent[0, row - 1] == min(same_parent) - 1
        for stop in rows:
            children = merged.children(torch.tensor([stop]))[0].tolist()
            members = [row for row in rows if paths[row] == paths[stop]]
            below = [node for node in range(num_nodes) if valid[node] and parent[node] + 1 in members]
            assert [node for node in range(num_nodes) if children[node]] == (below if stop == members[0] else [])


def test_a_chain_is_not_pooled_though_its_tokens_repeat():
    p, _ = random_tables("random", 4, 1, torch.Generator().manual_seed(0))
    draft = Draft.chain(torch.tensor([[1, 1, 1]]), SamplingScheme.ONE_HOT)
    target = TargetRows(logits_of(p)[1].unsqueeze(0), draft, Sampling())
    keep = p[1][:3, 1]  # row i of the table: distribution after token i, used after row i
    assert MergedPrefixes.of(draft).first.tolist() == [[0, 1, 2, 3]]
    reach = torch.cat([torch.ones(1), keep.cumprod(0)])
    expected = reach * torch.cat([1 - keep, torch.ones(1)])
    assert torch.allclose(TreeWalk().stop_probs(target, draft)[0], expected, rtol=0, atol=1e-15)
