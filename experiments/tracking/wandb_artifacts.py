"""Trained drafters as W&B artifacts: logged by the run that trained them, used by the runs that measured them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import wandb

from experiments.trainer.trainings import PROVENANCE_FILE

# Files of a drafter. Its folder also holds checkpoints, samples and pictures, which are not uploaded.
PARTS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")


def log_trained(run: wandb.Run, folder: Path) -> None:
    """Log the drafter in a folder as an output artifact of the run; new content makes a new version."""
    artifact = _artifact(folder)
    if artifact is not None:
        run.log_artifact(artifact)


def use_trained(run: wandb.Run, drafter: dict[str, Any]) -> None:
    """Declare every trained drafter named in a part of the config as an input artifact of the run.

    Equal files give the same version: the server finds the version logged by the training by its digest.
    """
    for folder in dict.fromkeys(_folders(drafter)):
        artifact = _artifact(folder)
        if artifact is not None:
            # use_artifact ends in this call, but refuses offline runs; `wandb sync` accepts them.
            run._log_artifact(artifact, is_user_created=True, use_after_commit=True)


def _folders(node: Any) -> Iterator[Path]:
    """Folders of trained drafters named anywhere in a part of a config."""
    if isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from _folders(value)
    elif isinstance(node, str) and (Path(node) / PROVENANCE_FILE).is_file():
        yield Path(node).resolve()


def _artifact(folder: Path) -> wandb.Artifact | None:
    """Artifact of a trained drafter; None if the provenance is not that of a training.

    All trainings of one drafter for one target share an artifact name.
    """
    facts = json.loads((folder / PROVENANCE_FILE).read_text(encoding="utf-8"))
    if not {"drafter", "target_fingerprint"} <= set(facts):
        return None
    metadata = {key: facts[key] for key in ("command", "steps", "tokens", "held_out", "text") if key in facts}
    name = f"{facts['drafter']}-{facts['target_fingerprint']}".replace("/", "-")
    artifact = wandb.Artifact(name, type="drafter", metadata=metadata)
    for file in sorted(file for pattern in PARTS for file in folder.glob(pattern)):
        # Immutable: not copied but read from its absolute path on sending, so `wandb sync` works from any folder.
        artifact.add_file(str(file), policy="immutable")
    return artifact
