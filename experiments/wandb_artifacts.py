"""Trained drafters as W&B artifacts: logged by the run that trained them, used by the runs that measured them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import wandb

from experiments.trainings import PROVENANCE_FILE

# What is part of a drafter. Checkpoints, samples and pictures lie in the same folder and are not.
PARTS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")


def log_trained(run: wandb.Run, folder: Path) -> None:
    """Make the drafter in this folder what the run produced: a new version, if its content is new."""
    artifact = _artifact(folder)
    if artifact is not None:
        run.log_artifact(artifact)


def use_trained(run: wandb.Run, drafter: dict[str, Any]) -> None:
    """Make every trained drafter that this part of a configuration names what the run made use of.

    The same files give the same version: the server finds the one that the training logged by its digest.
    """
    for folder in dict.fromkeys(_folders(drafter)):
        artifact = _artifact(folder)
        if artifact is not None:
            # use_artifact, which ends in this very call, refuses runs that are written offline; `wandb sync` does not.
            run._log_artifact(artifact, is_user_created=True, use_after_commit=True)


def _folders(node: Any) -> Iterator[Path]:
    """Every trained folder that is named anywhere in a part of a configuration."""
    if isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from _folders(value)
    elif isinstance(node, str) and (Path(node) / PROVENANCE_FILE).is_file():
        yield Path(node).resolve()


def _artifact(folder: Path) -> wandb.Artifact | None:
    """One name for all trainings of a kind of drafter for a target; None where the provenance is not a training's."""
    facts = json.loads((folder / PROVENANCE_FILE).read_text(encoding="utf-8"))
    if not {"drafter", "target_fingerprint"} <= set(facts):
        return None
    metadata = {key: facts[key] for key in ("command", "steps", "tokens", "held_out", "text") if key in facts}
    name = f"{facts['drafter']}-{facts['target_fingerprint']}".replace("/", "-")
    artifact = wandb.Artifact(name, type="drafter", metadata=metadata)
    for file in sorted(file for pattern in PARTS for file in folder.glob(pattern)):
        # Read where it lies when the run is sent: nothing is copied, and `wandb sync` may be called from anywhere.
        artifact.add_file(str(file), policy="immutable")
    return artifact
