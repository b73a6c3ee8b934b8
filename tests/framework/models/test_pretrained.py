"""Loading models: a loaded model equals the saved one; every error names a key."""

import json
import shutil
import time
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer, T5Config
from transformers.utils import logging

from framework.conformance.tiny_models import save_tiny, tiny_model, tiny_tokenizer
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.stopping import Stopping
from framework.models import attention as fused_attention
from framework.models import hub, pretrained
from framework.models.cache_slots import Slots
from framework.models.module_clone import clone
from framework.models.pretrained import as_target, fingerprint, load_draft_model, load_other_model, load_target
from framework.models.target import Target

GPTJ = {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 128}
TOKENS = torch.tensor([[3, 14, 15, 9, 2, 6]])


def target(path: Path | str, **settings: object) -> Target:
    defaults = {"dtype": "float32", "device": "cpu", "attention": "sdpa", "context": None}
    return load_target(path=str(path), **{**defaults, **settings})


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_target_is_what_was_saved(tmp_path, dtype, attention):
    loaded = target(save_tiny(tmp_path), dtype=dtype, attention=attention)
    assert loaded.model.model.dtype == getattr(torch, dtype)
    assert loaded.model.model.config._attn_implementation == attention
    assert not any(parameter.requires_grad for parameter in loaded.model.model.parameters())
    for name, weight in tiny_model().state_dict().items():
        assert loaded.model.model.state_dict()[name].equal(weight.to(getattr(torch, dtype)))
    assert loaded.tokenizer.get_vocab() == tiny_tokenizer().get_vocab()
    assert loaded.vocabulary_size == loaded.model.vocabulary_size == 50
    assert loaded.model.context == 128


def test_a_shorter_context_can_be_asked_for(tmp_path):
    assert target(save_tiny(tmp_path), context=32).model.context == 32


def test_dynamic_rotary_positions_of_a_loaded_model_can_be_compiled(tmp_path, quickly):
    rope = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}
    own = tiny_model(**rope)
    assert "dynamic rotary positions; allowed: false" in as_target(own, tiny_tokenizer()).model.why_no_graphs
    loaded = target(save_tiny(tmp_path, **rope))
    assert loaded.model.why_no_graphs is None
    decoder = Autoregressive(target=loaded, sampling=Sampling(temperature=0), compiled=True)
    prompt = TOKENS.tolist()[0]
    expected = own.generate(TOKENS, do_sample=False, max_new_tokens=122, eos_token_id=None)[0, 6:].tolist()
    assert decoder.generate([prompt], stopping=Stopping(max_new_tokens=122), seeds=[0]).tokens == [expected]


def test_auto_is_a_gpu_where_there_is_one(tmp_path):
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert target(save_tiny(tmp_path), device="auto").device.type == expected


def test_a_path_may_begin_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save_tiny(tmp_path / "model")
    assert target("~/model").vocabulary_size == 50


def test_padding_rows_of_the_model_are_no_tokens(tmp_path):
    tiny_tokenizer(50).save_pretrained(save_tiny(tmp_path, vocabulary=64))
    assert target(tmp_path).vocabulary_size == 50


def test_tokens_without_a_row_of_the_model_are_no_tokens(tmp_path):
    tiny_tokenizer(64).save_pretrained(save_tiny(tmp_path, vocabulary=50))
    assert target(tmp_path).vocabulary_size == 50


