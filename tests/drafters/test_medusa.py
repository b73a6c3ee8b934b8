"""Medusa: heads start as the target's output layer; trees of ranks; three exact draft forms."""

import json
from itertools import product

import pytest
import torch
from torch.nn.functional import silu

from drafters.medusa import Medusa
from experiments.proof.tiny_drafters import save_tiny_heads
from framework.conformance import check_drafter
from framework.conformance.tiny_models import save_tiny, tiny_model, tiny_target, tiny_tokenizer
from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.drafting.parallel_draft import FORMS
from framework.drafting.static_tree import best_paths, expected_accepted, parents_of
from framework.gamma_policies.fixed import Fixed
from framework.heads.medusa_heads import OUTPUTS, MedusaHeads, load_heads, save_heads
from framework.models.cached_lm import CachedLM
from framework.models.target import Target
from framework.training.medusa_training import MedusaTraining
from framework.training.target_states import output_layer_input
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.speculative_sampling import SpeculativeSampling

GREEDY = Sampling(temperature=0)
RAGGED = [[5, 6, 7, 8, 5, 6], [9], [3, 4], [1, 2, 1, 2, 1, 2, 1], [30], [7] * 20, [11, 12, 13], [2, 40, 2, 40]]


def randomised(heads: MedusaHeads, seed: int = 0) -> MedusaHeads:
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=random).to(parameter) * 0.2)
    return heads


# Heads


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox"])
def test_untrained_heads_are_the_output_layer(family, output):
    target = tiny_target(family)
    heads = MedusaHeads(target, num_heads=3, output=output)
    tokens = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    with torch.no_grad():
        expected = target.model.model(input_ids=tokens, use_cache=False).logits
        got = heads(output_layer_input(target.model.model, tokens))
    assert got.shape == (2, 5, 3, 50)
    for head in range(3):
        torch.testing.assert_close(got[:, :, head], expected, rtol=0, atol=1e-6)  # rounding depends on threads


@pytest.mark.parametrize("output", OUTPUTS)
def test_heads_are_the_published_formula_each_with_its_own_weights(output):
    target = tiny_target(dtype=torch.float64)
    heads = randomised(MedusaHeads(target, num_heads=3, output=output))
    hidden, layer = torch.randn(4, 2, 32, dtype=torch.float64), target.model.model.get_output_embeddings().weight
    with torch.no_grad():
        own = {
            "tied": lambda head: layer,
            "mapped": lambda head: layer @ heads.maps[head],
            "own": lambda head: heads.outputs[head].weight,
        }[output]
        got = heads(hidden)
        for head in range(3):
            a, b = heads.weights[head], heads.biases[head]
            assert torch.allclose(got[:, :, head], (hidden + silu(hidden @ a.T + b)) @ own(head).T, atol=1e-12)
        for depth in (1, 2):
            assert torch.allclose(heads(hidden, depth), got[:, :, :depth], atol=1e-12)


def test_the_targets_output_layer_is_used_and_not_held():
    target = tiny_target()
    tied, mapped, own = (MedusaHeads(target, num_heads=2, output=output) for output in OUTPUTS)
    assert {name for name, _ in tied.named_parameters()} == {"weights", "biases"}
    assert {name for name, _ in mapped.named_parameters()} == {"weights", "biases", "maps"}
    layer = target.model.model.get_output_embeddings().weight
    assert all(output.weight.data_ptr() != layer.data_ptr() for output in own.outputs)
    assert all(parameter.requires_grad for parameter in own.parameters()) and not layer.requires_grad


def test_rows_beyond_the_vocabulary_are_cut():
    model = tiny_model(vocabulary=64)
    target = Target(CachedLM(model, vocabulary_size=50), tiny_tokenizer(50), 50, "padded")
    for output in OUTPUTS:
        assert MedusaHeads(target, num_heads=2, output=output)(torch.randn(3, 32)).shape == (3, 2, 50)


