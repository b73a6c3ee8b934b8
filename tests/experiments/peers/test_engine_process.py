"""The process of an engine: its answers, the time of the first token, and its end."""

from contextlib import closing

import pytest
import torch

from experiments.peers.engine_process import EngineDecoder, EngineProcess
from framework.core.sampling import Sampling
from framework.decoding.stopping import Stopping
from framework.metrics.stopwatch import Stopwatch

SETTINGS = {"target": "a folder", "drafter": None, "most_drafted": 4, "threads": 1, "context": 20}
MODULE = "tests.support.pretend_engine"


def test_answers_are_generations_with_the_time_of_the_first_token_as_prefill():
    with closing(EngineProcess("counting", MODULE, SETTINGS)) as process:
        assert process.version == "1.2"
        decoder = EngineDecoder(process, "plain", Sampling(temperature=0))
        for prompt, tokens in (([5, 6], [7, 8, 9]), ([48], [49, 0, 1])):
            stopwatch = Stopwatch(torch.device("cpu"))
            found = decoder.generate([prompt], stopping=Stopping(max_new_tokens=3), seeds=[0], stopwatch=stopwatch)
            assert found.tokens == [tokens] and found.tally is None
            assert stopwatch.seconds() == {"prefill": 0.25}
    assert process._process.returncode == 0


def test_the_last_words_of_a_process_are_in_the_error():
    with pytest.raises(ConnectionError, match=r"^the process of counting has ended: FileNotFoundError: there is no m"):
        EngineProcess("counting", MODULE, SETTINGS | {"target": ""})
    with closing(EngineProcess("counting", MODULE, SETTINGS)) as process:
        decoder = EngineDecoder(process, "broken", Sampling(temperature=0))
        with pytest.raises(ConnectionError, match="has ended: the arm fell off"):
            decoder.generate([[1]], stopping=Stopping(max_new_tokens=3), seeds=[0])
