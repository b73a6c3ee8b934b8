"""DART: one layer scores all positions at once, learns the target's distribution, and drafts exactly."""

import json

import pytest
import torch
from torch.nn import functional

from drafters.dart import Dart
from experiments.proof.tiny_drafters import save_tiny_layer
from framework.conformance import check_drafter
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.drafting.parallel_draft import FORMS
from framework.gamma_policies.fixed import Fixed
from framework.heads.dart_layer import DartLayer, load_layer
from framework.training.dart_training import DartTraining
from framework.training.target_states import output_layer_input

OPTIONS = {"num_positions": 3, "discount": 0.5, "ranks": 4, "stride": 1}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("family", ["llama", "t5"])
@torch.no_grad()
def test_untrained_it_scores_as_the_output_layer_does(family):
    target = tiny_target(family)
    layer, hidden = DartLayer(target, num_positions=4), torch.randn(2, 5, 32)
    logits = layer(hidden, torch.randint(0, 50, (2, 5)))
    expected = target.model.model.get_output_embeddings()(hidden)
    assert logits.shape == (2, 5, 4, 50) and torch.allclose(logits, expected.unsqueeze(2).expand_as(logits), atol=1e-5)


@torch.no_grad()
def test_a_position_sees_those_before_it_and_pending(tmp_path):
    target = tiny_target()
    layer, _ = load_layer(str(save_tiny_layer(tmp_path, target)), target)
    hidden, pending = torch.randn(6, 32), torch.arange(6)
    logits = layer(hidden, pending)
    assert torch.allclose(layer(hidden, pending, 2), logits[:, :2], atol=1e-6)
    assert not torch.allclose(layer(hidden, pending + 1)[:, 2], logits[:, 2], atol=1e-3)
    layer.masks[1] += torch.randn(32)  # the second position's mask
    changed = (layer(hidden, pending) - logits).abs().amax((0, 2)) > 1e-4
    assert changed.tolist() == [False, True, True]


@torch.no_grad()
def test_the_loss_is_the_divergence_from_the_targets_distribution_at_every_position():
    target = tiny_target()
    training, tokens = DartTraining(target, **OPTIONS), torch.randint(0, 50, (2, 9))
    torch.nn.init.normal_(training.module.change.weight, std=0.1)
    hidden, log_p = output_layer_input(target.model.model, tokens), target.model.uncached(tokens).log_softmax(-1)
    expected = 0.0
    for position in range(3):
        nats = [
            functional.kl_div(
                training.module(hidden[row, place], tokens[row, place + 1])[position].log_softmax(-1),
                log_p[row, place + 1 + position], reduction="sum", log_target=True,
            )
            for row in range(2) for place in range(9) if place + 2 + position < 9
        ]  # fmt: skip
        expected += 0.5**position * float(sum(nats)) / len(nats)
    assert float(training.loss(tokens)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("family", "shape"), [("llama", (4, 24)), ("t5", (4, 2, 24))])
def test_training_makes_it_better_and_leaves_the_target_alone(family, shape):
    target = tiny_target(family)
    training, tokens = DartTraining(target, **(OPTIONS | {"stride": 2})), torch.randint(1, 6, shape)
    before = {name: tensor.clone() for name, tensor in target.model.model.state_dict().items()}
    optimizer = torch.optim.AdamW(training.module.parameters(), lr=5e-3)
    losses = []
    for _ in range(25):
        losses.append(training.loss(tokens))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]
    assert all(torch.equal(before[name], tensor) for name, tensor in target.model.model.state_dict().items())
    found = training.evaluate(tokens)
    assert list(found)[:2] == ["position 1 top-1", "position 1 top-4"] and all(0 <= it <= 1 for it in found.values())


def test_it_comes_back_as_it_was_saved(tmp_path):
    target = tiny_target()
    training, tokens = DartTraining(target, **OPTIONS), torch.randint(0, 50, (2, 12))
    training.save(tmp_path, tokens)
    layer, accuracies = load_layer(str(tmp_path), target)
    assert accuracies == training.accuracies(tokens) and layer.num_positions == 3
    for name, tensor in training.module.state_dict().items():
        assert torch.equal(layer.state_dict()[name], tensor.bfloat16().float()), name


@pytest.mark.parametrize("form", FORMS)
def test_every_form_keeps_the_contract_and_greedy_decoding_the_targets_tokens(tmp_path, form):
    target, sampling = tiny_target(vocabulary=5), Sampling(temperature=0)
    path = str(save_tiny_layer(tmp_path, target))
    check_drafter(
        lambda target: Dart(target, path=path, form=form, nodes=7), target=target, samples=1000, gamma=3
    ).require()
    drafter, prompts, stopping = Dart(target, path=path, form=form, nodes=7), [[1, 2, 3], [4]], Stopping(20)
    engine = Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=sampling)
    expected = Autoregressive(target=target, sampling=sampling).generate(prompts, stopping=stopping, seeds=[0, 0])
    assert engine.generate(prompts, stopping=stopping, seeds=[0, 0]).tokens == expected.tokens


def test_what_is_wrong_names_its_key(tmp_path):
    target = tiny_target()
    for option, value in (("num_positions", 0), ("discount", 1.5), ("ranks", 51), ("stride", 0)):
        with pytest.raises(ValueError, match=rf"^{option} is {value}"):
            DartTraining(target, **(OPTIONS | {option: value}))
    with pytest.raises(ValueError, match=r"^window is 4; allowed: at least 5"):
        DartTraining(target, **OPTIONS).loss(torch.zeros(1, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"^form is 'bush'"):
        Dart(target, path="/nowhere", form="bush", nodes=1)
    with pytest.raises(FileNotFoundError, match=r"train drafter=dart"):
        Dart(target, path="/nowhere", form="tree", nodes=1)
    file = save_tiny_layer(tmp_path, target) / "layer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"accuracies": [[0.5]]}))
    with pytest.raises(OSError, match=r"^path .* accuracies of 1 of 3"):
        load_layer(str(tmp_path), target)
    with pytest.raises(ValueError, match=r"^path is .* target"):
        load_layer(str(save_tiny_layer(tmp_path / "other", tiny_target(seed=1))), target)
