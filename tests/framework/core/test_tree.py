"""Trees: their structure, one pass over all nodes, and the accepted path moved into place."""

import random
from dataclasses import replace

import pytest
import torch

from framework.conformance.tiny_models import tiny_target
from framework.core.draft import Draft, SamplingScheme, Shape
from framework.core.sampling import Sampling
from framework.core.tree import Chain, Tree
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.cached_lm import CachedLM
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.tree_walk import TreeWalk

GREEDY = Sampling(temperature=0)
RAGGED = [[5, 6, 7, 8, 5, 6], [9], [3, 4], [1, 2, 1, 2, 1, 2, 1], [30], [7] * 20, [11, 12, 13], [2, 40, 2, 40]]


def random_parents(num_rows: int, num_nodes: int, dice: random.Random) -> torch.Tensor:
    rows = [[dice.randrange(-1, node) for node in range(num_nodes)] for _ in range(num_rows)]
    return torch.tensor(rows).view(num_rows, num_nodes)


def ancestors(parent: list[int], node: int) -> list[int]:
    """The path from the top to a node, itself included."""
    path = []
    while node >= 0:
        path.append(node)
        node = parent[node]
    return path[::-1]


@pytest.mark.parametrize("num_nodes", [1, 2, 5, 12])
def test_the_structure_is_what_a_walk_up_the_parents_finds(num_nodes):
    parent = random_parents(6, num_nodes, random.Random(num_nodes))
    tree, factor = Tree(parent), torch.rand(6, num_nodes, dtype=torch.float64)
    marked = torch.rand(6, num_nodes) < 0.3
    for row, parents in enumerate(parent.tolist()):
        for node in range(num_nodes):
            path = ancestors(parents, node)
            assert tree.depth[row, node + 1] == len(path)
            seen = {index - 1 for index in tree.sees[row, node + 1].nonzero().flatten().tolist()}
            assert seen == {-1, *path}
            stop = torch.zeros(6, dtype=torch.int64)
            stop[row] = node + 1
            kept = tree.path(stop)[row].tolist()
            assert kept[: len(path)] == path and kept[len(path) :] == list(range(len(path), num_nodes))
            elders = [other for other in range(node) if parents[other] == parents[node]]
            assert tree.elder[row, node].nonzero().flatten().tolist() == elders
            below = [row for row in range(num_nodes) if node in ancestors(parents, row)[:-1]]
            assert tree.below[row, node + 1].nonzero().flatten().tolist() == [other + 1 for other in below]
            assert tree.after(marked)[row, node] == any(marked[row, above] for above in path[:-1])
            assert tree.along(factor)[row, node + 1] == pytest.approx(factor[row, path].prod().item())
            assert tree.over_elders(factor)[row, node] == pytest.approx(factor[row, elders].prod().item())
            children = [other for other in range(num_nodes) if parents[other] == node]
            assert tree.over_children(factor)[row, node + 1] == pytest.approx(factor[row, children].prod().item())


def test_a_chain_is_a_tree_of_which_more_is_known():
    parent = torch.arange(-1, 4).expand(3, -1)
    chain, tree, marked = Chain(parent), Tree(parent), torch.rand(3, 5) < 0.4
    stop = torch.tensor([0, 2, 5])
    for one, other in (
        (chain.depth, tree.depth),
        (chain.path(stop), tree.path(stop)),
        (chain.after(marked), tree.after(marked)),
        (chain.sees, tree.sees),
        (chain.elder, tree.elder),
        (chain.below, tree.below),
    ):
        assert torch.equal(one, other)
    for groups in (chain.groups_by_depth_and_rank, chain.groups_by_rank, chain.groups_by_place):
        assert torch.cat([torch.arange(5)[group] for group in groups]).tolist() == list(range(5))


