"""Model folders as published: shards, old formats, added tokens, several ends of text, half precision."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoConfig, AutoModelForCausalLM

from drafters.prompt_lookup import PromptLookup
from drafters.small_transformer import SmallTransformer
from experiments.config.builders import build_stopping
from framework.conformance.tiny_models import save_tiny, tiny_model, tiny_tokenizer
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.pretrained import fingerprint, load_draft_model, load_target
from framework.models.target import Target
from framework.verifiers.speculative_sampling import SpeculativeSampling

PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [5], [7, 8, 7, 8, 9]]
GREEDY = Sampling(temperature=0)


def target(path: Path, dtype: str = "float32") -> Target:
    return load_target(path=str(path), dtype=dtype, device="cpu", attention="sdpa", context=None)


def speculative(large: Target, drafter, sampling: Sampling = GREEDY) -> list[list[int]]:
    engine = Engine(
        target=large,
        drafter=drafter,
        verifier=SpeculativeSampling(),
        gamma_policy=Fixed(gamma=3),
        sampling=sampling,
    )
    return engine.generate(PROMPTS, stopping=Stopping(max_new_tokens=24), seeds=[0, 1, 2]).tokens


def lookup(large: Target) -> PromptLookup:
    return PromptLookup(target=large, max_ngram=3, min_ngram=1, match="last")


def change(folder: Path, file: str, **entries: object) -> Path:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    return folder


def sharded(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    tiny_model().save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert (folder / "model.safetensors.index.json").exists()


def old_format(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(tiny_model().state_dict(), folder / "pytorch_model.bin")


def sharded_old_format(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    weights = tiny_model().state_dict()
    shards = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(weights)}
    for file in set(shards.values()):
        torch.save({name: weights[name] for name in weights if shards[name] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))


@pytest.mark.parametrize("write", [sharded, old_format, sharded_old_format])
def test_every_format_of_weights_is_the_same_model(tmp_path, write):
    write(save_tiny(tmp_path))
    assert target(tmp_path).fingerprint == fingerprint(tiny_model())


def test_a_missing_shard_is_named(tmp_path):
    sharded(save_tiny(tmp_path))
    next(tmp_path.glob("model-00002-*")).unlink()
    with pytest.raises(OSError, match=r"^path is .*model-00002-of-.*safetensors"):
        target(tmp_path)


class Program:
    """A call in a pickle, executed by its loader."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("contents", [b"no pickle", "a program"])
def test_a_file_of_more_than_tensors_is_refused_and_not_run(tmp_path, contents):
    folder, trace = save_tiny(tmp_path / "model"), tmp_path / "was run"
    (folder / "model.safetensors").unlink()
    if isinstance(contents, bytes):
        (folder / "pytorch_model.bin").write_bytes(contents)
    else:
        torch.save({"weight": Program(trace)}, folder / "pytorch_model.bin")
    with pytest.raises(OSError, match=r"^path is .*hold more than tensors; .*\.safetensors") as raised:
        target(folder)
    assert "\n" not in str(raised.value)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Program(trace)))
    assert trace.exists()  # unpickling executes the call


def test_code_beside_a_model_is_not_run(tmp_path):
    folder, trace = save_tiny(tmp_path / "model"), tmp_path / "was run"
    (folder / "own.py").write_text(f"open({str(trace)!r}, 'w')")
    own = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model", "AutoTokenizer": ["own.Tokenizer", None]}
    change(folder, "config.json", model_type="own", auto_map=own)
    change(folder, "tokenizer_config.json", auto_map=own)
    with pytest.raises(ValueError, match=r"^path is .*custom code"):
        target(folder)
    assert not trace.exists()


def test_a_quantised_model_says_what_it_needs(tmp_path):
    change(save_tiny(tmp_path), "config.json", quantization_config={"quant_method": "aqlm"})
    with pytest.raises(ValueError, match=r"^path is .*aqlm"):
        target(tmp_path)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_tied_embeddings_stay_tied(tmp_path, family):
    save_tiny(tmp_path, family, tie_word_embeddings=True)
    loaded = target(tmp_path)
    model = loaded.model.model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert loaded.fingerprint == fingerprint(tiny_model(family, tie_word_embeddings=True))