@pytest.mark.parametrize("output", OUTPUTS)
def test_heads_come_back_as_they_were_saved(tmp_path, output):
    target = tiny_target()
    heads = randomised(MedusaHeads(target, num_heads=2, output=output))
    save_heads(tmp_path, heads, target=target, accuracies=[[0.5, 0.2], [0.4, 0.1]])
    loaded, accuracies = load_heads(str(tmp_path), target)
    assert loaded.output == output and accuracies == [[0.5, 0.2], [0.4, 0.1]]
    for name, tensor in heads.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.bfloat16().float())
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


# Training


def test_the_loss_is_the_published_sum():
    """Head k at position t predicts token t + 1 + k with weight 0.8^k; summed by loops."""
    target, tokens = tiny_target(), torch.randint(1, 50, (3, 9), generator=torch.Generator().manual_seed(0))
    training = MedusaTraining(target, num_heads=4, output="tied", discount=0.8, ranks=3)
    randomised(training.module)
    logs = training.module(output_layer_input(target.model.model, tokens)).log_softmax(-1)
    expected = 0.0
    for head in range(1, 5):
        nats = [-logs[b, t, head - 1, tokens[b, t + 1 + head]] for b in range(3) for t in range(9 - 1 - head)]
        expected += 0.8**head * sum(nats) / len(nats)
    assert training.loss(tokens).item() == pytest.approx(expected.item(), rel=1e-5)


def test_accuracies_count_the_rank_of_the_right_token():
    target, tokens = tiny_target(), torch.randint(1, 50, (20, 9), generator=torch.Generator().manual_seed(0))
    training = MedusaTraining(target, num_heads=2, output="tied", discount=0.8, ranks=5)
    order = training.module(output_layer_input(target.model.model, tokens)).argsort(-1, descending=True)
    for head, by_rank in enumerate(training.accuracies(tokens), start=1):
        ranks = [order[b, t, head - 1].tolist().index(tokens[b, t + 1 + head])
                 for b in range(20) for t in range(9 - 1 - head)]  # fmt: skip
        assert by_rank == pytest.approx([ranks.count(rank) / len(ranks) for rank in range(5)])


def test_hidden_states_are_looked_at_without_a_trace():
    target = tiny_target(dtype=torch.float64)
    model, tokens = target.model.model, torch.tensor([[3, 1, 4, 1, 5]])
    hooks = dict(model.get_output_embeddings()._forward_pre_hooks)
    hidden = output_layer_input(model, tokens)
    with torch.no_grad():
        expected = model(input_ids=tokens, use_cache=False).logits
    assert torch.allclose(model.get_output_embeddings()(hidden), expected, atol=1e-12)
    assert model.get_output_embeddings()._forward_pre_hooks == hooks


@pytest.mark.parametrize(
    ("option", "value"),
    [("num_heads", 0), ("discount", 0), ("discount", 1.1), ("ranks", 0), ("ranks", 51), ("output", "lent")],
)
def test_wrong_numbers_name_their_key(option, value):
    options = {"num_heads": 2, "output": "tied", "discount": 0.8, "ranks": 5} | {option: value}
    with pytest.raises(ValueError, match=rf"^{option} is {value!r}"):
        MedusaTraining(tiny_target(), **options)


# Trees


def every_path(accuracies):
    """Every possible path and its value."""
    for depth in range(1, len(accuracies) + 1):
        for path in product(*(range(len(ranks)) for ranks in accuracies[:depth])):
            yield path, torch.tensor([accuracies[i][rank] for i, rank in enumerate(path)], dtype=torch.float64).prod()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_nodes", [1, 2, 7, 20, 38])
def test_no_tree_of_the_budget_is_worth_more(seed, num_nodes):
    """Children are worth at most their parents: the most valuable paths form the best tree."""
    dice = torch.Generator().manual_seed(seed)
    accuracies = (torch.rand(3, 3, generator=dice) / 3).tolist()
    paths = best_paths(accuracies, num_nodes)
    values = dict(every_path(accuracies))
    best = sum(sorted((float(value) for value in values.values()), reverse=True)[:num_nodes])
    assert len(set(paths)) == num_nodes and expected_accepted(accuracies, paths) == pytest.approx(best, abs=1e-12)
    assert paths == sorted(paths, key=lambda path: (len(path), path))  # breadth-first, siblings by rank
    parents = parents_of(paths)
    for path, parent in zip(paths, parents, strict=True):
        assert (paths[parent] if parent >= 0 else ()) == path[:-1]