def test_a_tokenizer_may_lie_elsewhere(tmp_path):
    folder = save_tiny(tmp_path / "model")
    remove_tokenizer(folder)
    with pytest.raises(
        ValueError, match=r"^path is .* no tokenizer that can be read .*; target.tokenizer may name another one; "
    ):
        target(folder)
    tiny_tokenizer(45).save_pretrained(tmp_path / "tokenizer")
    loaded = target(folder, tokenizer=str(tmp_path / "tokenizer"))
    assert loaded.tokenizer.get_vocab() == tiny_tokenizer(45).get_vocab()
    assert loaded.vocabulary_size == loaded.model.vocabulary_size == 45
    assert loaded.fingerprint == fingerprint(tiny_model())


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (
            lambda folder: folder.mkdir(),
            r"without tokenizer\.json or tokenizer_config\.json; allowed: a tokenizer folder",
        ),
        (lambda folder: None, "no such folder; allowed: a tokenizer folder"),
        (
            lambda folder: tiny_tokenizer(51).save_pretrained(folder),
            "with ids up to 50; allowed: up to 49, which path",
        ),
        (lambda folder: tiny_tokenizer().save_pretrained(folder) and damage(folder), "cannot be loaded"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_named(tmp_path, prepare, reason):
    prepare(tmp_path / "tokenizer")
    with pytest.raises((OSError, ValueError), match=rf"^tokenizer is .*{reason}.*$"):
        target(save_tiny(tmp_path / "model"), tokenizer=str(tmp_path / "tokenizer"))


def damage(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


@pytest.mark.parametrize("width", [40, 50, 64])
def test_a_draft_model_has_the_targets_width(tmp_path, width):
    large = target(save_tiny(tmp_path / "target"))
    folder = save_tiny(tmp_path / "draft", vocabulary=width, num_hidden_layers=1, context=64, seed=1)
    tiny_tokenizer(50).save_pretrained(folder)
    small = load_draft_model(path=str(folder), dtype="float64", attention="eager")(large)
    assert small.vocabulary_size == 50
    assert small.model.dtype == torch.float64
    assert small.context == 64
    small.begin(1, 8)
    assert small.forward(TOKENS, None, visible=6).logits.shape == (1, 6, 50)


def test_a_draft_model_is_found_before_its_target_is_loaded(tmp_path):
    for load in (load_draft_model, load_other_model):
        with pytest.raises(FileNotFoundError, match=r"^path is '/nowhere', no such folder; allowed: a model folder"):
            load(path="/nowhere", dtype="float32", attention="sdpa")
    damage(save_tiny(tmp_path))
    load_draft_model(path=str(tmp_path), dtype="float32", attention="sdpa")  # it is read when its target is known


def other_size(folder: Path) -> None:
    tiny_tokenizer(51).save_pretrained(folder)


def other_order(folder: Path) -> None:
    file = folder / "tokenizer.json"
    contents = json.loads(file.read_text())
    ids = contents["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    file.write_text(json.dumps(contents))


def one_added_inside(folder: Path) -> None:
    """Replace one of the target's tokens."""
    tokenizer = tiny_tokenizer(49)
    tokenizer.add_tokens(["<call>"])
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (one_added_inside, "2 entries, first '<call>' = 49"),
        (other_size, "1 entries, first .* = 50"),
        (other_order, "4 entries, first 'a' = 2"),
    ],
)
def test_another_tokenizer_is_refused(tmp_path, change, difference):
    change(save_tiny(tmp_path / "draft"))
    load = load_draft_model(path=str(tmp_path / "draft"), dtype="float32", attention="sdpa")
    with pytest.raises(
        ValueError, match=rf"differs from the target's in {difference}; allowed: a model with the target's tokenizer"
    ):
        load(target(save_tiny(tmp_path / "target")))


def change_config(folder: Path, **entries: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


def remove_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: shutil.rmtree(folder), "no such folder; allowed: a model folder or a hub name"),
        (lambda folder: (folder / "config.json").unlink(), "without config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "not a valid JSON file"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no file named model.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"0123456789"), "deserializing header"),
        (lambda folder: change_config(folder, model_type="none_such"), "does not recognize this architecture"),
        (lambda folder: change_config(folder, num_hidden_layers=3), "9 weights are not in its files, model.layers.2"),
        (lambda folder: change_config(folder, vocab_size=60), r"weight is \[50, 32\] in its files, and \[60, 32\] by"),
        (lambda folder: T5Config(vocab_size=50).save_pretrained(folder), "which cannot be loaded"),
        (remove_tokenizer, "there is no tokenizer that can be read"),
    ],
)
def test_a_folder_that_cannot_be_loaded(tmp_path, capfd, damage, reason):
    damage(save_tiny(tmp_path / "model"))
    with pytest.raises((OSError, ValueError), match=reason) as raised:
        target(tmp_path / "model")
    message = str(raised.value)
    assert message.startswith(f"path is {str(tmp_path / 'model')!r}")
    assert "\n" not in message and not capfd.readouterr().err


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_tokenizer_made_without_files_is_refused(tmp_path, family):
    """For qwen3, transformers makes an empty tokenizer in place of missing files."""
    remove_tokenizer(save_tiny(tmp_path, family))
    with pytest.raises(ValueError, match="there is no tokenizer that can be read"):
        target(tmp_path)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("dtype", "float31", "^dtype is 'float31'; allowed: float32, float64, bfloat16, float16"),
        ("attention", "flash", "^attention is 'flash'; allowed: auto, fused, flex, sdpa, eager"),
        ("device", "abacus", "device is 'abacus', which is unknown; allowed: auto"),
        ("context", 129, "target.context is 129; allowed: 1 to 128"),
    ],
)
def test_wrong_settings_name_their_key(tmp_path, setting, value, message):
    with pytest.raises(ValueError, match=message):
        target(save_tiny(tmp_path), **{setting: value})