def test_the_host_knows_that_a_tree_is_empty():
    tree = Tree.shared([], 2, torch.device("cpu"))
    assert (tree.deepest, tree.widest, tree.num_parents) == (0, 0, 0)
    assert tree.groups_by_depth_and_rank == tree.groups_by_rank == tree.groups_by_place == []


def test_nodes_at_equal_distances_are_a_slice():
    # Two chains of three nodes: slices are faster than tensor indices.
    tree = Tree.shared([-1, -1, 0, 1, 2, 3], 1, torch.device("cpu"))
    assert tree.groups_by_depth_and_rank == [slice(0, 1, 1), slice(1, 2, 1), slice(2, 4, 1), slice(4, 6, 1)]
    assert tree.groups_by_place == [slice(0, 5, 2), slice(1, 6, 2)]


def test_what_the_host_knows_of_a_shared_tree_is_what_the_parents_say():
    """A shared tree's depth and widths are exact; an unshared tree's are upper bounds."""
    dice = random.Random(0)
    for num_nodes in (1, 2, 5, 12) * 5:
        parents = breadth_first(num_nodes, dice)
        tree, unknown = Tree.shared(parents, 3, torch.device("cpu")), Tree(torch.tensor([parents] * 3))
        depth = [len(ancestors(parents, node)) for node in range(num_nodes)]
        assert tree.deepest == max(depth) <= unknown.deepest
        assert tree.widest == max(map(depth.count, depth)) <= unknown.widest
        assert tree.num_parents == max(parents) + 2 <= unknown.num_parents
        stop = torch.tensor([dice.randint(0, num_nodes) for _ in range(3)])
        assert torch.equal(tree.path(stop), unknown.path(stop)[:, : tree.deepest])
        for each in (tree, unknown):
            for groups, needs_parent, is_level in (
                (each.groups_by_depth_and_rank, True, False),
                (each.groups_by_rank, False, False),
                (each.groups_by_place, False, True),
            ):
                done: list[int] = []
                for group in groups:
                    nodes = torch.arange(num_nodes)[group].tolist()
                    for node in nodes:
                        elders = [other for other in range(node) if parents[other] == parents[node]]
                        if is_level:
                            elders = [other for other in range(node) if depth[other] == depth[node]]
                        assert set(elders) <= set(done)
                        assert not needs_parent or parents[node] in (-1, *done)
                    done += nodes
                assert sorted(done) == list(range(num_nodes))
                assert len(groups) == num_nodes if each is unknown else len(groups) <= num_nodes
        assert len(tree.groups_by_rank) == max(parents.count(above) for above in parents)


def breadth_first(num_nodes: int, dice: random.Random) -> list[int]:
    """Parents of a random tree, its nodes numbered level by level."""
    free = [dice.randrange(-1, node) for node in range(num_nodes)]
    order = sorted(range(num_nodes), key=lambda node: (len(ancestors(free, node)), node))
    return [order.index(free[node]) if free[node] >= 0 else -1 for node in order]


