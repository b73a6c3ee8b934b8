"""A tiny target, drafter and prompts, as overrides of any command."""

import json
from pathlib import Path

from framework.conformance.tiny_models import save_tiny


def tiny_pair(folder: Path, *texts: str, family: str = "llama") -> list[str]:
    """Save a tiny target, a matching FOLDER/drafter and prompts; return overrides that use target and prompts."""
    save_tiny(folder / "target", family, seed=1)
    save_tiny(folder / "drafter", family, seed=2)
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return [
        "target=pretrained", f"target.path={folder / 'target'}", "target.dtype=float32", "device=cpu",
        "prompts=jsonl", f"prompts.source.path={folder / 'prompts.jsonl'}",
    ]  # fmt: skip