def test_attention_the_model_does_not_have(tmp_path):
    folder = save_tiny(tmp_path, "gemma2", sliding_window=128)
    with pytest.raises(ValueError, match=r"Gemma2ForCausalLM does not support .*scaled_dot_product_attention"):
        target(folder)
    assert target(folder, attention="eager").vocabulary_size == 50


@pytest.mark.parametrize(
    ("family", "config", "chosen"),
    [("llama", {}, "fused"), ("gemma2", {}, "fused"), ("gptj", GPTJ, "eager"), ("falcon", {}, "sdpa")],
)
def test_auto_is_fused_attention_where_a_model_can_run_with_it(tmp_path, family, config, chosen):
    assert target(save_tiny(tmp_path, family, **config), attention="auto").model.attention == chosen


def test_fused_attention_that_computes_something_else_is_not_taken(tmp_path, monkeypatch):
    """The probe compares fused attention with the model's own."""
    folder = save_tiny(tmp_path, "gpt_oss", num_local_experts=4, num_experts_per_tok=2, head_dim=8)
    honest = fused_attention.fused_attention

    def without_sinks(*inputs, s_aux, **others):
        return honest(*inputs, **others)

    fused_attention.register()
    monkeypatch.setitem(AttentionInterface._global_mapping, "fused", without_sinks)
    monkeypatch.setattr(fused_attention, "register", lambda: None)
    assert target(folder, attention="auto").model.attention == "eager"
    with pytest.raises(ValueError, match="attention=fused computes something else"):
        target(folder, attention="fused")


@pytest.mark.parametrize("attention", fused_attention.OURS)
def test_a_model_that_brings_its_own_attention_runs_with_none_of_ours(tmp_path, attention):
    folder = save_tiny(tmp_path, "gptj", **GPTJ)
    message = f"attention is '{attention}', and GPTJForCausalLM runs with its own alone; allowed:"
    with pytest.raises(ValueError, match=message):
        target(folder, attention=attention)


def test_flex_attention_names_what_it_lacks(tmp_path):
    with pytest.raises(ValueError, match="flex attention does not implement position_bias; use attention=fused"):
        target(save_tiny(tmp_path, "t5"), attention="flex")


