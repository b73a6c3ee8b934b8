"""EAGLE-1 and EAGLE-3: a layer predicts states and drafts chains or trees from its predictions."""

import re
from itertools import product

import pytest
import torch
from torch.nn import functional

from drafters.eagle import Eagle
from drafters.eagle_tree import EagleTree
from drafters.published.peagle import Peagle
from experiments.proof.tiny_drafters import save_tiny_eagle, save_tiny_eagle3, save_tiny_peagle
from framework.conformance.test_doubles import PATTERNS, Dictated, Witness
from framework.conformance.tiny_models import tiny_target
from framework.core.draft import SamplingScheme
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.drafting.tree_builder import TreeBuilder
from framework.gamma_policies.fixed import Fixed
from framework.heads.published_eagle import read_eagle, read_peagle
from framework.metrics.stopwatch import Stopwatch
from framework.training.eagle_training import EagleTraining
from framework.training.target_states import output_layer_input

OPTIONS = {
    "kind": "eagle", "hidden_layers": None, "draft_vocabulary": None, "train_output": False,
    "norm_before_residual": False, "mask_token": None, "depths": 3, "discount": 0.5, "feature_weight": 1.0,
    "token_weight": 0.1, "noise": 0.0,
}  # fmt: skip
OF_EAGLE3 = {"kind": "eagle3", "hidden_layers": [0, 1, 2], "draft_vocabulary": 25, "feature_weight": 0.0}
KINDS = {"eagle": (save_tiny_eagle, OPTIONS), "eagle3": (save_tiny_eagle3, OPTIONS | OF_EAGLE3)}
ON_MASKS = {"on masks": (save_tiny_peagle, OPTIONS | OF_EAGLE3 | {"mask_token": 1})}
RAGGED = [[5, 6, 7, 8, 5, 6], [9], [1, 2, 1, 2, 1, 2, 1, *range(20)]]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def tiny_training(target, path, kind):
    """The path of a saved random layer, and a training whose layer equals it."""
    save, options = (KINDS | ON_MASKS)[kind]
    read = read_eagle if kind in KINDS else read_peagle
    training = EagleTraining(target, **options)
    training.module.load_state_dict(read(str(save(path, target)), target).state_dict())
    return str(path), training


def eagle(target, path):
    return Eagle(target, path=path, layer_numbers=None)


def eagle_tree(target, path, depth, children, nodes):
    return EagleTree(target, path=path, layer_numbers=None, depth=depth, children=children, nodes=nodes)


def predictions(training, tokens, depths):
    """Per depth, the states predicted at tokens [B, T]."""
    return list(training._predicted(*training._states(tokens), tokens, depths))


def predicted_after(training, target, text, *, depth):
    """[Vd] logits at draft depth `depth`, from one uncached pass; the draft ends the text."""
    states = predictions(training, torch.tensor([text]), depth + 1)[depth]
    return training.module.scored(states[0, len(text) - 2 - depth])


class InTurn(Fixed):
    """Yields given gammas in order."""

    def __init__(self, *gammas):
        super().__init__(gamma=max(gammas))
        self._coming = iter(gammas)

    def next_gamma(self):
        return next(self._coming)


