"""Overrides of `train` for a tiny target and two short texts."""

from pathlib import Path

from framework.conformance.tiny_models import save_tiny

SMALL = ["training.steps=6", "training.batch=2", "training.window=24", "training.warmup=2",
         "training.checkpoint_every=2", "training.evaluate_every=3", "held_out_windows=8", "threads=1",
         "samples.new_tokens=40", "decoding_prompts=1"]  # fmt: skip


def tiny_text(folder: Path) -> list[str]:
    """Write a target and a text; return the overrides that choose them."""
    save_tiny(folder / "target", seed=1)
    target = ["target=pretrained", f"target.path={folder / 'target'}", "target.dtype=float32", "device=cpu"]
    return [*target, *_source(folder, "prompts", "text")]


def tiny_training(folder: Path) -> list[str]:
    """As `tiny_text`, with a held-out text and few steps."""
    return [*tiny_text(folder), *_source(folder, "prompts@held_out", "held_out"), *SMALL]


def _source(folder: Path, group: str, name: str) -> list[str]:
    lines = [f"{name} ab ca cab {'ba' * (i % 3)} b\n" for i in range(60)]
    (folder / f"{name}.txt").write_text("".join(lines))
    return [f"{group}=plain_text", f"{group.split('@')[-1]}.source.path={folder / name}.txt"]
