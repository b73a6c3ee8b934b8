"""One tokenizer, output layers of different widths, as in families of differently padded models.

One padding row always has the largest logit by far: a trap. Decoding is compared with the model without padding.
"""

from pathlib import Path

import pytest
import torch

from drafters.small_transformer import SmallTransformer
from framework.conformance.tiny_models import tiny_model, tiny_target, tiny_tokenizer
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.generation import Generation
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.cached_lm import CachedLM
from framework.models.pretrained import load_draft_model, load_target
from framework.models.target import Target
from framework.verifiers.speculative_sampling import SpeculativeSampling

KNOWN = 50
PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [49], [7, 8, 45, 8, 9]]
SEEDS = [0, 1, 2]
STOPPING = Stopping(max_new_tokens=40)
GREEDY, SAMPLED = Sampling(temperature=0), Sampling(temperature=1.0)
# (target rows, drafter rows): wider target, wider drafter, one of them padded, none padded.
WIDTHS = [(64, 56), (56, 64), (64, KNOWN), (KNOWN, 64), (KNOWN, KNOWN)]


def save_padded(folder: Path, *, seed: int, rows: int, known: int = KNOWN) -> Path:
    """tiny_model(seed) of `known` tokens, padded to `rows`, with the tokenizer of KNOWN tokens."""
    weights = tiny_model(seed=seed, vocabulary=known, dtype=torch.float64).state_dict()
    padded = tiny_model(seed=seed + 100, vocabulary=rows, dtype=torch.float64)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        weights[name] = torch.cat([weights[name], padded.state_dict()[name][known:]])
    traps = weights["lm_head.weight"][known:]
    traps *= 1000
    traps[1::2] = -traps[0::2]  # one of each pair is positive on any text
    padded.load_state_dict(weights)
    padded.save_pretrained(folder)
    tiny_tokenizer(KNOWN).save_pretrained(folder)
    return folder


def target(folder: Path) -> Target:
    return load_target(path=str(folder), dtype="float64", device="cpu", attention="sdpa", context=None)


def draft_model(folder: Path, large: Target) -> CachedLM:
    return load_draft_model(path=str(folder), dtype="float64", attention="sdpa")(large)


def speculative(large: Target, folder: Path, sampling: Sampling) -> Generation:
    drafter = SmallTransformer(target=large, model=lambda target: draft_model(folder, target))
    engine = Engine(
        target=large,
        drafter=drafter,
        verifier=SpeculativeSampling(),
        gamma_policy=Fixed(gamma=3),
        sampling=sampling,
    )
    return engine.generate(PROMPTS, stopping=STOPPING, seeds=SEEDS, detailed=True)


def plain(large: Target, sampling: Sampling) -> list[list[int]]:
    return Autoregressive(target=large, sampling=sampling).generate(PROMPTS, stopping=STOPPING, seeds=SEEDS).tokens


@pytest.fixture
def unpadded() -> Target:
    return tiny_target(seed=0, vocabulary=KNOWN, dtype=torch.float64)


def test_the_trap_is_one(tmp_path):
    large = target(save_padded(tmp_path, seed=0, rows=64))
    logits = large.model.model(input_ids=torch.tensor([PROMPTS[0]])).logits
    assert (logits.argmax(-1) >= KNOWN).all()


@pytest.mark.slow
@pytest.mark.parametrize(("target_rows", "drafter_rows"), WIDTHS)
def test_greedy_decoding_is_that_of_the_model_without_padding(tmp_path, unpadded, target_rows, drafter_rows):
    large = target(save_padded(tmp_path / "target", seed=0, rows=target_rows))
    folder = save_padded(tmp_path / "draft", seed=1, rows=drafter_rows)
    expected = plain(unpadded, GREEDY)
    assert plain(large, GREEDY) == expected
    assert speculative(large, folder, GREEDY).tokens == expected


@pytest.mark.parametrize(("target_rows", "drafter_rows"), WIDTHS)
def test_padding_has_no_mass_on_either_side(tmp_path, unpadded, target_rows, drafter_rows):
    """Equal models with unequal padding: after truncation, p equals q.

    A padding row in either distribution would take nearly all mass, and the overlap would be near 0.
    """
    large = target(save_padded(tmp_path / "target", seed=0, rows=target_rows))
    decoded = speculative(large, save_padded(tmp_path / "draft", seed=0, rows=drafter_rows), SAMPLED)
    tally = decoded.tally
    tested = sum(tally.tested_by_position)
    assert tested > 50
    assert tally.overlap == pytest.approx(tested, rel=1e-5)
    assert sum(tally.accepted_by_position) == tested
    assert all(token < KNOWN for row in decoded.tokens for token in row)
    assert plain(large, SAMPLED) == plain(unpadded, SAMPLED)


def add_tokens(folder: Path, *names: str) -> None:
    tokenizer = tiny_tokenizer(KNOWN)
    assert tokenizer.add_tokens([*names], special_tokens=True) == len(names)
    tokenizer.save_pretrained(folder)


