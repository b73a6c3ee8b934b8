"""Distillation: losses match their formulas, training raises alpha, the drafter loads the saved model."""

import pytest
import torch

from drafters.small_transformer import SmallTransformer
from framework.conformance.tiny_models import save_tiny, tiny_model, tiny_target
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.pretrained import load_draft_model
from framework.training.distillation import LOSSES, Distillation
from framework.training.trainable import FILLER
from framework.verifiers.speculative_sampling import SpeculativeSampling

CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
}


def windows(seed: int, number: int = 8) -> torch.Tensor:
    return torch.randint(0, 50, (number, 24), generator=torch.Generator().manual_seed(seed))


def test_the_losses_are_what_they_are_called():
    dice = torch.Generator().manual_seed(0)
    p_logits, q_logits = (torch.randn(6, 5, generator=dice, dtype=torch.float64) for _ in range(2))
    next_tokens = torch.randint(0, 5, (6,), generator=dice)
    found = {name: loss(p_logits, q_logits, next_tokens).item() for name, loss in LOSSES.items()}
    p, q = p_logits.softmax(1), q_logits.softmax(1)
    divergence, backwards, overlap, surprise, to_mean = 0.0, 0.0, 0.0, 0.0, 0.0
    for a, b, token in zip(p, q, next_tokens, strict=True):
        divergence += float((a * (a / b).log()).sum()) / 6
        backwards += float((b * (b / a).log()).sum()) / 6
        overlap += float(torch.minimum(a, b).sum()) / 6
        surprise -= float(b[token].log()) / 6
        to_mean += float((a * (2 * a / (a + b)).log() + b * (2 * b / (a + b)).log()).sum()) / 12
    assert found["forward_kl"] == pytest.approx(divergence)
    assert found["reverse_kl"] == pytest.approx(backwards)
    assert found["total_variation"] == pytest.approx(1 - overlap)
    assert found["cross_entropy"] == pytest.approx(surprise)
    assert found["jensen_shannon"] == pytest.approx(to_mean)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [name for name in LOSSES if name != "cross_entropy"])
def test_training_raises_alpha_and_the_drafter_loads_it(loss, tmp_path):
    torch.manual_seed(0)
    target = tiny_target()
    trainable, held_out = Distillation(target, loss=loss, path=None, config=CONFIG), windows(999)
    before = trainable.evaluate(held_out)["alpha(T=1)"]
    optimizer = torch.optim.AdamW(trainable.module.parameters(), lr=1e-2)
    for step in range(60):
        optimizer.zero_grad()
        trainable.loss(windows(step)).backward()
        optimizer.step()
    after = trainable.evaluate(held_out)["alpha(T=1)"]
    assert after > before + 0.02
    trainable.save(tmp_path, held_out)
    drafter = SmallTransformer(target, model=load_draft_model(path=str(tmp_path), dtype="float32", attention="sdpa"))
    engine = Engine(
        target=target,
        drafter=drafter,
        verifier=SpeculativeSampling(),
        gamma_policy=Fixed(gamma=2),
        sampling=Sampling(),
    )
    tally = engine.generate(
        [[1, 2, 3]] * 32, stopping=Stopping(max_new_tokens=20), seeds=list(range(32)), detailed=True
    ).tally
    assert tally.metrics()["alpha/overlap"] > before


def test_a_model_that_is_the_target_overlaps_it_fully(tmp_path):
    target = tiny_target()
    target.model.model.save_pretrained(tmp_path)
    target.tokenizer.save_pretrained(tmp_path)
    trainable = Distillation(target, loss="forward_kl", path=str(tmp_path), config={})
    found = trainable.evaluate(windows(1))
    assert found["alpha(T=1)"] == pytest.approx(1, abs=1e-5) and found["alpha(T=0)"] == pytest.approx(1)
    assert trainable.loss(windows(2)).item() == pytest.approx(0, abs=1e-6)


def test_what_cannot_be_is_named(tmp_path):
    target = tiny_target()
    with pytest.raises(ValueError, match=r"^loss is 'mse'; allowed: cross_entropy"):
        Distillation(target, loss="mse", path=None, config=CONFIG)
    with pytest.raises(ValueError, match=r"^config is .*; it says"):
        Distillation(target, loss="forward_kl", path=None, config={"model_type": "lama"})
    for key, value in (("num_attention_heads", 3), ("num_key_value_heads", 3), ("hidden_size", "wide")):
        with pytest.raises(ValueError, match=r"^config is .*a config that transformers accepts; it says: .{0,160}$"):
            Distillation(target, loss="forward_kl", path=None, config=CONFIG | {key: value})
    short = Distillation(target, loss="forward_kl", path=None, config=CONFIG | {"max_position_embeddings": 16})
    for window in (1, 17):
        with pytest.raises(ValueError, match=rf"^window is {window}; allowed: 2 to .* context, 16"):
            short.loss(torch.zeros(1, window, dtype=torch.int64))
    save_tiny(tmp_path / "other", vocabulary=30, seed=0)
    with pytest.raises(
        ValueError, match=r"^path is .* differs from the target's .*; allowed: a model with the target's tokenizer"
    ):
        Distillation(target, loss="forward_kl", path=str(tmp_path / "other"), config={})
    with pytest.raises(FileNotFoundError, match=r"^path is './nowhere'"):
        Distillation(target, loss="forward_kl", path="./nowhere", config={})
    save_tiny(tmp_path / "short", seed=0)
    tiny_model("llama", vocabulary=30, seed=0).save_pretrained(tmp_path / "short")  # with a tokenizer of 50
    with pytest.raises(ValueError, match=r"a vocabulary of 30; allowed: at least the target's, 50"):
        Distillation(target, loss="forward_kl", path=str(tmp_path / "short"), config={})


