"""The function `generate` of this folder, found by transformers under this name."""

from experiments.hugging_face.outrider_generate import generate

__all__ = ["generate"]
