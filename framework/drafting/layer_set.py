"""LayerSet, the skipped attention and MLP sub-layers of a decoder, and its file."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.core.option_error import MissingFileError, OptionError, OtherTargetError
from framework.core.validation import check_whole
from framework.models.target import Target

KEYS = ("num_layers", "target_fingerprint", "skip_attention", "skip_mlp")

WRITTEN = "a file layers.yaml that `search_layers` wrote"


@dataclass(frozen=True)
class LayerSet:
    """Skipped sub-layers, out of the 2 * num_layers sub-layers of a decoder.

    Attributes:
        num_layers: number of blocks of the decoder.
        skip_attention: blocks whose attention is skipped, ascending, from 0.
        skip_mlp: blocks whose MLP is skipped, ascending, from 0.

    Raises:
        ValueError: an index is outside the decoder or listed twice, or no sub-layer is left; the message names the
            option.
    """

    num_layers: int
    skip_attention: tuple[int, ...]
    skip_mlp: tuple[int, ...]

    def __post_init__(self) -> None:
        for option, skipped in (("skip_attention", self.skip_attention), ("skip_mlp", self.skip_mlp)):
            whole = all(isinstance(index, int) and not isinstance(index, bool) for index in skipped)
            if not whole or not all(0 <= index < self.num_layers for index in skipped):
                allowed = f"a list of whole numbers from 0 to {self.num_layers - 1}, the target's layers"
                raise OptionError(option, list(skipped), allowed)
            if len(set(skipped)) < len(skipped):
                raise OptionError(option, list(skipped), "every layer once", "which names a layer twice")
            object.__setattr__(self, option, tuple(sorted(skipped)))
        if self.num_skipped == 2 * self.num_layers:
            problem = f"and with skip_attention skips all of the target's {self.num_layers} layers"
            raise OptionError("skip_mlp", list(self.skip_mlp), "lists that leave at least one sub-layer", problem)

    @property
    def num_skipped(self) -> int:
        return len(self.skip_attention) + len(self.skip_mlp)

    @property
    def bits(self) -> tuple[int, ...]:
        """2 * num_layers entries, 1 for a skipped sub-layer, else 0: the attentions, then the MLPs."""
        layers = range(self.num_layers)
        return tuple(int(layer in skipped) for skipped in (self.skip_attention, self.skip_mlp) for layer in layers)

    @classmethod
    def from_bits(cls, bits: Iterable[int]) -> "LayerSet":
        """The set with these `bits`."""
        bits = list(bits)
        num_layers = len(bits) // 2
        attention, mlp = bits[:num_layers], bits[num_layers:]
        return cls(
            num_layers, tuple(i for i, bit in enumerate(attention) if bit), tuple(i for i, b in enumerate(mlp) if b)
        )

    @classmethod
    def exit_after(cls, kept: int, num_layers: int) -> "LayerSet":
        """Early exit: keep the first `kept` blocks and skip all later ones.

        Raises:
            ValueError: kept is not a whole number from 1 to num_layers.
        """
        check_whole("exit_after", kept, least=1, most=num_layers)
        later = tuple(range(kept, num_layers))
        return cls(num_layers, later, later)

    @classmethod
    def uniform(cls, num_layers: int, *, attention: int, mlp: int) -> "LayerSet":
        """Skip these numbers of attentions and MLPs, evenly spaced over the depth: a search has to beat this set."""
        return cls(num_layers, evenly(attention, num_layers), evenly(mlp, num_layers))


def evenly(count: int, num_layers: int) -> tuple[int, ...]:
    """Indices of `count` evenly spaced layers: the midpoints of `count` equal parts of the depth."""
    return tuple((2 * part + 1) * num_layers // (2 * count) for part in range(count))


def save_layer_set(path: Path, layer_set: LayerSet, *, fingerprint: str, facts: dict[str, Any]) -> None:
    """Write a layer set for one target, as YAML whose body is JSON; facts are further entries on its search."""
    values = (layer_set.num_layers, fingerprint, list(layer_set.skip_attention), list(layer_set.skip_mlp))
    entries = dict(zip(KEYS, values, strict=True)) | facts
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]
    header = "# Sub-layers that layer_skip skips, found by `search_layers`.\n"
    command = "# drafter=layer_skip drafter.layers=THIS_FILE drafts with the remaining ones.\n\n"
    path.write_text(header + command + "{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def load_layer_set(path: str, target: Target, num_layers: int) -> LayerSet:
    """Read a layer set that `save_layer_set` wrote for this target.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file holds something else, or a set for another target; the message says which.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        found = "a folder" if file.is_dir() else "no such file"
        raise MissingFileError("layers", path, WRITTEN, found)
    try:
        body = "\n".join(line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
        entries = json.loads(body)
        depth, fingerprint, attention, mlp = (entries[key] for key in KEYS)
        attention, mlp = tuple(attention), tuple(mlp)
    except (ValueError, KeyError, TypeError) as error:
        problem = f"which `search_layers` did not write ({type(error).__name__}: {error})"
        raise OptionError("layers", path, WRITTEN, problem) from error
    if unknown := sorted(key for key in entries if key.startswith("skip_") and key not in KEYS):
        raise OptionError("layers", path, "skip_attention, skip_mlp", f"which holds {unknown[0]}")
    if (depth, fingerprint) != (num_layers, target.fingerprint):
        raise OtherTargetError(
            "layers",
            path,
            "a file that `search_layers` wrote for this one, or null with exit_after, or with skip_attention and "
            "skip_mlp",
            f"found for a target of {depth} layers with fingerprint {fingerprint}, and this one has {num_layers} and "
            f"{target.fingerprint}",
            made_by="search_layers",
        )
    try:
        return LayerSet(num_layers, attention, mlp)
    except ValueError as error:
        raise OptionError("layers", path, WRITTEN, f"which cannot be used: {error}") from error