def test_a_padded_model_and_one_with_dropout_are_served(tmp_path):
    """Rows beyond the target's vocabulary get no mass, and evaluation is deterministic."""
    target = tiny_target()
    save_tiny(tmp_path, "gpt2", seed=0)
    tiny_model("gpt2", vocabulary=64, seed=0).save_pretrained(tmp_path)  # rows 50 to 63 are padding
    trainable = Distillation(target, loss="forward_kl", path=str(tmp_path), config={})
    fresh = Distillation(target, loss="forward_kl", path=None, config={"model_type": "gpt2", "n_embd": 16,
                         "n_head": 2, "n_layer": 1, "n_positions": 64})  # fmt: skip
    for each in (trainable, fresh):
        first = each.evaluate(windows(1))
        assert first == each.evaluate(windows(1)) and 0 < first["alpha(T=1)"] < 1
        each.loss(windows(2)).backward()


T5 = {"model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2, "num_layers": 1,
      "num_decoder_layers": 1, "dropout_rate": 0.5}  # fmt: skip


def pairs(seed: int, number: int = 8) -> torch.Tensor:
    """Sources of 2 to 12 tokens, and texts of 3 to 12 that start like T5's."""
    dice = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, 50, (number, 2, 12), generator=dice)
    tokens[:, 1, 0] = 1
    lengths = torch.randint(3, 13, (number, 2, 1), generator=dice) - torch.tensor([1, 0])[:, None]
    return tokens.masked_fill(torch.arange(12) >= lengths, FILLER)


@pytest.mark.slow
@pytest.mark.parametrize("config", [T5, CONFIG], ids=["encoder-decoder", "decoder-only"])
def test_pairs_teach_a_drafter_of_an_encoder_decoder_target(config, tmp_path):
    torch.manual_seed(0)
    target = tiny_target("t5")
    trainable, held_out = Distillation(target, loss="forward_kl", path=None, config=config), pairs(999, 32)
    before = trainable.evaluate(held_out)["alpha(T=1)"]
    assert before == trainable.evaluate(held_out)["alpha(T=1)"]
    optimizer = torch.optim.AdamW(trainable.module.parameters(), lr=1e-2)
    for step in range(60):
        optimizer.zero_grad()
        trainable.loss(pairs(step)).backward()
        optimizer.step()
    assert trainable.evaluate(held_out)["alpha(T=1)"] > before + 0.02
    trainable.save(tmp_path, held_out)
    drafter = SmallTransformer(target, model=load_draft_model(path=str(tmp_path), dtype="float32", attention="sdpa"))
    sampling = Sampling()
    engine = Engine(
        target=target, drafter=drafter, verifier=SpeculativeSampling(), gamma_policy=Fixed(gamma=2), sampling=sampling
    )
    tally = engine.generate(
        [[1, 2, 3]] * 32, stopping=Stopping(max_new_tokens=20), seeds=list(range(32)), detailed=True
    ).tally
    assert tally.metrics()["alpha/overlap"] > before


def test_what_fills_pairs_up_teaches_nothing():
    """Loss and alpha equal those of each pair alone, without filler."""
    target = tiny_target("t5")
    trainable = Distillation(target, loss="forward_kl", path=None, config=T5)
    both = pairs(3, 2)
    alone = [pair[:, : int((pair != FILLER).any(0).sum())].unsqueeze(0) for pair in both]
    counts = [int((pair[:, 1] != FILLER).sum()) - 1 for pair in alone]
    assert counts[0] != counts[1]
    for measure in (
        lambda tokens: trainable.loss(tokens).item(),
        lambda tokens: trainable.evaluate(tokens)["alpha(T=1)"],
    ):
        mean = sum(n * measure(pair) for n, pair in zip(counts, alone, strict=True)) / sum(counts)
        assert measure(both) == pytest.approx(mean, rel=1e-5)


def test_a_model_with_an_encoder_needs_a_target_with_one():
    with pytest.raises(ValueError, match=r"^config\.model_type is 't5'; allowed: a decoder-only one"):
        Distillation(tiny_target(), loss="forward_kl", path=None, config=T5)