@pytest.mark.parametrize("kind", KINDS | ON_MASKS)
@pytest.mark.parametrize("pattern", PATTERNS)
@torch.no_grad()
def test_what_is_drafted_is_what_was_trained(tmp_path, pattern, kind):
    """A draft's distributions equal training's predictions at the same depth, under every acceptance."""
    target = tiny_target()
    path, training = tiny_training(target, tmp_path, kind)
    chain = eagle(target, path) if kind in KINDS else Peagle(target, path=path, layer_numbers=None)
    drafter, verifier, gammas = Witness(chain), Dictated(PATTERNS[pattern]), (3, 3, 0, 0, 1)
    engine = Engine(
        target=target, drafter=drafter, verifier=verifier, gamma_policy=InTurn(*gammas), sampling=Sampling()
    )
    decoding = engine.begin(RAGGED, stopping=Stopping(20), seeds=[0, 1, 2], detailed=False, stopwatch=Stopwatch(CPU))
    for _ in gammas:
        engine.round(decoding)
    assert [proposal.draft.num_nodes for proposal in drafter.proposals] == [3, 3, 1]
    for proposal in drafter.proposals:
        for row, depth in product(range(3), range(proposal.draft.num_nodes)):
            text = proposal.committed[row] + proposal.draft.tokens[row, :depth].tolist()
            expected = predicted_after(training, target, text, depth=depth).softmax(0)
            assert torch.allclose(proposal.draft.probs[row, depth], expected, atol=1e-5), (row, depth)
            if kind != "eagle":  # every other token is drafted
                assert proposal.draft.support[row, depth].tolist() == list(range(0, 50, 2))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_node_of_a_tree_sees_its_own_path_alone(tmp_path, monkeypatch, kind):
    target = tiny_target()
    path, training = tiny_training(target, tmp_path, kind)
    grown: list[
        tuple[list, torch.Tensor]
    ] = []  # per pass and row: paths of the growing nodes, and the distributions after them
    add, grow = TreeBuilder.add, TreeBuilder.grow

    def noting_add(tree, logits, num_children, support):
        if not tree.depth:
            tree.paths = [[[]] for _ in RAGGED]
        grown.append((tree.paths, logits))
        add(tree, logits, num_children, support)

    def noting_grow(tree, number):
        tokens, above = grow(tree, number)
        rows = zip(tree.paths, tokens.tolist(), above.tolist(), strict=True)
        tree.paths = [[paths[i] + [token] for token, i in zip(*both, strict=True)] for paths, *both in rows]
        return tokens, above

    monkeypatch.setattr(TreeBuilder, "add", noting_add)
    monkeypatch.setattr(TreeBuilder, "grow", noting_grow)
    drafter = Witness(eagle_tree(target, path, depth=3, children=3, nodes=8))
    engine = Engine(
        target=target,
        drafter=drafter,
        verifier=Dictated(PATTERNS["one"]),
        gamma_policy=Fixed(gamma=3),
        sampling=Sampling(),
    )
    decoding = engine.begin(RAGGED, stopping=Stopping(16), seeds=[0, 1, 2], detailed=False, stopwatch=Stopwatch(CPU))
    for _ in range(2):
        engine.round(decoding)
    assert len(grown) == 6 and [len(paths[0]) for paths, _ in grown] == [1, 3, 3] * 2
    for number, (paths, logits) in enumerate(grown):
        for row, place in product(range(3), range(len(paths[0]))):
            nodes = paths[row][place]
            text = drafter.proposals[number // 3].committed[row] + nodes
            expected = predicted_after(training, target, text, depth=len(nodes))
            assert torch.allclose(logits[row, place], expected, atol=1e-4), (number, row, nodes)


def test_the_nodes_kept_are_the_most_valuable_of_all():
    """Every row's tree against an exhaustive search of all paths."""
    dice = torch.Generator().manual_seed(0)
    distributions = [
        {path: torch.randn(3, generator=dice) for depth in range(3) for path in product(range(3), repeat=depth)}
        for _ in range(4)
    ]
    tree, paths = TreeBuilder(4, device=CPU), [[()] for _ in distributions]
    tree.add(torch.stack([probs[()] for probs in distributions]).unsqueeze(1), 3)
    while tree.depth < 3:
        tokens, above = tree.grow(9)
        rows = zip(paths, tokens.tolist(), above.tolist(), strict=True)
        paths = [[old[i] + (token,) for token, i in zip(*both, strict=True)] for old, *both in rows]
        tree.add(
            torch.stack(
                [torch.stack([probs[path] for path in its]) for probs, its in zip(distributions, paths, strict=True)]
            ),
            3,
        )
    draft, kept = tree.draft(7, deepest=3), []
    for row, probs in enumerate(distributions):
        found: list[tuple[int, ...]] = []
        for token, parent in zip(draft.tokens[row].tolist(), draft.parent[row].tolist(), strict=True):
            found.append((*(() if parent < 0 else found[parent]), token))
        every = [path for depth in range(1, 4) for path in product(range(3), repeat=depth)]
        value = {path: sum(probs[path[:d]].log_softmax(0)[path[d]].item() for d in range(len(path))) for path in every}
        assert set(found) == set(sorted(every, key=value.__getitem__, reverse=True)[:7])
        assert [len(path) for path in found] == sorted(map(len, found)), "nodes are not breadth-first"
        kept.append(found)
    assert (
        len({tuple(sorted(found)) for found in kept}) == 4
        and draft.scheme is SamplingScheme.ONE_HOT
        and bool(draft.valid.all())
    )
    # A smaller gamma keeps the same nodes down to its depth and offers no deeper ones.
    cut = tree.draft(7, deepest=1)
    assert cut.valid.equal(torch.tensor([[len(path) == 1 for path in found] for found in kept]))
    assert cut.tokens.equal(draft.tokens) and bool((cut.parent == -1).all()) and cut.tree.deepest == 1


def test_of_equal_values_the_parent_is_kept_first():
    tree, certain = TreeBuilder(1, device=CPU), torch.tensor([0.0, -torch.inf, -torch.inf])
    tree.add(certain.view(1, 1, 3), 2)
    while tree.depth < 4:
        tokens, _ = tree.grow(1)
        tree.add(certain.expand(1, tokens.shape[1], 3), 2)
    draft = tree.draft(3, deepest=4)
    assert draft.tokens.tolist() == [[0, 0, 0]] and draft.parent.tolist() == [[-1, 0, 1]]


@torch.no_grad()
def test_the_loss_is_that_of_every_depth():
    target = tiny_target()
    training, tokens = EagleTraining(target, **OPTIONS), torch.randint(0, 50, (2, 8))
    hidden, log_p = output_layer_input(target.model.model, tokens), target.model.uncached(tokens).log_softmax(-1)
    expected = 0.0
    for depth in range(3):
        each = []
        for row, last in product(range(2), range(depth + 1, 8)):  # `last` is the deepest token of a draft
            states = predictions(training, tokens[row : row + 1, : last + 1], 3)
            state = states[depth][0, -1]
            nats = -(log_p[row, last].exp() * training.module.scored(state).log_softmax(-1)).sum()
            each.append(float(functional.smooth_l1_loss(state, hidden[row, last]) + 0.1 * nats))
        expected += 0.5**depth * sum(each) / len(each)
    assert float(training.loss(tokens)) == pytest.approx(expected, rel=1e-4)


@torch.no_grad()
def test_with_a_draft_vocabulary_only_its_tokens_count():
    """The most frequent tokens are drafted, and only their cross-entropy is summed."""
    target = tiny_target()
    training, tokens = EagleTraining(target, **(OPTIONS | OF_EAGLE3)), torch.randint(0, 50, (1, 8))
    counts = torch.randint(1, 100, (50,))
    training.use_counts(counts)
    layer, kept = training.module, training.module.support
    assert counts[kept].min() >= counts[~layer.t2d].max() and layer.t2d.sum() == 25
    assert torch.equal(layer.lm_head.weight, target.model.model.get_output_embeddings().weight[kept])
    p = target.model.uncached(tokens)[0].softmax(-1)[:, kept]
    expected = 0.0
    for depth, states in enumerate(predictions(training, tokens, 3)):
        nats = -(p[1 + depth :] * layer.scored(states[0]).log_softmax(-1)).sum(-1)
        expected += 0.5**depth * 0.1 * float(nats.mean())
    assert float(training.loss(tokens)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("family", "shape", "kind"),
    [
        ("llama", (4, 24), "eagle"),
        ("t5", (4, 2, 24), "eagle"),
        ("llama", (4, 24), "eagle3"),
        ("t5", (4, 2, 24), "eagle3"),
    ],
)
def test_training_makes_it_better_and_leaves_the_target_alone(family, shape, kind):
    target, options = tiny_target(family), KINDS[kind][1] | {"train_output": True, "draft_vocabulary": None}
    training, tokens = EagleTraining(target, **(options | {"noise": 0.1})), torch.randint(1, 6, shape)
    assert training.loss(tokens) == training.loss(tokens) != EagleTraining(target, **options).loss(tokens)
    before = {name: tensor.clone() for name, tensor in target.model.model.state_dict().items()}
    optimizer = torch.optim.AdamW(training.module.parameters(), lr=5e-3)
    first = training.evaluate(tokens)
    for _ in range(40):
        training.loss(tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = training.evaluate(tokens)
    for depth in (1, 2, 3, 4):
        overlap = f"depth {depth} overlap"
        assert found[overlap] > first[overlap] + 0.1 and 0 <= found[f"depth {depth} top-1"] <= 1
    assert all(torch.equal(before[name], tensor) for name, tensor in target.model.model.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_greedy_decoding_gives_the_tokens_of_a_target_with_an_encoder(tmp_path, tree, kind):
    target, sampling = tiny_target("t5"), Sampling(temperature=0)
    path = str(KINDS[kind][0](tmp_path, target))
    drafter = eagle_tree(target, path, depth=4, children=3, nodes=9) if tree else eagle(target, path)
    engine = Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=sampling)
    plain, asked = Autoregressive(target=target, sampling=sampling), {"stopping": Stopping(20), "seeds": [0, 1, 2]}
    assert engine.generate(RAGGED, **asked).tokens == plain.generate(RAGGED, **asked).tokens


@pytest.mark.parametrize("kind", KINDS)
def test_it_comes_back_as_it_was_saved(tmp_path, kind):
    target = tiny_target()
    training = EagleTraining(target, **KINDS[kind][1])
    training.save(tmp_path, torch.randint(0, 50, (2, 12)))
    for name, tensor in read_eagle(str(tmp_path), target).state_dict().items():
        saved = training.module.state_dict()[name]
        assert torch.equal(saved.bfloat16().float() if saved.is_floating_point() else saved, tensor), name


def test_what_is_wrong_names_its_key(tmp_path):
    target = tiny_target()
    for option, value in (
        ("depths", 0),
        ("discount", 1.5),
        ("feature_weight", -1),
        ("token_weight", -1),
        ("noise", -1),
        ("kind", "eagle9"),
        ("draft_vocabulary", 51),
    ):
        with pytest.raises(ValueError, match=rf"^{option} is {value!r}"):
            EagleTraining(target, **(OPTIONS | {option: value}))
    with pytest.raises(ValueError, match=r"^window is 3; allowed: at least 4"):
        EagleTraining(target, **OPTIONS).loss(torch.zeros(1, 3, dtype=torch.int64))
    for option in ("depth", "children", "nodes"):
        with pytest.raises(ValueError, match=rf"^{option} is 0"):
            eagle_tree(target, "/nowhere", **({"depth": 1, "children": 1, "nodes": 1} | {option: 0}))
    for option, value in (("feature_weight", 0.1), ("hidden_layers", [3])):
        with pytest.raises(
            ValueError, match=rf"^{option} is {re.escape(repr(value))}; allowed: (0 for|a list of whole)"
        ):
            EagleTraining(target, **(OPTIONS | OF_EAGLE3 | {option: value}))