def test_a_drafters_errors_name_the_drafters_keys(tmp_path):
    large = target(save_tiny(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"^path is '/nowhere'"):
        load_draft_model(path="/nowhere", dtype="float32", attention="sdpa")(large)
    with pytest.raises(ValueError, match=r"^dtype is 'half'"):
        load_draft_model(path=str(tmp_path), dtype="half", attention="sdpa")(large)


def test_a_model_that_cannot_be_served_is_refused_by_its_folder(tmp_path):
    folder = save_tiny(tmp_path, "bloom")
    with pytest.raises(ValueError, match=rf"BloomForCausalLM \({folder}\) cannot be served: it takes no position_ids"):
        target(folder, attention="auto")


@pytest.fixture
def no_network(monkeypatch, tmp_path) -> Path:
    """Cache folder of a hub at a closed port.

    The libraries' loaders fail on any request to the hub.
    """
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for library in (AutoConfig, AutoTokenizer, AutoModelForCausalLM):
        load = library.from_pretrained

        def load_locally(*args, load=load, local_files_only=False, **kwargs):
            assert local_files_only, "the libraries wait half a minute for a hub that cannot be reached"
            return load(*args, local_files_only=True, **kwargs)

        monkeypatch.setattr(library, "from_pretrained", load_locally)
    return tmp_path / "hub"


def test_a_hub_name_without_a_network_fails_at_once(no_network, tmp_path):
    large = target(save_tiny(tmp_path / "target"))
    began = time.monotonic()
    reason = r"no such folder, not downloaded yet, and http://127\.0\.0\.1:9 cannot be reached"
    with pytest.raises(ConnectionError, match=rf"^path is 'some/model', {reason}"):
        target("some/model")
    with pytest.raises(ConnectionError, match=rf"^path is 'some-model', {reason}"):
        load_draft_model(path="some-model", dtype="float32", attention="sdpa")(large)
    assert time.monotonic() - began < 10  # 5 seconds per request


def test_offline_mode_asks_nobody(no_network, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "get_session", lambda: pytest.fail("asks the hub"))
    with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE is set"):
        target("some/model")


def test_what_was_downloaded_needs_no_network(no_network):
    repository = no_network / "models--some--model"
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(save_tiny(repository / "snapshots" / "0123abcd"))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abcd")
    downloaded = target("some/model")
    assert downloaded.fingerprint == fingerprint(tiny_model())
    assert downloaded.tokenizer.chat_template == tokenizer.chat_template


def test_a_name_no_hub_has():
    with pytest.raises(ValueError, match=r"^path is 'no such name'"):
        target("no such name")


def test_loading_from_a_folder_prints_nothing(tmp_path, capfd):
    save_tiny(tmp_path)
    capfd.readouterr()
    target(tmp_path)
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""


@pytest.mark.parametrize("enabled", [True, False])
def test_progress_bars_are_left_as_found(tmp_path, monkeypatch, enabled):
    monkeypatch.setattr(logging, "_tqdm_active", enabled)
    target(save_tiny(tmp_path))
    assert logging.is_progress_bar_enabled() == enabled
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(OSError, match="no file named"):
        target(tmp_path)
    assert logging.is_progress_bar_enabled() == enabled


def test_the_same_weights_have_the_same_fingerprint(tmp_path):
    saved = save_tiny(tmp_path, dtype=torch.bfloat16)
    prints = {target(saved, dtype=dtype).fingerprint for dtype in ("bfloat16", "float32", "float64")}
    assert prints == {fingerprint(tiny_model(dtype=torch.bfloat16))}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_single_weight_changes_the_fingerprint(dtype):
    model = tiny_model(dtype=dtype)
    before = fingerprint(model)
    random = torch.Generator().manual_seed(0)
    for tensor in model.state_dict().values():
        flat = tensor.view(-1)
        place = int(torch.randint(0, len(flat), (), generator=random))
        kept = flat[place].clone()
        flat[place] = torch.nextafter(kept, kept + 1)
        assert fingerprint(model) != before
        flat[place] = kept
    assert fingerprint(model) == before


def test_names_and_shapes_are_part_of_the_fingerprint():
    linear = torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(3, 2, bias=False)
    models = [*linear, torch.nn.Sequential(linear[0])]
    for model in linear:
        torch.nn.init.zeros_(model.weight)
    assert len({fingerprint(model) for model in models}) == 3


# Several GPUs, simulated: refused device maps, and tensors that move between devices


@pytest.mark.parametrize(
    ("device_map", "gpu", "accelerate", "reason"),
    [
        ("everywhere", True, True, "^device_map is 'everywhere'; allowed: null, auto, balanced"),
        ({}, True, True, "allowed: null, auto"),
        ("auto", False, True, "device=auto is no GPU here; allowed: null on a CPU"),
        ({"": "cpu"}, True, True, "which puts '' on no GPU"),
        ({"model": 0, "lm_head": "disk"}, True, True, "which puts 'lm_head' on no GPU"),
        ("auto", True, False, r"needs the package accelerate: pip install -e '\.\[device-map\]'"),
    ],
)
def test_a_device_map_that_cannot_be_is_refused_before_anything_is_loaded(
    monkeypatch, device_map, gpu, accelerate, reason
):
    monkeypatch.setattr(pretrained, "device_named", lambda device: torch.device("cuda" if gpu else "cpu"))
    monkeypatch.setattr(pretrained, "find_spec", lambda name: object() if accelerate else None)
    with pytest.raises((ValueError, ImportError), match=reason):
        target("no/such/folder", device="auto", device_map=device_map)


def test_layers_keep_what_they_computed_on_their_own_device():
    """The meta device has no values, and rejects tensors of other devices."""
    slots = Slots(2)
    slots.begin(1, 4, torch.device("cpu"))
    states = torch.ones(1, 2, 2, 3)
    for layer, device in enumerate(("cpu", "meta")):
        with slots.in_pass(torch.tensor([[0, 1]]), visible=2):
            keys, values = slots.cache.update(states.to(device), states.to(device), layer)
        assert keys.device.type == values.device.type == device and keys.shape == states.shape
    slots.move(torch.tensor([[1]]), torch.tensor([[0]]))
    assert slots.ids.device.type == "cpu"


def test_a_model_on_several_devices_is_not_taken_apart():
    spread = torch.nn.Linear(2, 2)
    spread._hf_hook = object()  # accelerate's mark
    with pytest.raises(ValueError, match=r"target\.device_map spreads Linear over several GPUs"):
        clone(spread, {})