def test_a_budget_beyond_all_ranks_takes_them_all():
    assert best_paths([[0.5, 0.5], [1.0, 0.0]], 100) == [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_tree_is_what_its_accuracies_say():
    """Confident heads make a chain; unsure heads after a better first one make a bush."""
    assert best_paths([[0.9, 0.1]] * 4, 4) == [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]
    assert best_paths([[0.3, 0.25, 0.2], [0.1, 0.1, 0.1]], 3) == [(0,), (1,), (2,)]


# Drafts


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(save_tiny_heads(tmp_path_factory.mktemp("heads"), tiny_target()))


def begun(drafter: Medusa, hidden: torch.Tensor, sampling: Sampling) -> Sequences:
    """Rows whose pending token comes from these hidden states [B, H]."""
    rows, empty = len(hidden), Draft.empty(len(hidden), torch.device("cpu"))
    zeros, ones = torch.zeros(rows, dtype=torch.int64), torch.ones(rows, dtype=torch.int64)
    outcome = Outcome(empty, zeros, zeros, ones, ones, ones.bool(), hidden=hidden.unsqueeze(1))
    sequences = Sequences.from_prompts([[1, 2]] * rows, width=20, device=torch.device("cpu"))
    drafter.begin(sequences, outcome, sampling)
    return sequences


@pytest.mark.parametrize("gamma", [1, 2, 3, 5])
def test_a_tree_holds_the_top_tokens_of_every_head(folder, gamma):
    target, hidden = tiny_target(), torch.randn(4, 32)
    heads, accuracies = load_heads(folder, target)
    drafter = Medusa(target, path=folder, form="tree", nodes=12)
    draft = drafter.propose(begun(drafter, hidden, Sampling()), gamma, torch.empty(4, 0))
    paths = [path for path in best_paths(accuracies, 12) if len(path) <= gamma]
    assert draft.num_nodes == drafter.num_nodes(gamma) == len(paths) and draft.parent.stride(0) == 0
    assert draft.scheme is SamplingScheme.ONE_HOT and draft.shape is Shape.TREE and draft.probs is None
    assert draft.parent[0].tolist() == parents_of(paths)
    order = heads(hidden).argsort(-1, descending=True)
    for row in range(4):
        assert draft.tokens[row].tolist() == [order[row, len(path) - 1, path[-1]] for path in paths]


def test_chains_hold_the_best_token_or_one_drawn_from_each_head(folder):
    target, hidden, sampling = tiny_target(), torch.randn(4, 32), Sampling(temperature=0.7, top_k=6)
    logits = load_heads(folder, target)[0](hidden)
    greedy = Medusa(target, path=folder, form="greedy_chain", nodes=1)
    draft = greedy.propose(begun(greedy, hidden, sampling), 2, torch.empty(4, 0))
    assert torch.equal(draft.tokens, logits[:, :2].argmax(-1)) and draft.probs is None
    sampled = Medusa(target, path=folder, form="sampled_chain", nodes=1)
    assert [sampled.num_uniforms(gamma) for gamma in (1, 3, 9)] == [1, 3, 3]
    draft = sampled.propose(begun(sampled, hidden, sampling), 9, torch.zeros(4, 3, dtype=torch.float64))
    assert (
        draft.scheme is SamplingScheme.IID
        and torch.allclose(draft.probs, sampling.probs(logits))
        and draft.num_nodes == 3
    )
    assert torch.equal(draft.tokens, (draft.probs > 0).int().argmax(-1))  # u = 0 draws the first token of positive mass


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_greedy_decoding_gives_the_targets_own_tokens(folder, form):
    target, stopping = tiny_target(), Stopping(max_new_tokens=25, eos_ids=(0,))
    drafter = Medusa(target, path=folder, form=form, nodes=9)
    rules = [None, RecursiveRejection()]  # the default rule and one other
    expected = Autoregressive(target=target, sampling=GREEDY).generate(RAGGED, stopping=stopping, seeds=[0] * 8)
    for rule in rules:
        engine = Engine(
            target=target, drafter=drafter, verifier=rule, gamma_policy=Fixed(gamma=4), sampling=GREEDY
        )  # fmt: skip
        together = engine.generate(RAGGED, stopping=stopping, seeds=[0] * 8)
        assert together.tokens == expected.tokens and together.finish_reasons == expected.finish_reasons
        for row, prompt in enumerate(RAGGED):
            assert engine.generate([prompt], stopping=stopping, seeds=[0]).tokens[0] == expected.tokens[row]


@pytest.mark.slow
@pytest.mark.usefixtures("narrow_buffers")
@pytest.mark.parametrize("form", FORMS)
def test_every_form_keeps_the_contract(tmp_path, form):
    target = tiny_target(vocabulary=5)
    path = str(save_tiny_heads(tmp_path, target))
    report = check_drafter(
        lambda target: Medusa(target, path=path, form=form, nodes=7), target=target, samples=3000, gamma=3
    )
    report.require()


# Bad input


def test_heads_of_another_target_are_refused(folder):
    other = tiny_target(seed=1)
    with pytest.raises(ValueError, match=rf"^path .* {other.fingerprint}"):
        Medusa(other, path=folder, form="tree", nodes=4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"form": "bush"}, r"^form is 'bush'; allowed: tree, greedy_chain, sampled_chain"),
        ({"nodes": 0}, r"^nodes is 0; allowed"),
        ({"nodes": 2.5}, r"^nodes is 2.5; allowed"),
    ],
)
def test_wrong_options_name_their_key(folder, options, says):
    with pytest.raises(ValueError, match=says):
        Medusa(tiny_target(), **({"path": folder, "form": "tree", "nodes": 4} | options))


