"""A loaded model as the target of calls of `generate`: probed once, with the engine of the last drafter."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from omegaconf import OmegaConf
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from experiments.config.builders import (
    build_drafter,
    build_engine,
    cached_target,
    check_basics,
    check_parts,
    compile_is_true,
)
from experiments.config.cli_errors import value_errors
from experiments.config.loaded_models import LoadedModels
from experiments.config.resolvers import register_resolvers
from experiments.config.setting import Setting
from experiments.measurement.resource_cache import ResourceCache
from framework.core.drafter import Drafter
from framework.core.logits_processors import LogitsProcessors
from framework.core.option_error import OptionError
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.models.attention import attention_of
from framework.models.pretrained import load_tokenizer

ATTRIBUTE = "_outrider"  # of a model; what it holds goes with the model
OWN = re.compile(r"[+~]*(drafter|verifier|gamma|engine|target\.(attention|context|prefill_chunk|compile_prefill))\b.*")
OF_DRAFTER = re.compile(r"[+~]*drafter\b.*")
ANY_DRAFTER = "drafter=prompt_lookup"  # completes a config whose drafter is an object


class ServedModel:
    """The target made of a loaded model, and the engine of its last drafter and settings.

    Attributes:
        options: options of drafter and verifier, which identify a stored profile of rounds.
    """

    def __init__(self, model: PreTrainedModel):
        self._model = model
        self._targets = ResourceCache()
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._drafter: object = None
        self._made_of: tuple[Any, ...] = ()
        self._engine: Engine | None = None
        self._attention: list[tuple[PreTrainedModel, str]] = []
        self.options: Any = None

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self:
        """The one of this model, kept with it from its first call on."""
        if not isinstance(served := vars(model).get(ATTRIBUTE), cls) or served._model is not model:
            vars(model)[ATTRIBUTE] = served = cls(model)
        return served

    def __reduce__(self) -> tuple[type[object], tuple[()]]:
        """A copied or saved model is served anew."""
        return object, ()

    def engine(
        self,
        drafter: str | PreTrainedModel | Drafter | Callable[..., Drafter],
        overrides: Sequence[str],
        tokenizer: PreTrainedTokenizerBase | None,
        sampling: Sampling,
        options: dict[str, Any],
    ) -> Engine:
        """Engine of a call; model and draft model then have the attention implementation that it was made with.

        Args:
            drafter: as for `outrider_generate`.
            overrides: as for `outrider_generate`.
            tokenizer: the model's tokenizer; None: the one in its folder or repository.
            sampling: sampling settings.
            options: options of the logits processors.

        Raises:
            ValueError: the model cannot be served exactly, or drafter or overrides are wrong.
        """
        made_of = (tuple(overrides), tokenizer, self._model.device, self._model.dtype)
        same_drafter = drafter is self._drafter or (isinstance(drafter, str) and drafter == self._drafter)
        if self._engine is None or not same_drafter or made_of != self._made_of:
            self._engine = None
            self._engine = self._build(drafter, overrides, tokenizer)
            used = [self._model, *([drafter] if isinstance(drafter, PreTrainedModel) else [])]
            self._drafter, self._made_of = drafter, made_of
            self._attention = [(model, attention_of(model)) for model in used]
        for model, attention in self._attention:
            model.eval()
            _set_attention(model, attention)
        engine = self._engine
        if (sampling, options) != (engine.sampling, engine.target.processors.options):
            self._engine = engine = _with_settings(engine, sampling, options)
        return engine

    def _build(
        self,
        drafter: str | PreTrainedModel | Drafter | Callable[..., Drafter],
        overrides: Sequence[str],
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> Engine:
        register_resolvers()
        models = LoadedModels(
            self._model, self._tokenizer_from(tokenizer), drafter if isinstance(drafter, PreTrainedModel) else None
        )
        make = _maker(drafter)
        with value_errors():
            chosen = _checked(drafter, overrides)
            with Setting.checked(["target.generation=ignore", *chosen], models).composed() as cfg:
                check_basics(cfg, {}, or_null=["target.context"])
                factories = check_parts(cfg, {} if make else {"drafter": cfg.drafter})
                compiled = compile_is_true(cfg)
                target = cached_target(cfg, self._targets, models)
                if make is None:
                    its = build_drafter(
                        "the drafter", factories["drafter"], cfg.drafter, target, ResourceCache(), models
                    )
                else:
                    its = make(target=target)
                named = type(its).__qualname__ if make else OmegaConf.to_container(cfg.drafter, resolve=True)
                self.options = [named, OmegaConf.to_container(cfg.verifier, resolve=True)]
                return build_engine(cfg, its, target, Sampling(), compiled=compiled)

    def _tokenizer_from(self, given: PreTrainedTokenizerBase | None) -> PreTrainedTokenizerBase:
        """The tokenizer given, or that of the model's folder; a target made with another one is forgotten."""
        if given is None and not self._model.name_or_path:
            raise OptionError("target_tokenizer", None, "a loaded tokenizer", "and the model was built in memory")
        if given is None and (self._tokenizer is None or self._tokenizer.name_or_path != self._model.name_or_path):
            given = load_tokenizer(self._model.name_or_path, option="target_tokenizer")
        if given is not None and given is not self._tokenizer:
            self._targets.forget()
            self._tokenizer = given
        assert self._tokenizer is not None
        return self._tokenizer


