"""Each token's producer and probabilities against the tally, plain passes and known drafts."""

import pytest
import torch

from experiments.measurement.traced_text import traced_text
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.stopping import Stopping
from framework.metrics.token_trace import TokenTrace, Traced
from tests.framework.decoding.test_engine import GREEDY, RAGGED, Scripted, build_drafter, engine, plain, speculative
from tests.support.drafter_kinds import every_drafter

STOPPING = Stopping(max_new_tokens=20, eos_ids=(0,))


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def traced(decoder, prompts, stopping=STOPPING, most_tokens=100, **kwargs):
    trace = TokenTrace(len(prompts), most_tokens=most_tokens)
    generation = speculative(decoder, prompts, stopping, on_round=trace.on_round, **kwargs)
    return trace, generation, trace.tokens(generation.tokens)


def producers(tokens: list[Traced]) -> list[str]:
    return [token.producer for token in tokens]


@pytest.mark.parametrize("name", every_drafter())
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.8, top_p=0.9)], ids=["T=0", "T=0.8"])
def test_it_tells_of_every_token_what_the_distributions_and_the_tally_say(target, name, sampling):
    trace, generation, rows = traced(engine(target, build_drafter(name, target), 3, sampling), RAGGED, detailed=True)
    assert [[token.token for token in row] for row in rows] == generation.tokens
    tally = generation.tally
    assert sum(trace.accepted) == sum(tally.accepted_by_position)
    assert sum(trace.tested) == sum(tally.tested_by_position)
    for prompt, row in zip(RAGGED, rows, strict=True):
        text = [*prompt, *(token.token for token in row)]
        distributions = sampling.probs(target.model.model(torch.tensor([text])).logits[0])
        for place, token in enumerate(row):
            probs = distributions[len(prompt) + place - 1]
            if place == 0:
                assert token == Traced(token.token, "plain", None)
                continue
            assert token.p == pytest.approx(probs[token.token].item(), abs=1e-5)
            assert (token.q is None) == (token.producer in ("bonus", "plain"))
            assert (token.instead_of is not None) == (token.producer == "replaced")
            if token.instead_of:
                assert token.instead_of.p == pytest.approx(probs[token.instead_of.token].item(), abs=1e-5)
                assert token.instead_of.q > 0 and token.instead_of.token != token.token
            elif token.producer == "accepted":
                assert token.q > 0


def test_q_is_the_drafters_distribution(target):
    sampling = Sampling(temperature=0.8)
    _, _, rows = traced(engine(target, build_drafter("uniform_random", target), 3, sampling), RAGGED)
    shown = [token for row in rows for token in row if token.producer in ("accepted", "replaced")]
    assert {token.producer for token in shown} == {"accepted", "replaced"}
    assert all(token.q == pytest.approx(1 / target.vocabulary_size) for token in shown)
    assert all(token.instead_of.q == pytest.approx(1 / 50) for token in shown if token.instead_of)


def test_a_draft_that_is_right_is_accepted_and_one_token_follows(target):
    truth = plain(target, [[5, 6]], Stopping(max_new_tokens=11)).tokens[0]
    right = Scripted(lambda tokens, gamma: (truth + [0] * gamma)[len(tokens) - 2 :][:gamma])
    _, _, (row,) = traced(engine(target, right, 4), [[5, 6]], Stopping(max_new_tokens=11))
    assert producers(row) == ["plain", *["accepted"] * 4, "bonus", *["accepted"] * 4, "bonus"]


def test_a_draft_that_is_wrong_is_replaced_and_none_is_plain(target):
    truth = plain(target, [[5, 6]], Stopping(max_new_tokens=9)).tokens[0]
    wrong = Scripted(lambda tokens, gamma: [(truth[len(tokens) - 2] + 1) % 50] * gamma)
    _, _, (row,) = traced(engine(target, wrong, 2), [[5, 6]], Stopping(max_new_tokens=9))
    # The last token leaves no room for a draft.
    assert producers(row) == ["plain", *["replaced"] * 7, "plain"]
    assert [token.instead_of.token for token in row[1:-1]] == [(token + 1) % 50 for token in truth[1:-1]]
    assert all((token.q, token.instead_of.q, token.instead_of.p) == (0, 1, 0) for token in row[1:-1])


@pytest.mark.parametrize("most_tokens", [0, 1, 5])
def test_no_more_is_traced_than_was_asked_for(target, most_tokens):
    decoder = engine(target, build_drafter("small_transformer", target), 3)
    trace, generation, rows = traced(decoder, RAGGED, most_tokens=most_tokens)
    assert [[token.token for token in row] for row in rows] == [tokens[:most_tokens] for tokens in generation.tokens]
    assert sum(trace.tested) == sum(generation.tally.tested_by_position)


def test_what_a_stop_string_takes_back_is_not_traced(target):
    truth = plain(target, [[5, 6]], Stopping(max_new_tokens=20)).tokens[0]
    stop = target.tokenizer.decode(truth)[5:8]
    stopping = Stopping(max_new_tokens=20, stop_strings=(stop,), tokenizer=target.tokenizer)
    right = Scripted(lambda tokens, gamma: (truth + [0] * gamma)[len(tokens) - 2 :][:gamma])
    _, generation, (row,) = traced(engine(target, right, 4), [[5, 6]], stopping)
    assert [token.token for token in row] == generation.tokens[0] and len(row) < 20


class Bytes:
    """A tokenizer whose token i is byte i."""

    all_special_ids = (0,)

    def decode(self, ids: list[int], **_: object) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


def test_a_character_of_several_tokens_is_the_last_ones():
    tokens = [Traced(byte, "accepted", 0.123456, 1.0) for byte in "aπ€b\0".encode()]
    entries = traced_text(tokens, Bytes())
    assert [entry["text"] for entry in entries] == ["a", "", "π", "", "", "€", "b", "\0"]
    assert entries[0] == {"text": "a", "producer": "accepted", "p": 0.1235, "q": 1.0}
