"""The folder of what was fitted to a target: weights, and the facts that a drafter needs beside them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from framework.target import Target

Part = TypeVar("Part", bound=nn.Module)

Accuracies = list[list[float]]
"""[positions][rank]: how often the token of that rank was the right one on held-out text; rank 0 is the best.

Among the facts of what drafts all positions at once, a tree is built from these.
"""


def save_part(folder: Path, part: nn.Module, *, name: str, target: Target, facts: dict[str, Any]) -> None:
    """Write the weights in bfloat16, whose target they are for, and some facts.

    Args:
        name: of the two files.
        facts: what builds it again, and what its drafter reads; JSON can hold them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # What proposes need not be exact.
    weights = {key: tensor.to(torch.bfloat16).contiguous() for key, tensor in part.state_dict().items()}
    save_file(weights, folder / f"{name}.safetensors")
    facts = {"target_fingerprint": target.fingerprint, **facts}
    (folder / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")


def load_part(
    path: str,
    target: Target,
    *,
    name: str,
    drafter: str,
    known: set[str],
    build: Callable[[dict[str, Any], dict[str, Tensor]], Part],
    key: str = "drafter.path",
    to_be_trained_on: bool = False,
) -> tuple[Part, dict[str, Any]]:
    """Read what `save_part` wrote: the part, and its facts.

    Args:
        name: of the two files.
        drafter: whose yaml is trained with.
        known: the facts there must be.
        build: makes the part from these facts, for these weights.
        key: what path is called in the yaml.
        to_be_trained_on: then it may be of any target that it fits.

    Raises:
        OSError: there is no such part in the folder, or it is damaged.
        ValueError: it was trained for another target.
    """
    folder = Path(path).expanduser()
    weights_file, facts_file = folder / f"{name}.safetensors", folder / f"{name}.json"
    if not facts_file.is_file() or not weights_file.is_file():
        raise FileNotFoundError(
            f"{key} is {path!r}: no {weights_file.name} and {facts_file.name} there; give a folder that "
            f"`python -m experiments.train drafter={drafter}` wrote"
        )
    try:
        facts = _facts(facts_file, known)
        if to_be_trained_on or facts["target_fingerprint"] == target.fingerprint:
            weights = load_file(weights_file)
            part = build(facts, weights)
            part.load_state_dict(weights)
            return part.requires_grad_(to_be_trained_on), facts
    except (SafetensorError, RuntimeError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())  # torch takes a line for every weight
        raise OSError(f"{key} is {path!r}, which cannot be loaded: {reason}") from error
    raise ValueError(
        f"{key} is {path!r}, made for the target with the fingerprint "
        f"{facts['target_fingerprint']}; this one's is {target.fingerprint} (a dtype that rounds its weights makes "
        f"another one of it). Train for it: python -m experiments.train drafter={drafter} target=..."
    )


def _facts(file: Path, known: set[str]) -> dict[str, Any]:
    """
    Raises:
        ValueError: the file does not hold what `save_part` writes.
    """
    facts = json.loads(file.read_text())
    if not isinstance(facts, dict) or not {"target_fingerprint"} | known <= facts.keys():
        raise ValueError(f"{file.name} is not what training wrote")
    positions = facts.get("accuracies", [])
    if not isinstance(positions, list) or not all(isinstance(ranks, list) and ranks for ranks in positions):
        raise ValueError(f"{file.name} has no list of accuracies for every position")
    if wrong := [share for ranks in positions for share in ranks if not isinstance(share, int | float)]:
        raise ValueError(f"{file.name} has {wrong[0]!r} among its accuracies, which are numbers")
    return facts