def test_a_tree_is_looked_at_once_whoever_is_offered_fewer_nodes():
    tree = Tree.shared([-1, -1, 0], 2, torch.device("cpu"))
    nodes = torch.zeros(2, 3, dtype=torch.int64)
    for draft in (
        Draft.of_tree(tree, nodes, SamplingScheme.ONE_HOT),
        Draft(nodes, tree.parent.clone(), nodes == 0, SamplingScheme.ONE_HOT, shape=Shape.TREE),
        Draft.chain(nodes, SamplingScheme.ONE_HOT),
    ):
        fewer = draft.offered(nodes == 1)
        assert fewer.tree is draft.tree and not fewer.valid.any()
        # Other parents get a structure of their own.
        other = replace(fewer, parent=torch.full((2, 3), -1), shape=Shape.TREE)
        assert other.tree.depth.tolist() == [[0, 1, 1, 1]] * 2
    assert Draft.of_tree(tree, nodes, SamplingScheme.ONE_HOT).tree is tree


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_one_pass_over_ragged_trees_equals_a_pass_per_path(family):
    """Logits after the accepted path, moved into place, equal those of an uncached pass."""
    target, dice = tiny_target(family, dtype=torch.float64), random.Random(0)
    lm, num_nodes = target.model, 9
    parent = random_parents(len(RAGGED), num_nodes, dice)
    nodes = torch.tensor([[dice.randrange(50) for _ in range(num_nodes)] for _ in RAGGED])
    stop = torch.tensor([dice.randint(0, num_nodes) for _ in RAGGED])
    longest = max(map(len, RAGGED))
    prompts = torch.tensor([row + [0] * (longest - len(row)) for row in RAGGED])
    lengths = torch.tensor([len(row) for row in RAGGED])
    tree = Tree(parent)
    lm.begin(len(RAGGED), longest + num_nodes + 3)
    lm.forward(prompts, None, visible=longest)
    pending = prompts.gather(1, lengths.unsqueeze(1) - 1)
    output = lm.forward(torch.cat([pending, nodes], 1), lengths - 1, visible=longest + num_nodes, tree=tree)
    logits, hidden = output.logits, output.hidden_states
    lm.keep_path(tree, tree.path(stop), after=lengths)
    depth = tree.depth.gather(1, stop.unsqueeze(1)).squeeze(1)
    after = lm.forward(torch.full((len(RAGGED), 1), 3), lengths + depth, visible=longest + num_nodes + 1).logits
    for row, prompt in enumerate(RAGGED):
        for node in range(-1, num_nodes):
            tokens = prompt + nodes[row, ancestors(parent[row].tolist(), node)].tolist()
            assert torch.allclose(logits[row, node + 1], uncached(lm, tokens), atol=1e-9)
            head = lm.model.get_output_embeddings()
            assert torch.allclose(head(hidden[row, node + 1])[:50], logits[row, node + 1], atol=1e-9)
        tokens = [*prompt, *nodes[row, ancestors(parent[row].tolist(), int(stop[row]) - 1)].tolist(), 3]
        assert torch.allclose(after[row, 0], uncached(lm, tokens), atol=1e-9)


def uncached(lm: CachedLM, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return lm.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1, : lm.vocabulary_size]


class Bushes:
    """Trees that differ by row and round, with some correct nodes and distinct siblings."""

    scheme, shape = SamplingScheme.ONE_HOT, Shape.TREE

    def __init__(self, *, truths, as_chain=False, luck=0.8):
        self.truths, self.as_chain, self.luck = truths, as_chain, luck
        if as_chain is None:
            self.shape = Shape.CHAIN

    def num_uniforms(self, gamma):
        return 0

    def num_nodes(self, gamma):
        return 2 * gamma + 3

    def begin(self, sequences, prefill, sampling):
        pass

    def propose(self, sequences, gamma, uniforms):
        rows = []
        for tokens, length, prompt in zip(
            sequences.tokens.tolist(), sequences.lengths.tolist(), sequences.prompt_lengths.tolist(), strict=True
        ):
            committed = tokens[:length]
            right = self.truths[tuple(committed[:prompt])][length - prompt :] + [0] * gamma
            rows.append(self._grow(random.Random(str(committed)), right, gamma))
        parent, nodes = (torch.tensor([row[part] for row in rows]) for part in (0, 1))
        return Draft(nodes, parent, torch.ones_like(nodes, dtype=torch.bool), self.scheme, shape=self.shape)

    def _grow(self, dice, right, gamma):
        if self.as_chain is not False:
            chosen = [token if dice.random() < self.luck else dice.randrange(50) for token in right[:gamma]]
            return list(range(-1, gamma - 1)), chosen
        parents, nodes, depths = [], [], []
        while len(nodes) < self.num_nodes(gamma):
            parent = dice.randrange(-1, len(nodes))
            depth = 1 if parent < 0 else depths[parent] + 1
            if depth > gamma:
                continue
            taken = {nodes[other] for other, above in enumerate(parents) if above == parent}
            token = right[depth - 1] if dice.random() < self.luck else dice.randrange(50)
            if token not in taken:
                parents, nodes, depths = [*parents, parent], [*nodes, token], [*depths, depth]
        return parents, nodes

    def observe(self, sequences, outcome):
        pass


