"""Conversion to OpenVINO: the same logits from passes of any width, and the tokens of the baseline."""

from collections import Counter
from contextlib import closing
from pathlib import Path

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


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A converted target and a draft model."""
    folder, target = tmp_path_factory.mktemp("openvino"), tiny_target()
    write_openvino(target.model.model, target.tokenizer, folder / "target")
    write_openvino(tiny_model(seed=1), target.tokenizer, folder / "drafter")
    return {each: str(folder / each) for each in ("target", "drafter")}


def compiled(file: Path):
    precision = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    return openvino.Core().compile_model(file, "CPU", precision)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2"])
def test_openvino_computes_the_same_logits_from_passes_of_any_width(tmp_path, family):
    model = tiny_model(family)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits.numpy()
    openvino.save_model(as_openvino(model), tmp_path / "model.xml", compress_to_fp16=False)
    converted = compiled(tmp_path / "model.xml")
    for widths in ([8], [5, 1, 2], [1] * 8):
        request, read = converted.create_infer_request(), 0
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


def test_openvino_runs_its_fused_kernels_of_a_llama(folders):
    """Otherwise the benchmark would time a slower engine than its users have."""
    nodes = compiled(Path(folders["target"]) / "openvino_model.xml").get_runtime_model().get_ops()
    kinds = Counter(str(node.get_rt_info()["layerType"].value) for node in nodes)
    layers = 2
    assert kinds["ScaledDotProductAttention"] == layers
    assert kinds["RoPE"] == 2 * layers and kinds["RMS"] == 2 * layers + 1


def test_its_process_decodes_the_tokens_of_the_baseline_with_every_arm(folders):
    pytest.importorskip("openvino_genai")
    target, greedy, stopping = tiny_target(), Sampling(temperature=0), Stopping(max_new_tokens=20)
    plain = Autoregressive(target=target, sampling=greedy)
    settings = folders | {"most_drafted": 3, "threads": 1, "context": 26}
    with closing(EngineProcess("openvino", "experiments.peers.openvino_worker", settings)) as process:
        for prompt in ([5, 6, 7, 8, 5, 6], [9, 10, 9], [5, 6, 7, 8, 5, 6]):
            expected = plain.generate([prompt], stopping=stopping, seeds=[0]).tokens
            for arm in ("plain", "draft_model", "prompt_lookup"):
                decoder = EngineDecoder(process, arm, greedy, gamma=3)
                assert decoder.generate([prompt], stopping=stopping, seeds=[0]).tokens == expected, arm
        sampled = EngineDecoder(process, "plain", Sampling(temperature=1))
        drawn = [sampled.generate([[5, 6]], stopping=stopping, seeds=[seed]).tokens for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]
