"""Files of drafters that other projects publish: their config, their tensors, and modules filled with them.

A reader of a published layout takes these steps: `open_published` the folder or repository; build a module from
`config` and the tensors' shapes; rename `tensors()` to the module's names; `fill` the module. A writer returns an
`Export`, and is registered in `experiments/export.py`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from framework.core.option_error import OptionError
from framework.models.hub import Place, locate

Module = TypeVar("Module", bound=nn.Module)

SAFE, PICKLED = ("*.safetensors",), ("*.pt", "*.bin")
LFS = b"version https://git-lfs"
NAMED = 3  # tensors that an error names before it counts


def is_published(path: str, *, own: str) -> bool:
    """Whether a path names a published drafter instead of a folder that training wrote.

    Args:
        own: name of the two files of `save_part`, without suffix.
    """
    folder = Path(path).expanduser()
    return not any((folder / f"{own}.{suffix}").is_file() for suffix in ("json", "safetensors"))


@dataclass(frozen=True)
class PublishedFiles:
    """A published drafter on this machine.

    Attributes:
        path: the folder or hub name as given, for errors.
        folder: folder of its files.
        config: contents of config.json.
        place: location and option, which converts the libraries' errors.
    """

    path: str
    folder: Path
    config: dict[str, Any]
    place: Place

    def tensors(self, wanted: Callable[[str], bool] = lambda name: True, *, stem: str = "*") -> dict[str, Tensor]:
        """Tensors by name, on the CPU and in their own dtypes.

        Files of safetensors are preferred to .pt and .bin files, of which only tensors are read (`weights_only`). A
        model.safetensors is read alone, as transformers does.

        Args:
            wanted: which names to read; other tensors of safetensors are not loaded.
            stem: pattern of the files' names without suffix, such as medusa_lm_head; *: all files, or those that an
                index lists.

        Raises:
            OSError: no such file, or one that is damaged or holds more than tensors.
        """
        with self.place.loading():
            found: dict[str, Tensor] = {}
            for file in self._weight_files(stem):
                for name, tensor in _read(file, wanted).items():
                    if name in found:
                        raise ValueError(f"{name} is in {file.name} and in another file")
                    found[name] = tensor
            return found

    def _weight_files(self, stem: str) -> list[Path]:
        if stem == "*" and (index := self.folder / "model.safetensors.index.json").is_file():
            return [self.folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
        if stem == "*" and (whole := self.folder / "model.safetensors").is_file():
            return [whole]
        for suffixes in (SAFE, PICKLED):
            if files := sorted(file for suffix in suffixes for file in self.folder.glob(stem + suffix[1:])):
                return files
        raise FileNotFoundError(f"no {stem}.safetensors, {stem}.pt or {stem}.bin")


def open_published(path: str, *, option: str = "path") -> PublishedFiles:
    """Find a published drafter, or download its config and weights; code beside them is neither loaded nor run.

    Args:
        path: a local folder, or a hub name.
        option: name of the option, for errors.

    Raises:
        OSError: no such folder, a damaged config.json, or a hub that cannot be reached.
    """
    place = locate(path, option=option, kind="drafter")
    with place.loading():
        folder = Path(place.path) if Path(place.path).is_dir() else _download(place)
        config = json.loads((folder / "config.json").read_text())
        if not isinstance(config, dict):
            raise ValueError("its config.json holds no settings")
    return PublishedFiles(path=path, folder=folder, config=config, place=place)


@dataclass(frozen=True)
class Export:
    """A drafter in a published format.

    Attributes:
        config: contents of config.json.
        tensors: by name, each with its own memory.
        stem: name of the file of tensors, without suffix.
        speculative_config: vLLM's, without the model's place; None: vLLM does not read the format.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    stem: str = "model"
    speculative_config: dict[str, Any] | None = None

    def save(self, folder: Path) -> None:
        """Write config.json and the tensors to a folder, which is created if missing."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=1) + "\n")
        save_file(self.tensors, folder / f"{self.stem}.safetensors", metadata={"format": "pt"})


def fill(
    module: Module,
    tensors: Mapping[str, Tensor],
    *,
    files: PublishedFiles,
    dtype: torch.dtype,
    device: torch.device,
    sizes: Mapping[str, int],
) -> Module:
    """Put tensors into all parameters and persistent buffers of a module, in place.

    Floating ones are NaN before, so that a forgotten one cannot pass as a bad drafter. Integers keep their dtype.
    Further buffers, such as rotary angles, keep their values and dtype.

    Args:
        module: may be built on the meta device, if it has no further buffers.
        tensors: by name in `module.state_dict()`; these names exactly.
        files: the checkpoint, for errors.
        dtype: dtype of the floating parameters and buffers.
        device: device of all parameters and buffers.
        sizes: sizes of the target by their words, such as {"hidden size": 4096}; a misshapen tensor that has another
            number in such a place is explained by the word.

    Returns:
        the module, in evaluation mode and without gradients.

    Raises:
        ValueError: tensors are missing, surplus, misshapen or quantised, or hold NaN: one line names them.
    """
    _make_nan(module, dtype, device)
    check_tensors(tensors, module.state_dict(), files=files, sizes=sizes)
    module.load_state_dict(tensors)
    return module.eval().requires_grad_(False)


def draft_vocabulary(d2t: Tensor, size: int, error_of: Callable[[str], OptionError]) -> Tensor:
    """[Vd] int64: token ids of a draft vocabulary, from the offsets d2t [Vd] that files hold.

    Args:
        d2t: offset of every draft token's id from its place.
        size: ids are less than this.
        error_of: makes the error from its problem.

    Raises:
        OptionError: the ids are not different tokens below `size`.
    """
    tokens = d2t + torch.arange(len(d2t), device=d2t.device)
    if tokens.min() < 0 or tokens.max() >= size or len(tokens.unique()) < len(tokens):
        raise error_of(f"whose d2t does not map to different tokens below {size}")
    return tokens


def check_tensors(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, files: PublishedFiles, sizes: Mapping[str, int]
) -> None:
    """Check names, shapes and kinds of tensors; for layouts whose names are not those of a module.

    Args:
        tensors: by name.
        expected: tensors of the same names, shapes and kinds, for example on the meta device.
        files: the checkpoint, for errors.
        sizes: as for `fill`.

    Raises:
        ValueError: as by `fill`.
    """
    both = sorted(expected.keys() & tensors.keys())
    misshapen = [name for name in both if tensors[name].shape != expected[name].shape]
    floating = [name for name in both if expected[name].is_floating_point()]
    problems = [
        _listed("missing", sorted(expected.keys() - tensors.keys())),
        _listed("surplus", sorted(tensors.keys() - expected.keys())),
        _listed("misshapen", [f"{name} {_shapes(tensors[name], expected[name])}" for name in misshapen]),
        _listed("quantised", [name for name in floating if not tensors[name].is_floating_point()]),
        _listed("with NaN", [name for name in floating if tensors[name].isnan().any()]),
    ]
    if any(problems):
        words = _in_words([(tensors[name].shape, expected[name].shape) for name in misshapen], sizes)
        why = f"made for {words}; its tensors" if words else "whose tensors"
        problem = f"{why} do not fit: {'; '.join(filter(None, problems))}"
        raise OptionError(files.place.option, files.path, "a drafter of this layout, made for this target", problem)


def _download(place: Place) -> Path:
    for suffixes in (SAFE, PICKLED):
        folder = snapshot_download(
            place.path,
            allow_patterns=["*.json", *suffixes],
            ignore_patterns=["*/*"],
            local_files_only=place.is_local,
        )
        if any(file for suffix in suffixes for file in Path(folder).glob(suffix)):
            break
    return Path(folder)


def _read(file: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        try:
            with safe_open(file, framework="pt") as opened:
                return {name: opened.get_tensor(name) for name in opened.keys() if wanted(name)}  # noqa: SIM118
        except SafetensorError as error:
            with file.open("rb") as opened:
                is_pointer = opened.read(len(LFS)) == LFS
            remedy = "a pointer of Git LFS; run git lfs pull" if is_pointer else f"damaged or incomplete ({error})"
            raise OSError(f"{file.name} is {remedy}") from error
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling damaged bytes may raise anything
        raise UnpicklingError(f"{file.name}: {error}") from error
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ValueError(f"{file.name} holds more than tensors by name")
    return {str(name): tensor for name, tensor in tensors.items() if wanted(str(name))}


def _make_nan(module: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    made: dict[int, Tensor] = {}  # tied parameters stay tied

    def unset(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
        return torch.full(tensor.shape, torch.nan, dtype=dtype, device=device)

    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(unset(parameter), requires_grad=False)
            setattr(part, name, made[id(parameter)])
        saved = part.state_dict().keys()
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, unset(buffer) if name in saved else buffer.to(device))


def _shapes(given: Tensor, expected: Tensor) -> str:
    return f"{list(given.shape)} instead of {list(expected.shape)}"


def _listed(what: str, names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{what} {', '.join(names[:NAMED])}{more}" if names else ""


def _in_words(shapes: list[tuple[torch.Size, torch.Size]], sizes: Mapping[str, int]) -> str:
    """The target's sizes that a checkpoint has otherwise, found where a shape holds such a size."""
    found: dict[str, str] = {}
    for given, expected in shapes:
        for ours, theirs in zip(expected, given, strict=False):
            for word, size in sizes.items():
                if ours == size and theirs != size:
                    found.setdefault(word, f"a {word} of {theirs} instead of {size}")
    return " and ".join(found.values())
