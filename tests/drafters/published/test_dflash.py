"""DFlash and DSpark: published folders, the published formula over rounds of ragged acceptance, wrong files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from drafters.published.dflash import Dflash
from framework.conformance import check_drafter
from framework.conformance.test_doubles import Witness
from framework.conformance.tiny_models import tiny_target
from framework.core.draft import SamplingScheme
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.heads.published_dflash import export_dflash_to_speculators, read_dflash
from framework.heads.speculators_format import speculators_dflash
from framework.metrics.stopwatch import Stopwatch
from framework.models.target import Target
from tests.support.published.dflash import random_dflash, reference_states

LAYERS = ("original", "speculators", "dspark")
PROMPTS = [[5, 6, 7, 8, 5, 6], [9], [3, 4, 40]]
STOPPING = Stopping(max_new_tokens=40)
OWN = ("embed_tokens.weight", "lm_head.weight")


def target_of(**settings: Any) -> Target:
    return tiny_target(hidden_size=16, num_hidden_layers=3, **settings)


def save_published(folder: Path, layout: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Write a random drafter; return config and tensors in the original layout, and the tensors of DSpark's heads."""
    config, tensors = random_dflash()
    config["num_target_layers"] = 3
    if layout == "original":
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "model.safetensors")
        return config, tensors
    export = speculators_dflash(config, tensors, name="x", architectures=["LlamaForCausalLM"])
    if layout == "dspark":
        random = torch.Generator().manual_seed(1)
        kept = torch.randperm(50, generator=random)[:20].sort().values
        further = {
            name: torch.randn(shape, generator=random) * 0.3
            for name, shape in {
                "embed_tokens.weight": (50, 16), "lm_head.weight": (20, 16), "markov_head.markov_w1.weight": (50, 5),
                "markov_head.markov_w2.weight": (20, 5), "confidence_head.proj.weight": (1, 21),
                "confidence_head.proj.bias": (1,),
            }.items()
        }  # fmt: skip
        further |= {"d2t": kept - torch.arange(20), "t2d": torch.zeros(50, dtype=torch.bool).index_fill(0, kept, True)}
        export.config.update(speculators_model_type="dspark", markov_rank=5, draft_vocab_size=20)
        export.tensors.update(further)
        tensors = tensors | further
    export.save(folder)
    return config, tensors


def reference(
    target: Target, config: dict[str, Any], w: dict[str, Tensor], text: list[int], drafted: list[int]
) -> tuple[Tensor, Tensor | None]:
    """Logits [depth, V], -inf outside the draft vocabulary, and confidences [depth], of a draft after a text."""
    model = target.model.model
    states = model(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
    features = torch.cat([states[layer][0] for layer in (0, 1, 2)], -1)
    ends = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    embeddings, output = (w.get(name, end) for name, end in zip(OWN, ends, strict=True))
    hidden = reference_states(config, w, features, text[-1], embeddings=embeddings)
    if "d2t" not in w:
        return hidden[1:] @ output.T, None
    logits, confidences = torch.full((len(hidden), 50), -torch.inf, dtype=torch.float64), []
    for place, previous in enumerate([text[-1], *drafted][: len(hidden)]):
        token = w["markov_head.markov_w1.weight"][previous].double()
        here = output.double() @ hidden[place] + w["markov_head.markov_w2.weight"].double() @ token
        logits[place, torch.arange(20) + w["d2t"]] = here
        proj = w["confidence_head.proj.weight"][0].double() @ torch.cat([hidden[place], token])
        confidences.append((proj + w["confidence_head.proj.bias"][0]).sigmoid())
    return logits, torch.stack(confidences)


@pytest.mark.parametrize("layout", LAYERS)
def test_drafts_are_the_published_formula_over_ragged_rounds(tmp_path, layout):
    target = target_of(dtype=torch.float64)
    config, w = save_published(tmp_path, layout)
    threshold = 0.2 if layout == "dspark" else 0
    drafter = Dflash(target, path=str(tmp_path), form="sampled_chain", min_confidence=threshold)
    engine = Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=Sampling(temperature=3.0))
    given = {"stopping": STOPPING, "seeds": [3, 1, 2], "detailed": False, "stopwatch": Stopwatch(target.device)}
    decoding, kept, drafts = engine.begin(PROMPTS, **given), set(), []
    propose = drafter.propose
    drafter.propose = lambda *arguments: drafts.append(propose(*arguments)) or drafts[-1]
    offered = set()
    for _ in range(5):
        rows, lengths = decoding.sequences.tokens.tolist(), decoding.sequences.lengths.tolist()
        kept.add(tuple(engine.round(decoding).accepted))
        draft = drafts[-1]
        for row, text in enumerate(text[:length] for text, length in zip(rows, lengths, strict=True)):
            logits, confidences = reference(target, config, w, text, draft.tokens[row].tolist())
            expected = (logits[: draft.num_nodes] / 3).softmax(-1)
            got = draft.dense_probs(50)[row].double()
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
            if confidences is not None:
                valid = (confidences.cumprod(0) >= threshold)[: draft.num_nodes].tolist()
                assert draft.valid[row].tolist() == valid
                offered.add(sum(valid))
    assert any(len(set(accepted)) > 1 for accepted in kept), "acceptance is to be ragged"
    assert layout != "dspark" or len(offered) > 1


