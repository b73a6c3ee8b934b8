"""Conversion to GGUF: llama.cpp computes the same logits, whatever the rotary angles."""

from contextlib import closing

import pytest
import torch

from experiments.peers.engine_process import EngineDecoder, EngineProcess
from experiments.peers.gguf_export import in_pairs, write_gguf
from framework.conformance.tiny_models import tiny_model, tiny_target, tiny_tokenizer
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.stopping import Stopping

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32, "rope_theta": 500000.0,
}  # fmt: skip


def test_scores_of_rotated_neighbours_are_those_of_rotated_halves():
    torch.manual_seed(0)
    heads, size = 2, 6
    queries, keys = torch.randn(2, heads * size, 1)
    angles = torch.rand(2, 1, size // 2)

    def scores(turn, queries, keys):
        turned = [turn(each.view(heads, size), angle) for each, angle in zip((queries, keys), angles, strict=True)]
        return (turned[0] * turned[1]).sum(1)

    def halves(vectors, angle):
        left, right = vectors.chunk(2, 1)
        return torch.cat([left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()], 1)

    def neighbours(vectors, angle):
        left, right = vectors[:, ::2], vectors[:, 1::2]
        pairs = [left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()]
        return torch.stack(pairs, 2).flatten(1)

    in_order = [in_pairs(each, heads) for each in (queries, keys)]
    torch.testing.assert_close(scores(neighbours, *in_order), scores(halves, queries, keys))


@pytest.mark.parametrize("rope", [None, YARN, LLAMA3], ids=["default", "yarn", "llama3"])
@pytest.mark.parametrize("tied", [False, True], ids=["own output layer", "tied"])
def test_llama_cpp_computes_the_same_logits(tmp_path, rope, tied):
    llama_cpp = pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    given = {} if rope is None else {"rope_parameters": rope}
    model = tiny_model(tie_word_embeddings=tied, **given)
    write_gguf(model, tiny_tokenizer(), tmp_path / "folder" / "model.gguf")
    tokens = [5, 6, 7, 40, 3, 9] * 12
    llama = llama_cpp.Llama(
        str(tmp_path / "folder" / "model.gguf"), n_ctx=128, logits_all=True, type_k=0, type_v=0, verbose=False
    )
    llama.eval(tokens)
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(torch.from_numpy(llama.scores[: len(tokens)]), expected, atol=1e-4, rtol=1e-4)


def test_its_process_decodes_the_tokens_of_the_baseline_again_and_again(tmp_path):
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    target = tiny_target()
    write_gguf(target.model.model, target.tokenizer, tmp_path / "model.gguf")
    settings = {"target": str(tmp_path / "model.gguf"), "drafter": None, "most_drafted": 3, "threads": 1, "context": 26}
    greedy, stopping = Sampling(temperature=0), Stopping(max_new_tokens=20)
    plain = Autoregressive(target=target, sampling=greedy)
    with closing(EngineProcess("llama_cpp", "experiments.peers.llama_cpp_worker", settings)) as process:
        for prompt in ([5, 6, 7, 8, 5, 6], [9, 10, 9], [5, 6, 7, 8, 5, 6]):
            expected = plain.generate([prompt], stopping=stopping, seeds=[0]).tokens
            for arm in ("plain", "prompt_lookup"):
                decoder = EngineDecoder(process, arm, greedy, gamma=3)
                assert decoder.generate([prompt], stopping=stopping, seeds=[0]).tokens == expected, arm
        sampled = EngineDecoder(process, "plain", Sampling(temperature=1))
        drawn = [sampled.generate([[5, 6]], stopping=stopping, seeds=[seed]).tokens for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]