def generate(target, drafter, verifier, prompts, *, sampling=GREEDY, gamma=4, rows=None, stopping=None):
    engine = Engine(
        target=target, drafter=drafter, verifier=verifier, gamma_policy=Fixed(gamma=gamma), sampling=sampling
    )
    seeds = rows or list(range(len(prompts)))
    return engine.generate(prompts, stopping=stopping or Stopping(max_new_tokens=25, eos_ids=(0,)), seeds=seeds)


def truths_of(target, prompts):
    plain = Autoregressive(target=target, sampling=GREEDY)
    tokens = plain.generate(prompts, stopping=Stopping(max_new_tokens=30), seeds=[0] * len(prompts)).tokens
    return {tuple(prompt): row for prompt, row in zip(prompts, tokens, strict=True)}


@pytest.mark.parametrize("verifier", [TreeWalk(), RecursiveRejection()], ids=["walk", "rejection"])
def test_ragged_trees_give_the_targets_greedy_tokens(verifier):
    target = tiny_target()
    truths = truths_of(target, RAGGED)
    stopping = Stopping(max_new_tokens=25, eos_ids=(0,))
    plain = Autoregressive(target=target, sampling=GREEDY)
    expected = plain.generate(RAGGED, stopping=stopping, seeds=[0] * 8)
    together = generate(target, Bushes(truths=truths), verifier, RAGGED)
    assert together.tokens == expected.tokens and together.finish_reasons == expected.finish_reasons
    assert together.tally.metrics()["tau"] > 1.5, "no node was accepted"
    for row, prompt in enumerate(RAGGED):
        alone = generate(target, Bushes(truths=truths), verifier, [prompt])
        assert alone.tokens[0] == expected.tokens[row]


def test_every_end_of_text_inside_a_tree_ends_the_row():
    target = tiny_target()
    truths = truths_of(target, RAGGED)
    for eos in range(0, 50, 7):
        stopping = Stopping(max_new_tokens=25, eos_ids=(eos,))
        expected = Autoregressive(target=target, sampling=GREEDY).generate(RAGGED, stopping=stopping, seeds=[0] * 8)
        assert generate(target, Bushes(truths=truths), TreeWalk(), RAGGED, stopping=stopping).tokens == expected.tokens


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(temperature=0.7, top_k=5)], ids=["T=0", "T=1", "k"])
def test_a_chain_through_the_tree_path_gives_the_same_tokens(sampling):
    """Equal drafts and seeds as chain and tree; in float64 no rounding decides a draw."""
    target = tiny_target(dtype=torch.float64)
    truths = truths_of(target, RAGGED)
    as_chain = generate(target, Bushes(truths=truths, as_chain=None), SpeculativeSampling(), RAGGED, sampling=sampling)
    for verifier in (TreeWalk(), RecursiveRejection()):
        as_tree = generate(target, Bushes(truths=truths, as_chain=True), verifier, RAGGED, sampling=sampling)
        assert as_tree.tokens == as_chain.tokens
        assert (as_tree.tally.accepted == as_chain.tally.accepted).all()


def test_rows_of_trees_do_not_depend_on_their_batch():
    target, sampling = tiny_target(dtype=torch.float64), Sampling()
    drafter = Bushes(truths=truths_of(target, RAGGED))
    together = generate(target, drafter, TreeWalk(), RAGGED, sampling=sampling).tokens
    for rows in ([3, 0, 7, 1], [5], [6, 2]):
        prompts = [RAGGED[row] for row in rows]
        assert generate(target, drafter, TreeWalk(), prompts, sampling=sampling, rows=rows).tokens == [
            together[row] for row in rows
        ]
