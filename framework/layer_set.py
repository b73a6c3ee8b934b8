"""LayerSet: which sub-layers of a decoder are skipped, attention and MLP separately; and the file that holds one."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.target import Target
from framework.whole_numbers import check_whole

KEYS = ("num_layers", "target_fingerprint", "skip_attention", "skip_mlp")


@dataclass(frozen=True)
class LayerSet:
    """Sub-layers to pass over, out of the 2 * num_layers of a decoder.

    Attributes:
        num_layers: how deep the decoder is.
        skip_attention: blocks without their attention, ascending, from 0.
        skip_mlp: blocks without their MLP.

    Raises:
        ValueError: an index outside the decoder or named twice, or nothing left; the message names the yaml key.
    """

    num_layers: int
    skip_attention: tuple[int, ...]
    skip_mlp: tuple[int, ...]

    def __post_init__(self) -> None:
        for knob, skipped in (("skip_attention", self.skip_attention), ("skip_mlp", self.skip_mlp)):
            whole = all(isinstance(index, int) and not isinstance(index, bool) for index in skipped)
            if not whole or not all(0 <= index < self.num_layers for index in skipped):
                raise ValueError(
                    f"drafter.{knob} is {list(skipped)}; allowed: a list of whole numbers from 0 to "
                    f"{self.num_layers - 1}, the target's layers"
                )
            if len(set(skipped)) < len(skipped):
                raise ValueError(f"drafter.{knob} is {list(skipped)}, which names a layer twice; name it once")
            object.__setattr__(self, knob, tuple(sorted(skipped)))
        if self.num_skipped == 2 * self.num_layers:
            raise ValueError(
                f"drafter.skip_attention and drafter.skip_mlp skip all of the target's {self.num_layers} layers; "
                "leave at least one sub-layer"
            )

    @property
    def num_skipped(self) -> int:
        return len(self.skip_attention) + len(self.skip_mlp)

    @property
    def bits(self) -> tuple[int, ...]:
        """Which sub-layers are skipped, 2 * num_layers of 0 or 1: the attentions, then the MLPs."""
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
        """Early exit: the first `kept` layers, and none of the later ones.

        Raises:
            ValueError: kept is not a whole number from 1 to num_layers.
        """
        check_whole("drafter.exit_after", kept, least=1, most=num_layers)
        later = tuple(range(kept, num_layers))
        return cls(num_layers, later, later)

    @classmethod
    def uniform(cls, num_layers: int, *, attention: int, mlp: int) -> "LayerSet":
        """So many attentions and MLPs skipped at even distances over the depth: what a search has to beat."""
        return cls(num_layers, evenly(attention, num_layers), evenly(mlp, num_layers))


def evenly(count: int, num_layers: int) -> tuple[int, ...]:
    """So many layers at even distances: the middles of `count` equal parts of the depth."""
    return tuple((2 * part + 1) * num_layers // (2 * count) for part in range(count))


def save_layer_set(path: Path, layer_set: LayerSet, *, fingerprint: str, facts: dict[str, Any]) -> None:
    """Write a set for one target; facts say how it was found. The file is YAML whose body is JSON."""
    values = (layer_set.num_layers, fingerprint, list(layer_set.skip_attention), list(layer_set.skip_mlp))
    entries = dict(zip(KEYS, values, strict=True)) | facts
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]
    header = "# Sub-layers that layer_skip passes over, found by experiments.search_layers.\n"
    command = "# python -m experiments.measure drafter=layer_skip drafter.layers=THIS_FILE\n\n"
    path.write_text(header + command + "{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def load_layer_set(path: str, target: Target, num_layers: int) -> LayerSet:
    """Read what `save_layer_set` wrote for this very target.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it holds something else, or a set for another target; the message names drafter.layers.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        found = "a folder" if file.is_dir() else "no such file"
        raise FileNotFoundError(
            f"drafter.layers is {path!r}: {found}; give a file layers.yaml that experiments.search_layers wrote"
        )
    try:
        body = "\n".join(line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
        entries = json.loads(body)
        depth, fingerprint, attention, mlp = (entries[key] for key in KEYS)
        attention, mlp = tuple(attention), tuple(mlp)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"drafter.layers is {path!r}, which experiments.search_layers did not write "
            f"({type(error).__name__}: {error})"
        ) from error
    if unknown := sorted(key for key in entries if key.startswith("skip_") and key not in KEYS):
        raise ValueError(f"drafter.layers is {path!r}, which holds {unknown[0]}; known: skip_attention, skip_mlp")
    if (depth, fingerprint) != (num_layers, target.fingerprint):
        raise ValueError(
            f"drafter.layers is {path!r}, found for a target of {depth} layers with fingerprint {fingerprint}; this "
            f"one has {num_layers} and {target.fingerprint}. Search with python -m experiments.search_layers, or set "
            "drafter.layers=null and drafter.exit_after, or drafter.skip_attention and drafter.skip_mlp"
        )
    try:
        return LayerSet(num_layers, attention, mlp)
    except ValueError as error:
        raise ValueError(f"drafter.layers is {path!r}, which cannot be used: {error}") from error
