"""Conversion to OpenVINO: the same logits from passes of any width, and the tokens of the baseline."""

from contextlib import closing

import numpy as np
import pytest
import torch

from experiments.peers.engine_process import EngineDecoder, EngineProcess
from experiments.peers.openvino_export import as_openvino, write_openvino
from framework.conformance.tiny_models import tiny_model, tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.stopping import Stopping

openvino = pytest.importorskip("openvino")
TOKENS = [5, 6, 7, 40, 3, 9, 11, 2]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2"])
def test_openvino_computes_the_same_logits_from_passes_of_any_width(family):
    model = tiny_model(family)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits.numpy()
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(as_openvino(model), "CPU", options)
    for widths in ([8], [5, 1, 2], [1] * 8):
        request, read = compiled.create_infer_request(), 0
        for width in widths:
            inputs = {
                "input_ids": np.array([TOKENS[read : read + width]]),
                "attention_mask": np.ones((1, read + width), np.int64),
                "position_ids": np.arange(read, read + width)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
            logits = request.infer(inputs)["logits"]
            np.testing.assert_allclose(logits, expected[:, read : read + width], atol=1e-4)
            read += width


def test_its_process_decodes_the_tokens_of_the_baseline_with_every_arm(tmp_path):
    pytest.importorskip("openvino_genai")
    target, drafter = tiny_target(), tiny_model(seed=1)
    write_openvino(target.model.model, target.tokenizer, tmp_path / "target")
    write_openvino(drafter, target.tokenizer, tmp_path / "drafter")
    models = {each: str(tmp_path / each) for each in ("target", "drafter")}
    greedy, stopping = Sampling(temperature=0), Stopping(max_new_tokens=20)
    plain = Autoregressive(target=target, sampling=greedy)
    settings = models | {"gamma": 3, "threads": 1, "context": 40}
    with closing(EngineProcess("openvino", "experiments.peers.openvino_worker", settings)) as process:
        for prompt in ([5, 6, 7, 8, 5, 6], [9, 10, 9], [5, 6, 7, 8, 5, 6]):
            expected = plain.generate([prompt], stopping=stopping, seeds=[0]).tokens
            for arm in ("plain", "draft_model", "prompt_lookup"):
                decoder = EngineDecoder(process, arm, greedy)
                assert decoder.generate([prompt], stopping=stopping, seeds=[0]).tokens == expected, arm
        sampled = EngineDecoder(process, "plain", Sampling(temperature=1))
        drawn = [sampled.generate([[5, 6]], stopping=stopping, seeds=[seed]).tokens for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]