def test_folders_without_good_heads_are_told(tmp_path, folder):
    target = tiny_target()
    with pytest.raises(FileNotFoundError, match=r"^path is .*nowhere"):
        load_heads(str(tmp_path / "nowhere"), target)
    with pytest.raises(FileNotFoundError, match=r"`train drafter=medusa`"):
        load_heads(str(save_tiny(tmp_path / "model")), target)
    save_tiny_heads(tmp_path / "torn", target)
    whole = (tmp_path / "torn" / "heads.safetensors").read_bytes()
    (tmp_path / "torn" / "heads.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OSError, match=r"^path .* cannot be loaded"):
        load_heads(str(tmp_path / "torn"), target)
    file = save_tiny_heads(tmp_path / "text", target) / "heads.json"
    facts = json.loads(file.read_text())
    for wrong, says in (
        (b"\xff\x00", "codec"),
        (b"{", "Expecting"),
        (b"{}", "not what training wrote"),
        (b"[]", "not what training wrote"),
        (json.dumps(facts | {"accuracies": 0.5}).encode(), "no list of accuracies"),
        (json.dumps(facts | {"accuracies": [[]]}).encode(), "no list of accuracies"),
        (json.dumps(facts | {"accuracies": [[0.5, "many"]]}).encode(), "has 'many' among its accuracies"),
        (json.dumps(facts | {"accuracies": [[0.5]]}).encode(), "has accuracies of 1 of"),
        (json.dumps(facts | {"output": "lent"}).encode(), "'lent'"),
    ):
        file.write_bytes(wrong)
        with pytest.raises(OSError, match=rf"^path .* cannot be loaded: .*{says}"):
            load_heads(str(tmp_path / "text"), target)


def test_a_chain_verifier_refuses_the_tree(folder):
    target = tiny_target()
    drafter = Medusa(target, path=folder, form="tree", nodes=4)
    with pytest.raises(ValueError, match="verifier=speculative_sampling"):
        Engine(
            target=target, drafter=drafter, verifier=SpeculativeSampling(), gamma_policy=Fixed(gamma=2), sampling=GREEDY
        )
