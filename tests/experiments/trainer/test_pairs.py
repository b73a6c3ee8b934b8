"""Pairs of sources and answers, and what is trained on them."""

import pytest
import torch

from experiments.trainer.pairs import Pairs, read_pairs, tokenised
from framework.conformance.tiny_models import tiny_target
from framework.prompts.prompt_source import Text
from framework.training.future_tokens import NO_LABEL, labels_after
from framework.training.medusa_training import MedusaTraining
from framework.training.target_states import output_layer_input
from framework.training.trainable import FILLER, model_inputs, texts_of

TEXTS = [Text("a", "", "ab", reference="abcd"), Text("b", "", "abcdefg", reference="x"), Text("c", "", "b" * 40, "b")]


class Source:
    def __init__(self, texts):
        self._texts = texts

    def texts(self):
        return iter(self._texts)


@pytest.fixture(scope="module")
def target():
    return tiny_target("t5")


def pairs_of(target, longest=16, texts=TEXTS, longest_source=None):
    start = target.model.text_start
    return Pairs(tokenised(texts, target.tokenizer, start=start, longest_source=longest_source), longest=longest)


def test_answers_begin_with_the_start_token_and_long_pairs_are_left_out(target):
    pairs = pairs_of(target)
    tokens = pairs.sample_evenly(9)
    assert tokens.shape == (2, 2, 8) and len(pairs) == 2
    for row, text in zip(tokens, TEXTS, strict=False):
        source, answer = ([token for token in side.tolist() if token != FILLER] for side in row)
        assert source == target.tokenizer(text.text)["input_ids"]
        assert answer == target.model.text_start + target.tokenizer(text.reference)["input_ids"]
    assert pairs.num_tokens == int((tokens != FILLER).sum())
    assert torch.equal(pairs.drawn(1, seed=0, step=3), pairs.drawn(1, seed=0, step=3))


def test_long_sources_are_cut_before_their_end_token(target):
    pairs = pairs_of(target, longest=8, longest_source=8)
    end = target.tokenizer("")["input_ids"]
    assert len(pairs) == 3
    longest = pairs.sample_evenly(3)[-1, 0].tolist()
    assert longest == target.tokenizer("b" * 40)["input_ids"][: 8 - len(end)] + end


def test_texts_have_no_padding_in_common(target):
    tokens = pairs_of(target, longest=64, texts=TEXTS[2:]).sample_evenly(1)
    assert tokens.shape[2] > 30 and texts_of(tokens).shape == (1, 2 + len(target.tokenizer("")["input_ids"]))


def test_texts_may_be_shorter_than_the_heads_reach(target):
    tokens = pairs_of(target, texts=TEXTS[:1]).sample_evenly(1)
    training = MedusaTraining(target, num_heads=7, output="tied", discount=0.8, ranks=2)
    assert texts_of(tokens).shape[1] < 7 + 2 and training.loss(tokens).isfinite()


def test_what_cannot_be_trained_on_is_refused(target):
    with pytest.raises(ValueError, match=r"no pair has at most 2 tokens a side; raise training\.window"):
        pairs_of(target, longest=2)
    with pytest.raises(ValueError, match=r"prompts\.source gives alone, which has no reference"):
        read_pairs(Source([Text("alone", "", "ab")]), text="prompts.source")


def test_fillers_change_nothing(target):
    """Sources and texts of several lengths together are read as each alone."""
    tokens = pairs_of(target).sample_evenly(2)
    together = output_layer_input(target.model.model, tokens)
    for row, pair in enumerate(tokens):
        alone = pair[:, : int((pair != FILLER).any(0).sum())].unsqueeze(0)
        seen = output_layer_input(target.model.model, alone)[0]
        known = texts_of(tokens)[row] != FILLER
        torch.testing.assert_close(together[row][known], seen[: int(known.sum())], atol=1e-5, rtol=1e-5)
    assert set(model_inputs(tokens)) == {"input_ids", "attention_mask", "decoder_input_ids"}


def test_medusas_heads_are_fitted_to_answers(target):
    training = MedusaTraining(target, num_heads=2, output="tied", discount=0.8, ranks=2)
    tokens = pairs_of(target).sample_evenly(2)
    labels = labels_after(tokens, 2)
    text = texts_of(tokens)
    for row in range(2):
        length = int((text[row] != FILLER).sum())
        for place in range(labels.shape[1]):
            for head in range(2):
                wanted = place + 2 + head
                assert labels[row, place, head] == (text[row, wanted] if wanted < length else NO_LABEL)
    optimizer = torch.optim.AdamW(training.module.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = training.loss(tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert set(training.evaluate(tokens)) >= {"head 1 top-1", "head 2 top-1"}
