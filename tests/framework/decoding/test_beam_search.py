"""Speculative beam search against plain beam search, Hugging Face's, and an exhaustive search."""

import itertools
import json
import sys

import pytest
import torch

from experiments import beam_search
from experiments.peers.hugging_face import HuggingFaceGenerate
from framework.conformance.tiny_models import save_tiny, tiny_model, tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.beam_search import BeamGeneration, BeamSearch
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.gamma_policies.heuristic import Heuristic
from framework.models.cached_lm import CachedLM
from framework.models.target import Target

VOCABULARY = 20
PROMPTS = [[3, 4, 5], [9] * 7, [1]]
STOPPING = Stopping(max_new_tokens=20, eos_ids=(0,))


def near(family: str, seed: int = 0) -> CachedLM:
    """A small model that agrees with `tiny_target` about half of the time."""
    model = tiny_model(family, vocabulary=VOCABULARY, seed=seed)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.04)
    return CachedLM(model, vocabulary_size=VOCABULARY)


def speculative(target: Target, drafter: CachedLM, policy: GammaPolicy, **rule) -> BeamSearch:
    return BeamSearch(target=target, drafter=drafter, drafted_beams=2 * rule["num_beams"], gamma_policy=policy, **rule)


def texts(generation: BeamGeneration) -> list:
    return [[text.tokens for text in beams] for beams in generation.beams]


def scores(generation: BeamGeneration) -> list[float]:
    return [text.score for beams in generation.beams for text in beams]


@pytest.mark.parametrize(("family", "policy"), [
    ("llama", Fixed(gamma=4)), ("gpt2", Heuristic(initial=2, max_gamma=5)), ("t5", Fixed(gamma=3)),
    ("bart", Heuristic(initial=1, max_gamma=4)),
])  # fmt: skip
def test_texts_and_scores_are_those_of_plain_beam_search(family, policy):
    target, rule = tiny_target(family, vocabulary=VOCABULARY), {"num_beams": 3}
    plain = BeamSearch(target=target, **rule).generate(PROMPTS, stopping=STOPPING)
    ours = speculative(target, near(family), policy, **rule).generate(PROMPTS, stopping=STOPPING)
    assert texts(ours) == texts(plain) and ours.finish_reasons == plain.finish_reasons
    assert scores(ours) == pytest.approx(scores(plain), abs=1e-5)
    kept, tested = sum(ours.tally.accepted_by_position), sum(ours.tally.tested_by_position)
    assert 0 < kept < tested  # some drafts are accepted, some rejected
    assert ours.tally.committed == plain.tally.committed == plain.tally.num_rounds > ours.tally.num_rounds


@pytest.mark.slow
@pytest.mark.parametrize(("family", "eos_ids", "rule"), [
    ("llama", (0,), {"num_beams": 2, "length_penalty": 1.0, "early_stopping": False}),
    ("llama", (0, 7, 11), {"num_beams": 4, "length_penalty": 0.5, "early_stopping": True}),
    ("llama", (), {"num_beams": 3, "length_penalty": 1.0, "early_stopping": False}),
    ("t5", (0, 7), {"num_beams": 3, "length_penalty": 2.0, "early_stopping": False}),
    ("t5", (0, 7), {"num_beams": 4, "length_penalty": 1.0, "early_stopping": False}),
])  # fmt: skip
def test_they_are_those_of_hugging_face(family, rule, eos_ids):
    target, stopping = tiny_target(family, vocabulary=VOCABULARY), Stopping(max_new_tokens=16, eos_ids=eos_ids)
    ours = speculative(target, near(family), Fixed(gamma=3), **rule).generate(PROMPTS, stopping=stopping)
    theirs = HuggingFaceGenerate(target=target, sampling=Sampling(temperature=0), beams=rule)
    for row, prompt in enumerate(PROMPTS):
        expected = theirs.generate([prompt], stopping=stopping, seeds=[0])
        assert texts(ours)[row] == texts(expected)[0]
        assert [text.score for text in ours.beams[row]] == pytest.approx(scores(expected), abs=1e-4)


@torch.no_grad()
def test_beams_enough_for_all_texts_find_the_best_of_all():
    target, length = tiny_target(vocabulary=5, dtype=torch.float64), 3
    found = BeamSearch(target=target, num_beams=25).generate([[1, 2]], stopping=Stopping(max_new_tokens=length))
    expected = {}
    for tokens in itertools.product(range(5), repeat=length):
        log_p = target.uncached([1, 2, *tokens]).log_softmax(-1)
        expected[tokens] = sum(float(log_p[1 + place, token]) for place, token in enumerate(tokens)) / length
    best = sorted(expected, key=lambda tokens: -expected[tokens])[:25]
    assert texts(found)[0] == best
    assert scores(found) == pytest.approx([expected[tokens] for tokens in best], abs=1e-9)