def test_added_tokens_are_part_of_the_vocabulary(tmp_path):
    tokenizer = tiny_tokenizer(50)
    assert tokenizer.add_tokens(["<call>", "<result>"], special_tokens=True) == 2
    tokenizer.save_pretrained(save_tiny(tmp_path, vocabulary=64))
    loaded = target(tmp_path)
    assert loaded.vocabulary_size == 52
    assert loaded.tokenizer("a<result>b")["input_ids"] == [2, 51, 3]


def test_several_ends_of_text_all_end_a_row(tmp_path):
    """Ends of text named by the tokenizer or by the generation config alone."""
    change(save_tiny(tmp_path), "generation_config.json", eos_token_id=[7, 9])
    loaded = target(tmp_path)
    cfg = OmegaConf.create({"max_new_tokens": 24, "stop_at_eos": True, "stop_strings": []})
    stopping = build_stopping(cfg, loaded)
    assert stopping.eos_ids == (0, 7, 9)  # 0 is the tokenizer's end of text
    free = Autoregressive(target=loaded, sampling=GREEDY).generate(
        PROMPTS, stopping=Stopping(max_new_tokens=24), seeds=[0, 1, 2]
    )
    ends = (free.tokens[0][5], free.tokens[1][9])  # generated tokens, as ends of text
    change(tmp_path, "generation_config.json", eos_token_id=list(ends))
    stopping = build_stopping(cfg, target(tmp_path))
    engine = Engine(
        target=loaded, drafter=lookup(loaded), verifier=SpeculativeSampling(), gamma_policy=Fixed(gamma=3),
        sampling=GREEDY,
    )  # fmt: skip
    ended = engine.generate(PROMPTS, stopping=stopping, seeds=[0, 1, 2])
    for row, tokens in enumerate(free.tokens):
        first = next((place for place, token in enumerate(tokens) if token in (0, *ends)), 23)
        assert ended.tokens[row] == tokens[: first + 1]
    assert ended.finish_reasons[:2] == ["eos", "eos"]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_decodes(tmp_path, dtype, sampling):
    """Valid tokens up to the budget; half precision guarantees no equality."""
    large = target(save_tiny(tmp_path / "target", dtype=getattr(torch, dtype)), dtype)
    save_tiny(tmp_path / "draft", seed=1, num_hidden_layers=1, dtype=getattr(torch, dtype))
    load = load_draft_model(path=str(tmp_path / "draft"), dtype=dtype, attention="sdpa")
    for drafter in (SmallTransformer(target=large, model=load), lookup(large)):
        rows = speculative(large, drafter, sampling)
        assert [len(row) for row in rows] == [24, 24, 24]
        assert all(0 <= token < 50 for row in rows for token in row)


def test_a_config_that_nests_the_text_model(tmp_path):
    """Gemma 3: the text model's settings are in text_config, beside an unused image tower."""
    text = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
            "sliding_window": 128, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}  # fmt: skip
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 28, "patch_size": 14}  # fmt: skip
    images = {"mm_tokens_per_image": 4, "boi_token_index": 60, "eoi_token_index": 61, "image_token_index": 62}
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=vision, **images)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(tmp_path)
    tiny_tokenizer(50).save_pretrained(tmp_path)
    assert "vocab_size" not in json.loads((tmp_path / "config.json").read_text())
    large = target(tmp_path, "float64")
    assert (large.vocabulary_size, large.model.context) == (50, 128)
    assert large.fingerprint == fingerprint(model)
    plain = Autoregressive(target=large, sampling=GREEDY)
    expected = plain.generate(PROMPTS, stopping=Stopping(max_new_tokens=24), seeds=[0, 1, 2]).tokens
    assert speculative(large, lookup(large)) == expected
