"""Files of published drafters: every container, modules without forgotten weights, errors in one line."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from torch import nn

from framework.core.option_error import OptionError
from framework.heads.published_files import fill, open_published
from framework.models import hub

CPU = torch.device("cpu")
TENSORS = {"fc.weight": torch.ones(4, 8), "norm": torch.ones(4), "d2t": torch.arange(3)}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4, bias=False)
        self.norm = nn.Parameter(torch.ones(4))
        self.register_buffer("d2t", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("angles", torch.rand(2), persistent=False)


def saved(folder: Path, **files) -> Path:
    """A folder with config.json and tensors: keyword a file's stem, value the tensors of its .safetensors."""
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 4}')
    for stem, tensors in files.items():
        save_file(tensors, folder / f"{stem}.safetensors")
    return folder


def filled(tensors, folder, *, dtype=torch.float64, module=None):
    sizes = {"hidden size": 4, "vocabulary": 50}
    return fill(module or Layer(), tensors, files=open_published(str(folder)), dtype=dtype, device=CPU, sizes=sizes)


def test_every_container_gives_the_same_tensors(tmp_path):
    one = saved(tmp_path / "one", model=TENSORS)
    torch.save({"other": torch.zeros(1)}, one / "training_state.bin")  # beside safetensors, it is not read
    shards = saved(tmp_path / "shards", a={"norm": TENSORS["norm"]}, b={"fc.weight": TENSORS["fc.weight"]},
                   c={"d2t": TENSORS["d2t"]}, unlisted={"x": torch.ones(1)})  # fmt: skip
    names = {"norm": "a.safetensors", "fc.weight": "b.safetensors", "d2t": "c.safetensors"}
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    pickled = saved(tmp_path / "pickled")
    torch.save(TENSORS, pickled / "pytorch_model.bin")
    for folder in (one, shards, pickled):
        files = open_published(str(folder))
        tensors = files.tensors()
        assert files.config == {"hidden_size": 4} and tensors.keys() == TENSORS.keys()
        assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert open_published(str(shards)).tensors(lambda name: name == "norm").keys() == {"norm"}
    assert open_published(str(shards)).tensors(stem="unl*").keys() == {"x"}


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_downloaded_hub_name_is_read_without_the_hub(tmp_path, monkeypatch, suffix):
    snapshot = tmp_path / "models--someone--drafter" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    saved(snapshot)
    (save_file if suffix == "safetensors" else torch.save)(TENSORS, snapshot / f"medusa_lm_head.{suffix}")
    (tmp_path / "models--someone--drafter" / "refs").mkdir()
    (tmp_path / "models--someone--drafter" / "refs" / "main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    files = open_published("someone/drafter")
    assert files.tensors().keys() == files.tensors(stem="medusa_lm_head").keys() == TENSORS.keys()
    with pytest.raises(OSError, match=r"^path is 'someone/other', no such folder, not downloaded yet"):
        open_published("someone/other")


def test_code_in_a_checkpoint_does_not_run(tmp_path):
    class Harmful:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "it ran",))

    folder = saved(tmp_path / "folder")
    for content in ({"fc.weight": Harmful()}, Harmful()):
        (folder / "model.pt").write_bytes(pickle.dumps(content, protocol=2))
        with pytest.raises(OSError, match=r"^path is .*; allowed: one with \.safetensors files$"):
            open_published(str(folder)).tensors()
    torch.save({"model": TENSORS}, folder / "model.pt")
    with pytest.raises(ValueError, match=r"^path is .* model\.pt holds more than tensors by name"):
        open_published(str(folder)).tensors()
    assert not (tmp_path / "it ran").exists()


