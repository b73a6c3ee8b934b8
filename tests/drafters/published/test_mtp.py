"""Multi-token prediction: published layers, their formula over rounds of ragged acceptance, wrong checkpoints."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafters.published.mtp import Mtp
from framework.conformance import check_drafter
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.metrics.stopwatch import Stopwatch
from framework.models.target import Target
from tests.support.published.mtp import (
    LAYOUTS,
    block_by_formula,
    block_of_class,
    reference_logits,
    save_published_mtp,
)

PROMPTS = [[5, 6, 7, 8, 5, 6], [9], [3, 4, 40]]
STOPPING = Stopping(max_new_tokens=40)


def target_of(name: str, dtype: torch.dtype = torch.float32) -> Target:
    experts = {"experts_implementation": "eager"} if dtype is torch.float64 else {}  # torch's are of float32 at most
    return tiny_target(LAYOUTS[name].family, dtype=dtype, **LAYOUTS[name].config, **experts)


@pytest.mark.parametrize("chained", ["after_norm", "before_norm"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_drafts_are_the_published_formula_over_ragged_rounds(tmp_path, name, chained):
    target, layout = target_of(name, torch.float64), LAYOUTS[name]
    model = target.model.model
    tensors, block = save_published_mtp(tmp_path, model, layout)
    by_formula = name in ("mimo", "speculators")
    run = block_by_formula(model, tensors, layout.block) if by_formula else block_of_class(model, block)
    drafter = Mtp(target, path=str(tmp_path), chained=chained)
    engine = Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=Sampling(temperature=3.0))
    given = {"stopping": STOPPING, "seeds": [3, 1, 2], "detailed": False, "stopwatch": Stopwatch(target.device)}
    decoding, kept, drafts = engine.begin(PROMPTS, **given), set(), []
    propose = drafter.propose
    drafter.propose = lambda *arguments: drafts.append(propose(*arguments)) or drafts[-1]
    for _ in range(5):
        rows, lengths = decoding.sequences.tokens.tolist(), decoding.sequences.lengths.tolist()
        kept.add(tuple(engine.round(decoding).accepted))
        for row, text in enumerate(text[:length] for text, length in zip(rows, lengths, strict=True)):
            drafted = drafts[-1].tokens[row].tolist()
            after_norm = chained == "after_norm"
            expected = reference_logits(model, tensors, run, layout, text, drafted, after_norm=after_norm)
            got = drafts[-1].probs[row].double()
            torch.testing.assert_close(got, (expected / 3).softmax(-1), rtol=0, atol=1e-5)
    assert any(len(set(accepted)) > 1 for accepted in kept), "acceptance is to be ragged"


@pytest.mark.parametrize("name", LAYOUTS)
def test_greedy_tokens_are_those_of_plain_decoding(tmp_path, name):
    target, greedy = target_of(name), Sampling(temperature=0)
    save_published_mtp(tmp_path, target.model.model, LAYOUTS[name])
    drafter = Mtp(target, path=str(tmp_path), chained="after_norm")
    asked = {"stopping": STOPPING, "seeds": [0, 1, 2]}
    engine = Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=greedy)
    plain = Autoregressive(target=target, sampling=greedy)
    assert engine.generate(PROMPTS, **asked).tokens == plain.generate(PROMPTS, **asked).tokens


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_it_keeps_the_contract(tmp_path, name):
    save_published_mtp(tmp_path, target_of(name).model.model, LAYOUTS[name])

    def factory(*, target: Target) -> Mtp:
        return Mtp(target, path=str(tmp_path), chained="after_norm")

    check_drafter(factory, target=target_of(name), samples=3000).require()


JOIN = "model.mtp_layers.0.input_proj.weight"
WRONG = {
    "without the projection": (lambda w: w.pop(JOIN), "missing join.weight"),
    "with more": (lambda w: w.update({"model.mtp_layers.0.x": torch.ones(1)}), "surplus block.x"),
    "of another width": (
        lambda w: w.update({JOIN: torch.ones(24, 48)}),
        "made for a hidden size of 24 instead of 32",
    ),
    "with two layers": (lambda w: w.update({"model.mtp_layers.1.x": torch.ones(1)}), "more than one layer"),
    "without a layer": (
        lambda w: [w.pop(name) for name in list(w) if "mtp" in name],
        "no layer for multi-token prediction",
    ),
}


@pytest.mark.parametrize("change", WRONG)
def test_a_wrong_checkpoint_is_refused_in_one_line(tmp_path, change):
    target = target_of("mimo")
    save_published_mtp(tmp_path, target.model.model, LAYOUTS["mimo"])
    tensors = load_file(tmp_path / "model.safetensors")
    make_wrong, said = WRONG[change]
    make_wrong(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=rf"^path is .*{said}.*; allowed: ") as error:
        Mtp(target, path=str(tmp_path), chained="after_norm")
    assert "\n" not in str(error.value)


def test_other_targets_and_options_are_refused(tmp_path):
    target = target_of("mimo")
    save_published_mtp(tmp_path, target.model.model, LAYOUTS["mimo"])
    with pytest.raises(ValueError, match=r"^chained is 'never'; allowed: after_norm, before_norm"):
        Mtp(target, path=str(tmp_path), chained="never")
    with pytest.raises(ValueError, match=r"^path is None; allowed: a folder or hub name, since"):
        Mtp(target, path=None, chained="after_norm")
    with pytest.raises(ValueError, match="layers of gpt2 cannot be cloned"):
        Mtp(tiny_target("gpt2"), path=str(tmp_path), chained="after_norm")


def test_the_targets_own_checkpoint_is_the_default(tmp_path):
    target = target_of("mimo")
    save_published_mtp(tmp_path, target.model.model, LAYOUTS["mimo"])
    target.model.model.config.name_or_path = str(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(target.model.model.config.to_dict()))
    assert Mtp(target, path=None, chained="after_norm").models[0].name_or_path == str(tmp_path)