@pytest.mark.slow
def test_tokens_added_to_the_targets_tokenizer_are_never_drafted(tmp_path):
    """The drafter's rows of these tokens are traps; it reads them as its last token."""
    folder = save_padded(tmp_path / "target", seed=0, rows=64, known=KNOWN + 2)
    add_tokens(folder, "<call>", "<result>")
    large, small = target(folder), save_padded(tmp_path / "draft", seed=1, rows=64)
    assert large.vocabulary_size == KNOWN + 2
    wider = tiny_target(seed=0, vocabulary=KNOWN + 2, dtype=torch.float64)
    for sampling in (GREEDY, SAMPLED):
        decoded, expected = speculative(large, small, sampling), plain(wider, sampling)
        assert plain(large, sampling) == expected
        if sampling is GREEDY:
            assert decoded.tokens == expected
        assert any(token >= KNOWN for row in decoded.tokens for token in row)
    model = draft_model(small, large)
    model.begin(1, 4)
    logits = model.forward(torch.tensor([[3, KNOWN + 1, KNOWN - 1]]), None, visible=3).logits
    assert logits.shape[-1] == KNOWN + 2 and (logits[..., KNOWN:] == -torch.inf).all()
    model.begin(1, 4)
    assert logits.equal(model.forward(torch.tensor([[3, KNOWN - 1, KNOWN - 1]]), None, visible=3).logits)


def test_tokens_added_to_the_drafters_tokenizer_are_never_drafted(tmp_path, unpadded):
    large = target(save_padded(tmp_path / "target", seed=0, rows=56))
    folder = save_padded(tmp_path / "draft", seed=1, rows=64)
    add_tokens(folder, "<call>")
    assert speculative(large, folder, GREEDY).tokens == plain(unpadded, GREEDY)


# Qwen2.5: output rows of 7B and 0.5B, and their common tokenizer's ids.
QWEN_ROWS, QWEN_DRAFT_ROWS, QWEN_KNOWN = 152064, 151936, 151665


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_paddings_of_true_sizes(sampling):
    """Random weights, the same for target and drafter: p equals q after truncation."""
    narrow = tiny_model("qwen2", vocabulary=QWEN_KNOWN, hidden_size=8, intermediate_size=8)
    cached = {}
    for rows in (QWEN_KNOWN, QWEN_ROWS, QWEN_DRAFT_ROWS):
        model = tiny_model("qwen2", vocabulary=rows, hidden_size=8, intermediate_size=8)
        weights = narrow.state_dict()
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            weights[name] = torch.cat([weights[name], 1000 * model.state_dict()[name][QWEN_KNOWN:]])
        model.load_state_dict(weights)
        cached[rows] = CachedLM(model, vocabulary_size=QWEN_KNOWN)
    unpadded, large = (Target(cached[rows], tiny_tokenizer(), QWEN_KNOWN, "") for rows in (QWEN_KNOWN, QWEN_ROWS))
    drafter = SmallTransformer(target=large, model=lambda target: cached[QWEN_DRAFT_ROWS])
    engine = Engine(target=large, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=sampling)
    prompts, stopping = [[1, 151664, 3], [7, 8, 100_000, 8, 9]], Stopping(max_new_tokens=16)
    decoded = engine.generate(prompts, stopping=stopping, seeds=[0, 1], detailed=True)
    expected = Autoregressive(target=unpadded, sampling=sampling).generate(prompts, stopping=stopping, seeds=[0, 1])
    again = Autoregressive(target=large, sampling=sampling).generate(prompts, stopping=stopping, seeds=[0, 1])
    assert again.tokens == expected.tokens
    assert sampling is SAMPLED or decoded.tokens == expected.tokens
    tested = sum(decoded.tally.tested_by_position)
    assert tested > 15 and decoded.tally.overlap == pytest.approx(tested, rel=1e-4)
    assert all(token < QWEN_KNOWN for row in decoded.tokens for token in row)


def test_a_drafter_may_know_fewer_tokens_than_there_are(tmp_path, unpadded):
    """It drafts none of the others and reads them as its last; output is unchanged."""
    large = target(save_padded(tmp_path / "target", seed=0, rows=64))
    decoded = speculative(large, save_padded(tmp_path / "draft", seed=1, rows=40, known=40), GREEDY)
    assert decoded.tokens == plain(unpadded, GREEDY)
    assert any(token >= 40 for row in decoded.tokens for token in row)


@pytest.mark.parametrize("drafter_rows", [40, KNOWN, 64])
def test_a_target_may_know_fewer_tokens_than_the_tokenizer(tmp_path, drafter_rows):
    large = target(save_padded(tmp_path / "target", seed=0, rows=40, known=40))
    assert large.vocabulary_size == 40
    folder = save_padded(tmp_path / "draft", seed=1, rows=drafter_rows, known=min(drafter_rows, KNOWN))
    prompts = [[1, 2, 3, 1, 2, 3, 1], [39]]
    decoder = Engine(
        target=large,
        drafter=SmallTransformer(target=large, model=lambda target: draft_model(folder, target)),
        verifier=SpeculativeSampling(),
        gamma_policy=Fixed(gamma=3),
        sampling=GREEDY,
    )
    narrow = Autoregressive(target=tiny_target(seed=0, vocabulary=40, dtype=torch.float64), sampling=GREEDY)
    expected = narrow.generate(prompts, stopping=STOPPING, seeds=[0, 1]).tokens
    assert decoder.generate(prompts, stopping=STOPPING, seeds=[0, 1]).tokens == expected
