"""Checkpoint folder of a part trained for a target: weights, and facts that its drafter needs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from framework.core.option_error import MissingFileError, OtherTargetError, UnreadableError
from framework.models.target import Target

Part = TypeVar("Part", bound=nn.Module)

Accuracies = list[list[float]]
"""`[positions][rank]`: how often the token of that rank was correct on held-out text; rank 0 is the top token.

Parts that draft all positions in parallel store them as a fact, from which their tree is built.
"""


def save_part(folder: Path, part: nn.Module, *, name: str, target: Target, facts: dict[str, Any]) -> None:
    """Write a part's weights in bfloat16, the fingerprint of its target, and further facts.

    Args:
        folder: created if missing.
        part: the trained module.
        name: name of the two files, without suffix.
        target: the target that the part was trained for.
        facts: arguments that rebuild the part, and entries for its drafter; JSON-serialisable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Drafting tolerates the rounding: verification keeps the output exact.
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
    to_be_trained_on: bool = False,
) -> tuple[Part, dict[str, Any]]:
    """Read a part and its facts from a folder of `save_part`.

    Args:
        path: the folder.
        target: the target that the part drafts for.
        name: name of the two files, without suffix.
        drafter: name of the drafter's yaml, for error messages.
        known: required facts.
        build: makes the part from its facts and weights.
        to_be_trained_on: whether training continues; the part may then come from any target that it fits, and its
            parameters require gradients.

    Raises:
        OSError: the folder holds no such part, or a damaged one.
        ValueError: the part was trained for another target.
    """
    folder = Path(path).expanduser()
    weights_file, facts_file = folder / f"{name}.safetensors", folder / f"{name}.json"
    if not facts_file.is_file() or not weights_file.is_file():
        problem = f"without {weights_file.name} and {facts_file.name}"
        raise MissingFileError("path", path, f"a folder that `train drafter={drafter}` wrote", problem)
    try:
        facts = _facts(facts_file, known)
        if to_be_trained_on or facts["target_fingerprint"] == target.fingerprint:
            weights = load_file(weights_file)
            part = build(facts, weights)
            part.load_state_dict(weights)
            part.name_or_path = str(folder)  # type: ignore[assignment]  # as for models of transformers
            return part.requires_grad_(to_be_trained_on), facts
    except (SafetensorError, RuntimeError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())  # torch lists the weights line by line
        problem = f"which cannot be loaded: {reason}"
        raise UnreadableError("path", path, f"a folder that `train drafter={drafter}` wrote", problem) from error
    raise OtherTargetError(
        "path",
        path,
        f"a part trained for this one: `train drafter={drafter} target=...`",
        f"made for the target with the fingerprint {facts['target_fingerprint']}, and this one's is "
        f"{target.fingerprint} (other weights, a dtype that rounds them, or a part trained by an earlier version)",
        made_by=f"train drafter={drafter}",
    )


def _facts(file: Path, known: set[str]) -> dict[str, Any]:
    """Read and check the JSON file of a part.

    Raises:
        ValueError: the file is not one of `save_part`.
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