@pytest.mark.parametrize("form", ["sampled_chain", "greedy_chain"])
@pytest.mark.parametrize("layout", LAYERS)
def test_greedy_tokens_are_those_of_plain_decoding(tmp_path, layout, form):
    target, greedy = target_of(), Sampling(temperature=0)
    save_published(tmp_path, layout)
    drafter = Dflash(target, path=str(tmp_path), form=form, min_confidence=0)
    got = Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=9), sampling=greedy).generate(
        PROMPTS, stopping=STOPPING, seeds=[0, 1, 2]
    )
    plain = Autoregressive(target=target, sampling=greedy).generate(PROMPTS, stopping=STOPPING, seeds=[0, 1, 2])
    assert got.tokens == plain.tokens
    assert drafter.num_nodes(9) == (4 if layout == "dspark" else 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "form"), [("original", "sampled_chain"), ("dspark", "sampled_chain"), ("dspark", "greedy_chain")]
)
def test_it_keeps_the_contract(tmp_path, layout, form):
    save_published(tmp_path, layout)
    confidence = 0.2 if layout == "dspark" else 0

    def factory(*, target: Target) -> Dflash:
        return Dflash(target, path=str(tmp_path), form=form, min_confidence=confidence)

    check_drafter(factory, target=target_of(), samples=3000).require()
    drafter = factory(target=target_of())
    assert drafter.scheme is {"sampled_chain": SamplingScheme.IID, "greedy_chain": SamplingScheme.ONE_HOT}[form]


def test_an_exported_drafter_has_the_same_tensors_and_drafts(tmp_path):
    target, (one, two) = target_of(), (str(tmp_path / name) for name in ("one", "two"))
    config, _ = save_published(tmp_path / "one", "original")
    rotary = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}  # as transformers 5 writes them
    (tmp_path / "one" / "config.json").write_text(json.dumps(config | {"rope_parameters": rotary}))
    export = export_dflash_to_speculators(one, target, name="the target")
    assert export.speculative_config == {"method": "dflash", "num_speculative_tokens": 3}
    export.save(tmp_path / "two")
    before, after = (read_dflash(path, target).layers.state_dict() for path in (one, two))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    drafts = []
    for path in (one, two):
        drafter = Witness(Dflash(target, path=path, form="sampled_chain", min_confidence=0))
        engine = Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=Sampling())
        engine.generate(PROMPTS, stopping=Stopping(9), seeds=[3, 1, 2])
        drafts.append([tensor for each in drafter.proposals for tensor in (each.draft.tokens, each.draft.probs)])
    assert all(torch.equal(*both) for both in zip(*drafts, strict=True))
    with pytest.raises(ValueError, match=r"^path is .*, which is a folder of speculators already"):
        export_dflash_to_speculators(two, target, name="the target")


WRONG = {
    "without fc": (lambda config, w: w.pop("fc.weight"), "missing fc.weight"),
    "with more": (lambda config, w: w.update({"layers.7.x": torch.ones(1)}), "surplus layers.7.x"),
    "misshapen": (lambda config, w: w.update({"norm.weight": torch.ones(3)}), r"norm.weight \[3\] instead of \[16\]"),
    "with NaN": (lambda config, w: w["norm.weight"].fill_(torch.nan), "with NaN norm.weight"),
    "of another depth": (lambda config, w: config.update(num_target_layers=9), "made for a target of 9 layers"),
    "of another width": (lambda config, w: config.update(hidden_size=24), "made for a hidden size of 24 instead of 16"),
    "of other tokens": (lambda config, w: config.update(vocab_size=40), "made for a vocabulary of 40 instead of 50"),
    "without mask": (lambda config, w: config["dflash_config"].pop("mask_token_id"), "no mask_token_id"),
    "of a window": (
        lambda config, w: config.update(
            layer_types=["sliding_attention"] * 2, sliding_window=8, use_sliding_window=True
        ),
        "sliding_attention, not full_attention",
    ),
    "with a word for a token": (
        lambda config, w: config["dflash_config"].update(mask_token_id="x"),
        "mask token 'x', not",
    ),
    "with one layer": (
        lambda config, w: config["dflash_config"].update(target_layer_ids=7),
        "cannot be loaded: TypeErr",
    ),
    "with equal layers": (
        lambda config, w: config["dflash_config"].update(target_layer_ids=[1, 1]),
        "layers .2, 2., not",
    ),
    "of one position": (lambda config, w: config.update(block_size=1), "block size 1, not a whole number >= 2"),
    "of an unknown activation": (lambda config, w: config.update(hidden_act="x"), "cannot be loaded: KeyError: 'x'"),
    "of another kind": (lambda config, w: config.update(speculators_model_type="eagle3"), "of the kind eagle3"),
}


@pytest.mark.parametrize("change", WRONG)
def test_a_wrong_folder_is_refused_in_one_line(tmp_path, change):
    config, w = random_dflash()
    config["num_target_layers"] = 3
    make_wrong, said = WRONG[change]
    make_wrong(config, w)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(w, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=rf"^path is .*{said}.*; allowed: ") as error:
        Dflash(target_of(), path=str(tmp_path), form="sampled_chain", min_confidence=0)
    assert "\n" not in str(error.value)


def test_wrong_options_name_their_key(tmp_path):
    save_published(tmp_path, "original")
    options = {"path": str(tmp_path), "form": "sampled_chain", "min_confidence": 0}
    for option, value in (("form", "tree"), ("min_confidence", 1), ("min_confidence", 0.5)):
        with pytest.raises(ValueError, match=f"^{option} is {value!r}"):
            Dflash(target_of(), **options | {option: value})
