"""Resolvers of interpolations in the yamls."""

from omegaconf import OmegaConf

from experiments.config.help_text import EXPERIMENTS, about, parts
from experiments.measurement.ranks import begun

ZOO = EXPERIMENTS / "zoo"


def register_resolvers() -> None:
    """Register `zoo` (embedded models), `begun` (start time shared by ranks), `about` and `parts` (of a help text)."""
    OmegaConf.register_new_resolver("about", about, replace=True)
    OmegaConf.register_new_resolver("begun", begun, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("parts", parts, replace=True)
    OmegaConf.register_new_resolver("zoo", lambda name: str(ZOO / name), replace=True)
