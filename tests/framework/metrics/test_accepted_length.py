"""Mean accepted lengths by the definitions of other projects, against rounds counted by hand."""

import pytest

from framework.metrics.accepted_length import AcceptedLengths, Request
from framework.metrics.tally import Tally
from tests.support.rounds import readout


def test_ragged_rounds_with_an_end_of_text_among_the_accepted_nodes() -> None:
    """Three requests; the middle row of a round is finished where its entry is False.

    Request 0: three rounds of (offered, accepted) (3, 3), (3, 1), (0, 0): 4 + 2 + 1 tokens, and one of the prefill.
    Request 1: two rounds (3, 0), (2, 2) whose second accepted node is the end of the text: 1 + 2 tokens, no bonus.
    Request 2: one round (1, 1): 2 tokens.
    """
    tally = Tally(3)
    last = readout((3, 1), (2, 2), (0, 0, False))
    tally.observe(readout((3, 3), (3, 0), (1, 1)))
    tally.observe(last._replace(committed=[2, 2, 0]))
    tally.observe(readout((0, 0), (0, 0, False), (0, 0, False)))
    requests = [Request(8, accepted=4, rounds=3), Request(4, accepted=2, rounds=2), Request(3, accepted=1, rounds=1)]
    found = AcceptedLengths.of(tally, requests)
    assert found.vllm == pytest.approx(1 + 7 / 5)  # six rounds, one of them without a draft
    assert found.sglang_server == pytest.approx(12 / 6) == tally.metrics()["tau"]
    assert found.sglang == pytest.approx((8 / 3 + 4 / 2 + 3 / 1) / 3)
    assert found.eagle == pytest.approx(((4 + 3) / 2 + (2 + 2) / 1) / 2)  # request 2 has no second round
    assert found.metrics()["accepted_length/vllm"] == found.vllm


def test_nothing_drafted_and_nothing_decoded_have_no_figure() -> None:
    tally = Tally(2)
    assert AcceptedLengths.of(tally, []) == AcceptedLengths(None, None, None, None)
    tally.observe(readout((0, 0)))
    assert AcceptedLengths.of(tally, [Request(2, accepted=0, rounds=1)]) == AcceptedLengths(None, 2.0, 1.0, None)
    assert AcceptedLengths.of(Tally(2), [Request(1, accepted=0, rounds=0)]).sglang is None
