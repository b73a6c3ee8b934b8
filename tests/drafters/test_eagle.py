"""EAGLE: a layer predicts the target's states and drafts chains or trees from its predictions."""

from itertools import product

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from drafters.eagle import Eagle
from drafters.eagle_tree import EagleTree
from experiments.proof.tiny_drafters import save_tiny_eagle
from framework.conformance.test_doubles import PATTERNS, Dictated, Witness
from framework.conformance.tiny_models import tiny_target
from framework.core.draft import SamplingScheme
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.drafting.tree_builder import TreeBuilder
from framework.gamma_policies.fixed import Fixed
from framework.heads.eagle_layer import load_eagle
from framework.metrics.stopwatch import Stopwatch
from framework.training.eagle_training import EagleTraining
from framework.training.future_tokens import output_layer_input

OPTIONS = {"depths": 3, "discount": 0.5, "feature_weight": 1.0, "token_weight": 0.1, "noise": 0.0}
RAGGED = [[5, 6, 7, 8, 5, 6], [9], [1, 2, 1, 2, 1, 2, 1, *range(20)]]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def tiny_training(target, path, **options):
    """Training whose layer equals the saved one."""
    training = EagleTraining(target, **(OPTIONS | options))
    training.module.load_state_dict(load_eagle(str(path), target).state_dict())
    return training


def predicted_after(training, target, text, *, depth):
    """[V] logits at draft depth `depth`, from one uncached pass; the draft ends the text."""
    tokens = torch.tensor([text])
    hidden = output_layer_input(target.model.model, tokens)
    states = list(training._predicted(hidden, tokens, depth + 1))[depth]
    return training.module.scored(states[0, len(text) - 2 - depth])


class InTurn(Fixed):
    """Yields given gammas in order."""

    def __init__(self, *gammas):
        super().__init__(gamma=max(gammas))
        self._coming = iter(gammas)

    def next_gamma(self):
        return next(self._coming)


@pytest.mark.parametrize("pattern", PATTERNS)
@torch.no_grad()
def test_what_is_drafted_is_what_was_trained(tmp_path, pattern):
    """A draft's distributions equal training's predictions at the same depth, under every acceptance."""
    target = tiny_target()
    training = tiny_training(target, save_tiny_eagle(tmp_path, target))
    drafter, verifier, gammas = Witness(Eagle(target, path=str(tmp_path))), Dictated(PATTERNS[pattern]), (3, 3, 0, 0, 1)
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


@torch.no_grad()
def test_a_node_of_a_tree_sees_its_own_path_alone(tmp_path, monkeypatch):
    target = tiny_target()
    training = tiny_training(target, save_tiny_eagle(tmp_path, target))
    grown: list[
        tuple[list, torch.Tensor]
    ] = []  # per pass and row: paths of the growing nodes, and the distributions after them
    add, grow = TreeBuilder.add, TreeBuilder.grow

    def noting_add(tree, logits, num_children):
        if not tree.depth:
            tree.paths = [[[]] for _ in RAGGED]
        grown.append((tree.paths, logits))
        add(tree, logits, num_children)

    def noting_grow(tree, number):
        tokens, above = grow(tree, number)
        rows = zip(tree.paths, tokens.tolist(), above.tolist(), strict=True)
        tree.paths = [[paths[i] + [token] for token, i in zip(*both, strict=True)] for paths, *both in rows]
        return tokens, above

    monkeypatch.setattr(TreeBuilder, "add", noting_add)
    monkeypatch.setattr(TreeBuilder, "grow", noting_grow)
    drafter = Witness(EagleTree(target, path=str(tmp_path), depth=3, children=3, nodes=8))
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
            path = paths[row][place]
            text = drafter.proposals[number // 3].committed[row] + path
            expected = predicted_after(training, target, text, depth=len(path))
            assert torch.allclose(logits[row, place], expected, atol=1e-4), (number, row, path)


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
            states = list(training._predicted(hidden[row : row + 1, : last + 1], tokens[row : row + 1, : last + 1], 3))
            state = states[depth][0, -1]
            nats = -(log_p[row, last].exp() * training.module.scored(state).log_softmax(-1)).sum()
            each.append(float(functional.smooth_l1_loss(state, hidden[row, last]) + 0.1 * nats))
        expected += 0.5**depth * sum(each) / len(each)
    assert float(training.loss(tokens)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("family", "shape"), [("llama", (4, 24)), ("t5", (4, 2, 24))])
def test_training_makes_it_better_and_leaves_the_target_alone(family, shape):
    target = tiny_target(family)
    training, tokens = EagleTraining(target, **(OPTIONS | {"noise": 0.1})), torch.randint(1, 6, shape)
    assert training.loss(tokens) == training.loss(tokens) != EagleTraining(target, **OPTIONS).loss(tokens)
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


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_greedy_decoding_gives_the_targets_tokens(tmp_path, family, tree):
    target, sampling = tiny_target(family), Sampling(temperature=0)
    path = str(save_tiny_eagle(tmp_path, target))
    drafter = EagleTree(target, path=path, depth=4, children=3, nodes=9) if tree else Eagle(target, path=path)
    engine = Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=sampling)
    plain, asked = Autoregressive(target=target, sampling=sampling), {"stopping": Stopping(20), "seeds": [0, 1, 2]}
    assert engine.generate(RAGGED, **asked).tokens == plain.generate(RAGGED, **asked).tokens


def test_it_comes_back_as_it_was_saved(tmp_path):
    target = tiny_target()
    training = EagleTraining(target, **OPTIONS)
    training.save(tmp_path, torch.randint(0, 50, (2, 12)))
    for name, tensor in load_eagle(str(tmp_path), target).state_dict().items():
        assert torch.equal(training.module.state_dict()[name].bfloat16().float(), tensor), name


def test_what_is_wrong_names_its_key(tmp_path):
    target = tiny_target()
    for option, value in (
        ("depths", 0),
        ("discount", 1.5),
        ("feature_weight", -1),
        ("token_weight", -1),
        ("noise", -1),
    ):
        with pytest.raises(ValueError, match=rf"^{option} is {value}"):
            EagleTraining(target, **(OPTIONS | {option: value}))
    with pytest.raises(ValueError, match=r"^window is 3; allowed: at least 4"):
        EagleTraining(target, **OPTIONS).loss(torch.zeros(1, 3, dtype=torch.int64))
    for option in ("depth", "children", "nodes"):
        with pytest.raises(ValueError, match=rf"^{option} is 0"):
            EagleTree(target, path="/nowhere", **({"depth": 1, "children": 1, "nodes": 1} | {option: 0}))
    with pytest.raises(FileNotFoundError, match=r"train drafter=eagle"):
        Eagle(target, path="/nowhere")
    with pytest.raises(ValueError, match=r"^path is .* target"):
        Eagle(target, path=str(save_tiny_eagle(tmp_path, tiny_target(seed=1))))
    path = save_tiny_eagle(tmp_path, target)
    save_file({"another": torch.zeros(1)}, path / "eagle.safetensors")
    with pytest.raises(OSError, match=r"^path is .* cannot be loaded: .*join\.weight.*$") as found:
        Eagle(target, path=str(path))
    assert "\n" not in str(found.value)
