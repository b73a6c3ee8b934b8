"""Hugging Face models that a program has loaded, in place of the paths of a config."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from experiments.config.parsed_overrides import quoted_path
from framework.core.drafter import Drafter
from framework.core.option_error import OptionError, options_under
from framework.models.cached_lm import CachedLM
from framework.models.pretrained import as_draft_model, as_target, load_draft_model
from framework.models.target import Target

DRAFT_LOADER = f"{load_draft_model.__module__}.{load_draft_model.__name__}"
LOADED = f"{__name__}.described_draft_model"
# Options that a loaded target determines.
OF_TARGET = re.compile(
    r"[+~]*(target|target\.(path|tokenizer|dtype|weights|device|device_map|tf32|tensor_parallel)|device)(=.*)?"
)
OF_DRAFT_MODEL = re.compile(r"[+~]*drafter\.model(\.(path|dtype))?(=.*)?")


@dataclass(frozen=True)
class LoadedModels:
    """Loaded models and tokenizer; None: the config names them.

    Attributes:
        target: the target, used in place: in evaluation mode, and with the attention of `target.attention`.
        tokenizer: the target's tokenizer.
        draft_model: small model of the drafter, with the target's tokenizer.
    """

    target: PreTrainedModel | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    draft_model: PreTrainedModel | None = None

    def check(self, overrides: Sequence[str]) -> None:
        """
        Raises:
            ValueError: an object is of the wrong kind or lacks its counterpart, or an override names another model.
        """
        by_name = 'a loaded Hugging Face model; for a folder or a hub name, "target=pretrained", "target.path=..."'
        for option, value, allowed in (
            ("target", self.target, by_name),
            ("draft_model", self.draft_model, 'a loaded Hugging Face model; for a path, "drafter.model.path=..."'),
        ):
            if value is not None and not isinstance(value, PreTrainedModel):
                raise OptionError(option, value, allowed)
        if self.tokenizer is not None and not isinstance(self.tokenizer, PreTrainedTokenizerBase):
            raise OptionError("tokenizer", self.tokenizer, "a loaded Hugging Face tokenizer")
        if (self.target is None) != (self.tokenizer is None):
            given, missing = ("target", "tokenizer") if self.tokenizer is None else ("tokenizer", "target")
            raise ValueError(f"{given} is given without {missing}; allowed: both, or neither")
        for option, value, other in (
            ("target", self.target, OF_TARGET),
            ("draft_model", self.draft_model, OF_DRAFT_MODEL),
        ):
            if value is not None and (clash := next(filter(other.fullmatch, overrides), None)):
                raise ValueError(f"{option} is a loaded model, and {clash} is given as well; allowed: one of them")

    def overrides_for(self, drafter: DictConfig) -> list[str]:
        """Overrides that describe the models in a config, for its checks and for records.

        Raises:
            ValueError: a draft model is given, and the drafter takes none.
        """
        overrides = []
        if self.target is not None:
            overrides += ["target=pretrained", *_described("target", self.target), f"device={self.target.device}"]
        if self.draft_model is not None:
            if not takes_draft_model(drafter):
                raise ValueError(
                    f"draft_model is given, and {drafter.get('_target_')} takes none; allowed: a drafter with the "
                    "option drafter.model, such as drafter=small_transformer"
                )
            path, dtype = _described("drafter.model", self.draft_model)
            overrides += [path, f"drafter.model._target_={LOADED}"]
            if self.target is None or self.target.dtype != self.draft_model.dtype:
                overrides.append(dtype)
        return overrides

    def target_of(self, node: DictConfig) -> Target:
        """The loaded target, with the options of a node such as conf/target/pretrained.yaml.

        Raises:
            ValueError: the model cannot be served exactly; the message names the option.
        """
        generation: Any = OmegaConf.to_container(node, resolve=True)["generation"]  # type: ignore[index, call-overload]
        with options_under("target"):
            return as_target(
                self.target,
                self.tokenizer,
                attention=node.attention,
                context=node.context,
                generation=generation,
                prefill_chunk=node.prefill_chunk,
                compile_prefill=node.compile_prefill,
            )

    def with_draft_model(self, factory: Callable[..., Drafter], node: DictConfig) -> Callable[..., Drafter]:
        """A drafter's factory, with the loaded draft model in place of the one that its node names."""
        if self.draft_model is None:
            return factory
        return partial(factory, model=partial(self._draft_model_for, attention=node.model.attention))

    def _draft_model_for(self, target: Target, *, attention: str) -> CachedLM:
        assert self.draft_model is not None
        if self.draft_model.device != target.device:
            raise ValueError(
                f"draft_model is on {self.draft_model.device}; allowed: {target.device}, the target's device"
            )
        return as_draft_model(self.draft_model, target, attention=attention)


NO_MODELS = LoadedModels()


def described_draft_model(*, path: str, dtype: str, attention: str) -> str:
    """Stand in for `load_draft_model` in the config of a loaded model; no file is read."""
    return path


def takes_draft_model(drafter: DictConfig) -> bool:
    """Whether a drafter has a small model with the target's tokenizer."""
    node = drafter.get("model")
    return OmegaConf.is_dict(node) and node.get("_target_") == DRAFT_LOADER


def _described(option: str, model: PreTrainedModel) -> list[str]:
    """Overrides of path and dtype; a model without a path is described by its class."""
    path = model.name_or_path or type(model).__name__
    return [f"{option}.path={quoted_path(path)}", f"{option}.dtype={str(model.dtype).removeprefix('torch.')}"]