@contextmanager
def as_found(*models: object) -> Iterator[None]:
    """Restore attention implementation and mode of the models among these objects after the block."""
    found = [model for model in models if isinstance(model, PreTrainedModel)]
    attention = [attention_of(model) for model in found]
    training = [module for model in found for module in model.modules() if module.training]
    try:
        yield
    finally:
        for model, name in zip(found, attention, strict=True):
            _set_attention(model, name)
        for module in training:
            module.training = True


def _set_attention(model: PreTrainedModel, name: str) -> None:
    if attention_of(model) != name:
        model.set_attn_implementation(name)


def _maker(drafter: Any) -> Callable[..., Drafter] | None:
    """Function that makes a drafter given as an object, a class or a function; None: a config describes it.

    Raises:
        ValueError: it is nothing of these.
    """
    if isinstance(drafter, str | PreTrainedModel):
        return None
    if hasattr(drafter, "propose") and not isinstance(drafter, type):
        return lambda target: drafter
    if not callable(drafter):
        allowed = "a name of conf/drafter, a loaded small model, a drafter, or a function that makes one from a target"
        raise OptionError("drafter", drafter, allowed)
    return drafter


def _checked(drafter: object, overrides: Sequence[str]) -> list[str]:
    """Overrides that describe the drafter, with those given.

    Raises:
        ValueError: an override is no text, sets an argument of `generate`, or is for another drafter.
    """
    if wrong := next((each for each in overrides if not isinstance(each, str) or not OWN.fullmatch(each)), None):
        allowed = (
            "options of drafter, verifier, gamma and engine, and target.attention, .context, .prefill_chunk and "
            ".compile_prefill"
        )
        raise OptionError(
            "overrides", list(overrides), f"{allowed}; others are arguments of generate", f"with {wrong!r}"
        )
    of_drafter = [each for each in overrides if OF_DRAFTER.fullmatch(each)]
    if isinstance(drafter, str):
        return [f"drafter={drafter}", *overrides]
    if isinstance(drafter, PreTrainedModel):
        chosen = any(each.startswith("drafter=") for each in overrides)
        return [*overrides] if chosen else ["drafter=small_transformer", *overrides]
    if of_drafter:
        raise OptionError("overrides", list(overrides), "none of the drafter, which is given as an object")
    return [ANY_DRAFTER, *overrides]


def _with_settings(engine: Engine, sampling: Sampling, options: dict[str, Any]) -> Engine:
    """The same parts with other sampling settings and logits processors."""
    target = engine.target
    processors = LogitsProcessors(options, vocabulary_size=target.vocabulary_size, device=target.device)
    return Engine(
        target=replace(target, processors=processors),
        drafter=engine.drafter,
        verifier=engine.verifier,
        gamma_policy=engine.gamma_policy,
        sampling=sampling,
        compiled=engine.compiled,
    )