def test_folders_without_a_drafter_end_in_one_line(tmp_path, monkeypatch):
    folder = saved(tmp_path / "folder")
    with pytest.raises(OSError, match=r"^path is .* cannot be loaded: no \*\.safetensors"):
        open_published(str(folder)).tensors()
    for content, says in (
        (b"torn", r"damaged or incomplete \(.*\)"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS; run git lfs pull"),
    ):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(OSError, match=rf"^path is .* cannot be loaded: model\.safetensors is {says}; allowed"):
            open_published(str(folder)).tensors()
    (folder / "model.safetensors").unlink()
    (folder / "model.bin").write_bytes(b"hello")
    with pytest.raises(OSError, match=r"^path is .* are damaged, or hold more than tensors; allowed"):
        open_published(str(folder)).tensors()
    with pytest.raises(OSError, match=r"^path is .*, which is a file; allowed: a drafter folder"):
        open_published(str(folder / "model.bin"))
    for name in ("first", "second"):
        save_file({"norm": TENSORS["norm"]}, folder / f"{name}.safetensors")
    with pytest.raises(ValueError, match=r"norm is in second\.safetensors and in another file"):
        open_published(str(folder)).tensors()
    save_file(TENSORS, folder / "model.safetensors")  # which is then the only one that is read
    assert open_published(str(folder)).tensors().keys() == TENSORS.keys()
    for text in ("[]", "{", ""):
        (folder / "config.json").write_text(text)
        with pytest.raises(ValueError, match=r"^path is .* cannot be loaded"):
            open_published(str(folder))
    monkeypatch.setattr(hub, "why_unreachable", lambda: "HF_HUB_OFFLINE is set")
    with pytest.raises(
        OSError, match=r"^path is 'someone/drafter', .*HF_HUB_OFFLINE is set; allowed: a drafter folder"
    ):
        open_published("someone/drafter")


def test_a_filled_module_has_the_tensors_and_its_own_further_buffers(tmp_path):
    module = Layer()
    angles = module.angles.clone()
    filled(TENSORS, saved(tmp_path / "folder"), dtype=torch.bfloat16, module=module)
    assert module.fc.weight.dtype is module.norm.dtype is torch.bfloat16 and module.d2t.dtype is torch.int64
    assert all(torch.equal(tensor, TENSORS[name].to(tensor)) for name, tensor in module.state_dict().items())
    assert torch.equal(module.angles, angles) and not any(p.requires_grad for p in module.parameters())
    with torch.device("meta"):
        built = nn.Linear(8, 4, bias=False)
    weight = filled({"weight": TENSORS["fc.weight"]}, tmp_path / "folder", module=built).weight
    assert weight.device == CPU and torch.equal(weight, torch.ones(4, 8, dtype=torch.float64))


def test_a_module_is_nan_until_it_is_filled(tmp_path):
    module = Layer()
    with pytest.raises(OptionError, match="missing norm"):
        filled(
            {name: tensor for name, tensor in TENSORS.items() if name != "norm"}, saved(tmp_path / "f"), module=module
        )
    assert module.norm.isnan().all() and module.fc.weight.isnan().all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"d2t": None}, r"whose tensors do not fit: missing d2t; allowed: "),
        ({f"layers.{i}": torch.ones(1) for i in range(5)}, r".* surplus layers\.0, layers\.1, layers\.2 and 2 more; "),
        ({"norm": torch.ones(6)}, r"made for a hidden size of 6 instead of 4; its .* norm \[6\] instead of \[4\]; "),
        ({"fc.weight": torch.ones(4, 7)}, r"whose tensors .* misshapen fc\.weight \[4, 7\] instead of \[4, 8\]; "),
        ({"norm": torch.ones(4, dtype=torch.int8)}, r"whose tensors do not fit: quantised norm; "),
        ({"norm": torch.full((4,), torch.nan)}, r"whose tensors do not fit: with NaN norm; "),
        ({"d2t": None, "x": torch.ones(1)}, r"whose tensors do not fit: missing d2t; surplus x; "),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, change, says):
    tensors = {name: tensor for name, tensor in (TENSORS | change).items() if tensor is not None}
    with pytest.raises(OptionError, match=rf"^path is '.*', {says}") as error:
        filled(tensors, saved(tmp_path / "folder"))
    assert "\n" not in str(error.value)