def test_one_beam_is_greedy_decoding():
    target = tiny_target(vocabulary=VOCABULARY)
    plain = Autoregressive(target=target, sampling=Sampling(temperature=0))
    greedy = plain.generate(PROMPTS, stopping=STOPPING, seeds=[0, 0, 0])
    ours = speculative(target, near("llama"), Fixed(gamma=3), num_beams=1).generate(PROMPTS, stopping=STOPPING)
    assert ours.tokens == greedy.tokens and ours.finish_reasons == greedy.finish_reasons


@pytest.mark.parametrize("most", [1, 2, 5])
def test_texts_end_with_their_budget_and_with_the_context(most):
    target = tiny_target(vocabulary=VOCABULARY, context=32)
    prompt = [2] * (32 - 3)
    ours = speculative(target, near("llama"), Fixed(gamma=4), num_beams=3)
    found = ours.generate([prompt], stopping=Stopping(max_new_tokens=most))
    assert len(found.tokens[0]) == min(most, 3)
    assert found.finish_reasons == ["length" if most <= 3 else "context"]


@pytest.mark.parametrize(("options", "says"), [
    ({"num_beams": 0}, "num_beams is 0; allowed: a whole number >= 1"),
    ({"num_beams": 3, "drafted_beams": 2, "gamma_policy": Fixed(gamma=2)}, "drafted_beams is 2; allowed: at least"),
    ({"num_beams": 3, "drafted_beams": 3}, "needs a gamma_policy"),
])  # fmt: skip
def test_wrong_numbers_are_told(options, says):
    with pytest.raises(ValueError, match=says):
        BeamSearch(target=tiny_target(), drafter=tiny_target().model, **options)


def test_a_model_that_is_sick_is_told():
    target = tiny_target(vocabulary=VOCABULARY)
    target.model.model.get_output_embeddings().weight[3] = torch.nan
    with pytest.raises(FloatingPointError, match="not finite"):
        BeamSearch(target=target, num_beams=2).generate([[1]], stopping=STOPPING)


@pytest.mark.parametrize(("wrong", "says"), [
    ("beams=[]", "beams is []; allowed: a list"), ("drafted=[0]", "drafted is 0; allowed: a whole number from 1"),
    ("early_stopping=never", "early_stopping is 'never'"), ("length_penalty=long", "length_penalty is 'long'"),
    ("length_penalty=inf", "length_penalty is inf; allowed: a number"),
    ("stop_strings=[end]", "stop_strings is ['end']; allowed: []"), ("draft_model.path=7", "draft_model.path is 7"),
    ("draft_model.path=???", "draft_model.path has no value yet"),
])  # fmt: skip
def test_what_is_wrong_is_told_before_a_model_is_loaded(tmp_path, monkeypatch, capfd, wrong, says):
    monkeypatch.setattr(sys, "argv", ["beam_search", "target.path=/nowhere", wrong, f"hydra.run.dir={tmp_path}"])
    with pytest.raises(SystemExit):
        beam_search.main()
    assert says in capfd.readouterr().err


@pytest.mark.slow
def test_the_command_prints_and_keeps_its_table(tmp_path, monkeypatch, capfd):
    save_tiny(tmp_path / "target", seed=1)
    save_tiny(tmp_path / "drafter", seed=2)
    (tmp_path / "prompts.txt").write_text("ab ca ba\n\nba ba ca\n")
    arguments = [
        "target=pretrained", f"target.path={tmp_path}/target", "target.dtype=float32", "device=cpu",
        f"draft_model.path={tmp_path}/drafter", "beams=[1,2]", "drafted=[2]", "gammas=[2]", "max_new_tokens=6",
        "prompts=plain_text", "prompts.count=null", f"prompts.source.path={tmp_path}/prompts.txt",
        "prompts.source.split_on=paragraph", f"hydra.run.dir={tmp_path}/out",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["beam_search", *arguments])
    beam_search.main()
    rows = json.loads((tmp_path / "out" / "beam_search.json").read_text())["rows"]
    assert [row["decoder"] for row in rows] == ["plain", "speculative", "plain", "hf_generate", "speculative"]
    assert all(row["same"] == row["prompts"] == 2 and row["score_gap"] < 1e-4 for row in rows)
    assert "speculative" in capfd.readouterr().out
    assert "| speculative |" in (tmp_path / "out" / "beam_search.md").read_text()
