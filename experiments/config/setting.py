"""Checked overrides of conf/measure.yaml for use from Python, with loaded models in place of paths."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict

from experiments.config.loaded_models import LoadedModels
from experiments.config.override_checks import check_overrides, hydra_apart
from framework.core.option_error import OptionError

COMMAND = "measure"
PROMPTS = re.compile(r"[+~]*prompts\b")
OF_DRAFTER = re.compile(r"[+~]*(drafter|verifier|gamma)\b")
NAME = re.compile(r"\w[\w .+-]*")  # also the name of a folder


@dataclass(frozen=True)
class Setting:
    """One point of `python -m experiments.measure`.

    Attributes:
        overrides: checked overrides, with shorthands written out.
        models: loaded models; they replace the paths in the config.
    """

    overrides: tuple[str, ...]
    models: LoadedModels

    @classmethod
    def checked(cls, overrides: Sequence[str], models: LoadedModels) -> Self:
        """
        Raises:
            ValueError: an override is misspelt, unknown or not for Python, or it contradicts the loaded models.
        """
        for override in overrides:
            if not isinstance(override, str):
                raise ValueError(f'{override!r} is no override; allowed: texts such as "drafter=medusa"')
            if override.lstrip("+~").startswith("tracker"):
                raise ValueError(f"{override} is for commands; records of Python stay in memory until they are saved")
        models.check(overrides)
        with _composed(check_overrides(COMMAND, overrides)) as cfg:
            described = models.overrides_for(cfg.drafter)
        return cls(tuple(check_overrides(COMMAND, [*described, *overrides])), models)

    @contextmanager
    def composed(self, *, prompts: Sequence[str] | None = None, repeats: int | None = None) -> Iterator[DictConfig]:
        """The config; in the block, Hydra's own config holds its choices and overrides, as in a command.

        Args:
            prompts: texts in place of the config's prompts; None: the config's.
            repeats: timed runs per prompt; None: the config's.

        Raises:
            ValueError: prompts are no list of texts.
        """
        overrides = self.overrides
        if prompts is not None:
            overrides = (*(each for each in overrides if not PROMPTS.match(each)), "prompts=texts")
        with _composed(overrides) as cfg:
            if prompts is not None:
                with _composed(self.overrides) as given:
                    kept = {key: given.prompts[key] for key in ("chat", "system", "overflow")}
                cfg.prompts.update(kept)
                cfg.prompts.source.texts = _as_values(prompts)
            if repeats is not None:
                cfg.repeats = repeats
            yield cfg

    @property
    def drafter_name(self) -> str:
        """The choice of the group `drafter`."""
        with self.composed():
            return HydraConfig.get().runtime.choices["drafter"]


def settings_of_drafters(
    drafters: Mapping[str, str | Sequence[str]], overrides: Sequence[str], models: LoadedModels
) -> dict[str, Setting]:
    """Settings that differ in drafter, verifier and gamma only.

    Args:
        drafters: a name for each drafter, with its own overrides.
        overrides: overrides shared by all.
        models: loaded models, shared by all.

    Raises:
        ValueError: a name or an override is wrong, or is not a drafter's own.
    """
    if not isinstance(drafters, Mapping) or not drafters:
        raise OptionError("drafters", drafters, 'a dict such as {"lookup": "drafter=prompt_lookup"}')
    for name, own in drafters.items():
        if not isinstance(own, str | list | tuple):
            raise OptionError(f"drafters[{name!r}]", own, 'an override such as "drafter=ngram", or a list of them')
    all_own = {name: [own] if isinstance(own, str) else list(own) for name, own in drafters.items()}
    for name, own in all_own.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise OptionError("drafters", name, "names of letters, digits, spaces and _ . + -", "as a name")
        if shared := next((each for each in own if not OF_DRAFTER.match(str(each))), None):
            raise ValueError(
                f"drafters[{name!r}] has {shared!r}; allowed: overrides of drafter, verifier and gamma. Others are "
                "shared: compare_drafters(drafters, OVERRIDE)"
            )
    models.check([*overrides, *(each for own in all_own.values() for each in own)])
    return {name: Setting.checked([*overrides, *own], models) for name, own in all_own.items()}


@contextmanager
def _composed(overrides: Sequence[str]) -> Iterator[DictConfig]:
    with hydra_apart(COMMAND):
        cfg = compose(COMMAND, ["tracker=jsonl", *overrides], return_hydra_config=True)
    hydra = HydraConfig.instance()
    theirs = hydra.cfg
    hydra.set_config(cfg)
    with open_dict(cfg):
        del cfg.hydra
    try:
        yield cfg
    finally:
        hydra.cfg = theirs


def _as_values(texts: Sequence[str]) -> list[str | list[str]]:
    """Texts as config values; one that resembles an interpolation or a missing value is cut in pieces.

    Raises:
        ValueError: they are no list of texts.
    """
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise OptionError("prompts", texts, "a list of texts")
    pieces = [re.split(r"(?<=\$)(?=\{)|(?<=^\?)(?=\?\?$)", text) for text in texts]
    return [each[0] if len(each) == 1 else each for each in pieces]
