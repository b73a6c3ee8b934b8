"""A folder with a target's hidden states at windows of text, for training: an index, and shards that are mapped.

B rows, T tokens, W windows of a shard, H hidden, n layers.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from framework.core.option_error import MissingFileError, OptionError, UnreadableError
from framework.training.whole_file import write_whole

INDEX = "states.json"
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
OUTPUT, TOKENS = "output", "tokens"  # names of the input of the output layer, and of the windows
START_OVER = "a folder that extract_states has made for these settings"


@dataclass(frozen=True)
class StatesIndex:
    """Origin and division of stored states.

    Attributes:
        target: fingerprint of the target.
        text: hash of the text.
        window: T, tokens per window; a window begins where the one before it ends.
        windows: number of windows.
        layers: layers stored beside the input of the output layer, by the indices of `LayerHooks`.
        dtype: of the states, a key of DTYPES.
        windows_per_shard: windows in every shard but the last.
    """

    target: str
    text: str
    window: int
    windows: int
    layers: tuple[int, ...]
    dtype: str
    windows_per_shard: int

    @property
    def shards(self) -> list[range]:
        """Windows of every shard, by number."""
        starts = range(0, self.windows, self.windows_per_shard)
        return [range(start, min(start + self.windows_per_shard, self.windows)) for start in starts]

    def file(self, folder: Path, shard: int) -> Path:
        """File of a shard by its number."""
        return folder / f"states-{shard:05}-of-{len(self.shards):05}.safetensors"

    def missing(self, folder: Path) -> list[int]:
        """Numbers of the shards that the folder lacks."""
        return [shard for shard in range(len(self.shards)) if not self.file(folder, shard).exists()]

    def write(self, folder: Path) -> None:
        """Write the index."""
        write_whole(folder / INDEX, lambda file: file.write_text(json.dumps(asdict(self), indent=1) + "\n"))

    def write_shard(self, folder: Path, shard: int, tokens: Tensor, states: Tensor, features: Tensor | None) -> None:
        """Write a shard; after a kill it is there as a whole, or not at all.

        Args:
            shard: its number.
            tokens: [W, T] int64, its windows.
            states: [W, T, H] input of the output layer.
            features: [W, T, n * H] states of the n layers.
        """
        parts = {OUTPUT: states} | dict(zip(_names(self.layers), _split(features, len(self.layers)), strict=True))
        tensors = {name: part.to("cpu", DTYPES[self.dtype]).contiguous() for name, part in parts.items()}
        tensors[TOKENS] = tokens.to("cpu", torch.int32)
        write_whole(self.file(folder, shard), lambda file: save_file(tensors, file))

    def num_bytes(self, states: Tensor, features: Tensor | None, windows: int) -> int:
        """Size of the states of so many windows on the disk, from those of one.

        Args:
            states: [1, T, H].
            features: [1, T, n * H].
            windows: their number.
        """
        numbers = states.numel() + (0 if features is None else features.numel())
        return windows * (numbers * DTYPES[self.dtype].itemsize + self.window * torch.int32.itemsize)


def read_index(folder: Path) -> StatesIndex:
    """
    Raises:
        OSError: the folder has no index, or a damaged one; the option is `states`.
    """
    file = folder / INDEX
    if not file.is_file():
        raise MissingFileError("states", str(folder), "a folder that extract_states has made", f"without {INDEX}")
    try:
        content = json.loads(file.read_text())
        return StatesIndex(**content | {"layers": tuple(content["layers"])})
    except (ValueError, TypeError, KeyError) as error:
        raise UnreadableError("states", str(folder), START_OVER, f"whose {INDEX} is damaged") from error


class StoredStates:
    """Reads stored states by memory map; a window is found by its tokens."""

    def __init__(self, folder: Path):
        """
        Args:
            folder: a folder with an index.

        Raises:
            OSError: the folder is not complete, or damaged; the option is `states`.
        """
        self.index, self.folder = read_index(folder), folder
        if missing := self.index.missing(folder):
            problem = f"which lacks {len(missing)} of {len(self.index.shards)} shards"
            raise MissingFileError("states", str(folder), "a complete folder; run extract_states again", problem)
        try:
            files = [self.index.file(folder, shard) for shard in range(len(self.index.shards))]
            self._shards = [safe_open(file, framework="pt") for file in files]
            self._places = {
                _digest(window): (shard, row)
                for shard, opened in enumerate(self._shards)
                for row, window in enumerate(opened.get_tensor(TOKENS))
            }
        except SafetensorError as error:
            problem = "which holds a damaged shard"
            raise UnreadableError(
                "states", str(folder), "a whole folder; delete it, and extract again", problem
            ) from error

    def check(self, *, target: str, layers: Sequence[int], window: int) -> None:
        """Check that a training can read the states.

        Args:
            target: fingerprint of its target.
            layers: layers that it reads.
            window: T.

        Raises:
            OptionError: they are others; the option is `states`.
        """
        found = self.index
        self._compare("the target with the fingerprint", found.target, target)
        if not set(layers) <= set(found.layers):
            self._compare("layers", list(found.layers), list(layers))
        self._compare("windows of a length of", found.window, window)

    def check_text(self, text: str) -> None:
        """
        Raises:
            OptionError: the hash of the text is another; the option is `states`.
        """
        self._compare("the text with the hash", self.index.text, text)

    def _compare(self, what: str, stored: object, needed: object) -> None:
        if stored != needed:
            raise OptionError("states", str(self.folder), START_OVER, f"made for {what} {stored}, not {needed}")

    def at(self, tokens: Tensor, layers: Sequence[int]) -> tuple[Tensor, Tensor | None] | None:
        """States at windows [B, T] int64; None unless all windows are stored.

        Returns:
            [B, T, H] input of the output layer; [B, T, n * H] states of these layers, None without layers.
        """
        places = [self._places.get(_digest(window)) for window in tokens.cpu()]
        found = [place for place in places if place is not None]
        if len(found) < len(places):
            return None

        def rows(name: str) -> Tensor:
            return torch.cat([self._shards[shard].get_slice(name)[row : row + 1] for shard, row in found])

        return rows(OUTPUT), torch.cat([rows(name) for name in _names(layers)], -1) if layers else None


def _names(layers: Sequence[int]) -> list[str]:
    return [f"layer.{layer}" for layer in layers]


def _split(features: Tensor | None, number: int) -> tuple[Tensor, ...]:
    return () if features is None else features.chunk(number, -1)


def _digest(window: Tensor) -> bytes:
    return hashlib.sha256(window.int().numpy().tobytes()).digest()
