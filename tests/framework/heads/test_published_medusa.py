"""Published Medusa heads: equal to the formula, lossless in the loop, refused in one line where they do not fit."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafters.medusa import Medusa
from framework.conformance import check_drafter
from framework.conformance.tiny_models import tiny_target
from framework.core.option_error import OptionError
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.drafting.static_tree import best_paths
from framework.gamma_policies.fixed import Fixed
from framework.heads.medusa_heads import load_heads, save_heads
from tests.support.published.medusa import HEADS, LAYOUTS, reference_logits, save_published_heads

# mc_sim_7b_63 of the original project's medusa_choices.py: the ranks of each node's path, in the published order.
PUBLISHED_TREE = (
    "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003 40 21 004 005 0000 "
    "011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021 90 060 0001 16 070"
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("blocks", [1, 3])
def test_logits_are_the_published_formula(tmp_path, layout, own, blocks):
    target = tiny_target(dtype=torch.float64)
    expected = save_published_heads(tmp_path, target, own=own, layout=layout, blocks=blocks)
    heads, accuracies = load_heads(str(tmp_path), target)
    assert heads.num_heads == len(accuracies) == HEADS and heads.blocks == blocks
    hidden = torch.randn(3, 4, 32, dtype=torch.float64)
    logits = heads(hidden)
    for row in range(3):
        for position in range(4):
            assert torch.allclose(
                logits[row, position], reference_logits(expected, hidden[row, position], blocks=blocks)
            )


def test_vllms_heads_may_have_no_bias(tmp_path):
    target, hidden = tiny_target(dtype=torch.float64), torch.randn(32, dtype=torch.float64)
    expected = save_published_heads(tmp_path, target, layout="vllm", bias=False)
    assert torch.allclose(load_heads(str(tmp_path), target)[0](hidden), reference_logits(expected, hidden))


def test_the_tree_is_the_published_one_at_every_budget(tmp_path):
    save_published_heads(tmp_path, tiny_target())
    _, accuracies = load_heads(str(tmp_path), tiny_target())
    published = [tuple(map(int, path)) for path in PUBLISHED_TREE.split()]
    for nodes in range(1, 64):
        assert set(best_paths(accuracies, nodes)) == set(published[:nodes])


@pytest.mark.slow
@pytest.mark.usefixtures("narrow_buffers")
def test_a_published_drafter_keeps_the_contract(tmp_path):
    target = tiny_target(vocabulary=12)  # the tree uses ten ranks
    save_published_heads(tmp_path, target)
    check_drafter(
        lambda target: Medusa(target, path=str(tmp_path), form="tree", nodes=20), target=target, samples=2000, gamma=3
    ).require()


def test_greedy_decoding_gives_the_targets_own_tokens(tmp_path):
    target, sampling, stopping = tiny_target(), Sampling(temperature=0), Stopping(max_new_tokens=25, eos_ids=(0,))
    save_published_heads(tmp_path, target, own=False, layout="pickled")
    drafter = Medusa(target, path=str(tmp_path), form="tree", nodes=63)
    engine = Engine(target=target, drafter=drafter, verifier=None, gamma_policy=Fixed(gamma=4), sampling=sampling)
    prompts, seeds = [[5, 6, 7, 8, 5, 6], [9], [2, 40, 2, 40]], [0] * 3
    plain = Autoregressive(target=target, sampling=sampling).generate(prompts, stopping=stopping, seeds=seeds)
    assert engine.generate(prompts, stopping=stopping, seeds=seeds).tokens == plain.tokens


def test_published_heads_can_be_trained_on_and_saved(tmp_path):
    target = tiny_target()
    save_published_heads(tmp_path / "published", target, blocks=2)
    heads, accuracies = load_heads(str(tmp_path / "published"), target, to_be_trained_on=True)
    assert all(parameter.requires_grad for parameter in heads.parameters())
    save_heads(tmp_path / "ours", heads, target=target, accuracies=accuracies)
    again, hidden = load_heads(str(tmp_path / "ours"), target)[0], torch.randn(4, 32)
    assert again.blocks == 2 and torch.allclose(again(hidden), heads(hidden), rtol=0.05, atol=0.1)  # saved in bfloat16


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"hidden_size": 48}, r"made for a hidden size of 32 instead of 48; its .* 0\.0\.linear\.weight \[32, 32\]"),
        ({"vocabulary": 60}, r"made for a vocabulary of 50 instead of 60; its .* 0\.1\.weight \[50, 32\] .* 2 more"),
    ],
)
def test_heads_of_another_target_are_refused_in_words(tmp_path, settings, says):
    save_published_heads(tmp_path, tiny_target())
    with pytest.raises(OptionError, match=rf"^path is .*, {says}"):
        load_heads(str(tmp_path), tiny_target(**settings))


@pytest.mark.parametrize(
    ("layout", "change", "config", "says"),
    [
        ("original", {"3.0.linear.bias": None}, {}, r"missing 3\.0\.linear\.bias;"),
        ("original", {"3.0.linear.weight": None}, {}, r"missing 3\.0\.linear\.weight;"),
        ("original", {"4.0.linear.weight": None}, {}, r"surplus 4\.0\.linear\.bias, 4\.1\.weight;"),
        ("original", {"1.1.weight": None}, {}, r"missing 1\.1\.weight;"),
        ("vllm", {f"blocks.{i}.layers.0.weight": None for i in range(HEADS)}, {}, "without Medusa heads; allowed: a"),
        ("vllm", {"lm_heads.2.weight": None}, {}, r"missing lm_heads\.2\.weight;"),
        ("vllm", {"token_map": torch.arange(9)}, {}, "token_map drafts from a part of the vocabulary"),
        ("vllm", {}, {"logit_scale": 0.5}, r"whose logit_scale is 0\.5; allowed: heads with logit_scale 1"),
        ("vllm", {}, {"truncated_vocab_size": 20, "vocab_size": 50}, "whose truncated_vocab_size is 20, of 50"),
        ("vllm", {}, {"accuracies": [[1]]}, "other accuracies than a list of numbers for every head"),
        ("vllm", {}, {"accuracies": "x"}, "other accuracies than a list of numbers for every head"),
    ],
)  # fmt: skip
def test_heads_that_cannot_be_used_are_refused_in_one_line(tmp_path, layout, change, config, says):
    target = tiny_target()
    save_published_heads(tmp_path, target, layout=layout)
    (file,) = tmp_path.glob("*.safetensors")
    tensors = {name.removeprefix("medusa_heads."): tensor for name, tensor in load_file(file).items()} | change
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)
    settings = tmp_path / "config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | config))
    with pytest.raises(OptionError, match=rf"^path is .*{says}"):
        load_heads(str(tmp_path), target)


def test_blocks_with_weights_of_their_own_are_refused(tmp_path):
    save_published_heads(tmp_path, tiny_target(), blocks=2)
    tensors = load_file(tmp_path / "medusa_lm_head.safetensors")
    tensors["1.1.linear.weight"][0, 0] += 1
    save_file(tensors, tmp_path / "medusa_lm_head.safetensors")
    with pytest.raises(
        OptionError, match=r"where 1\.0\.linear\.weight and 1\.1\.linear\.weight differ; allowed: heads"
    ):
        load_heads(str(tmp_path), tiny_target())
