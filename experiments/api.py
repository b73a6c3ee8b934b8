"""Python API for notebooks and scripts: load a pair with command-line overrides, decode, measure and compare."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

from omegaconf import DictConfig, OmegaConf
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from experiments.config.builders import (
    build_candidate,
    build_drafter,
    build_engine,
    build_sampling,
    build_stopping,
    cached_target,
    check_basics,
    check_before_loading,
    check_parts,
    compile_is_true,
    prepare,
)
from experiments.config.cli_errors import value_errors
from experiments.config.loaded_models import LoadedModels
from experiments.config.resolvers import register_resolvers
from experiments.config.setting import Setting, settings_of_drafters
from experiments.hugging_face.outrider_generate import outrider_generate as outrider_generate
from experiments.measurement.bench import measure
from experiments.measurement.resource_cache import ResourceCache
from experiments.reporting.comparison import Comparison
from experiments.reporting.completion import Completion
from experiments.reporting.text_decoder import TextDecoder
from experiments.tracking.tracker import NoTracker
from framework.core.option_error import options_under
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.models.target import Target
from framework.prompts.chat import is_chat

NOWHERE = Path()  # points have no folder until `Comparison.save`


def load_pair(
    *overrides: str,
    target: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    draft_model: PreTrainedModel | None = None,
) -> "Pair":
    """Load the pair that `python -m experiments.measure OVERRIDES` uses.

    Args:
        overrides: Hydra overrides as on the command line: load_pair("drafter=medusa", "sampling.temperature=0").
        target: a loaded Hugging Face model, used in place; None: the one that the overrides name.
        tokenizer: the target's tokenizer; given if and only if `target` is.
        draft_model: a loaded small model, for a drafter such as small_transformer; None: the one that the overrides
            name.

    Raises:
        ValueError: an option is wrong, or a model does not exist; the message names the yaml key.
    """
    register_resolvers()
    with value_errors():
        setting = Setting.checked(overrides, LoadedModels(target, tokenizer, draft_model))
        resources = ResourceCache()
        with setting.composed() as cfg:
            return Pair(build_decoder(cfg, setting.models, resources), setting, resources)


def compare_drafters(
    drafters: Mapping[str, str | Sequence[str]],
    *overrides: str,
    prompts: Sequence[str] | None = None,
    repeats: int | None = None,
    target: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    draft_model: PreTrainedModel | None = None,
) -> Comparison:
    """Measure several drafters in one run, interleaved, as `python -m experiments.compare` does.

    Args:
        drafters: overrides of drafter, verifier and gamma, by a name for the table: {"lookup": "drafter=prompt_lookup",
            "long": ["drafter=ngram", "gamma=8"]}.
        overrides: overrides shared by all, such as "sampling.temperature=0".
        prompts: texts; None: those that the overrides name (prompts=).
        repeats: timed runs per prompt; None: as the overrides say.
        target: as for `load_pair`.
        tokenizer: as for `load_pair`.
        draft_model: as for `load_pair`, for every drafter that takes one.

    Raises:
        ValueError: an option is wrong; the message names it.
    """
    register_resolvers()
    with value_errors():
        settings = settings_of_drafters(drafters, overrides, LoadedModels(target, tokenizer, draft_model))
        return _measured(settings, ResourceCache(), prompts=prompts, repeats=repeats, study="compare")


class Pair:
    """A target and its drafter with a verifier, a gamma policy and a sampling setting."""

    def __init__(self, decoder: TextDecoder, setting: Setting, resources: ResourceCache):
        """
        Args:
            decoder: decodes texts with the pair.
            setting: the overrides that describe the pair.
            resources: cache with the target and the drafter of the decoder.
        """
        self._decoder, self._setting, self._resources = decoder, setting, resources

    @property
    def engine(self) -> Engine:
        """The decoding engine, with its drafter, verifier and gamma_policy."""
        return self._decoder.engine

    @property
    def target(self) -> Target:
        """The target."""
        return self.engine.target

    @property
    def stopping(self) -> Stopping:
        """Stopping criteria of a text."""
        return self._decoder.stopping

    @overload
    def generate(
        self, prompt: str, *, max_new_tokens: int | None = None, seed: int | None = None, detailed: bool = False
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: list[str] | tuple[str, ...],
        *,
        max_new_tokens: int | None = None,
        seed: int | None = None,
        detailed: bool = False,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: str | list[str] | tuple[str, ...],
        *,
        max_new_tokens: int | None = None,
        seed: int | None = None,
        detailed: bool = False,
    ) -> Completion | list[Completion]:
        """Decode the continuation of a prompt, or of several prompts in one ragged batch.

        Args:
            prompt: a text, or a list of texts; for an encoder-decoder model, sources.
            max_new_tokens: maximum number of new tokens; None: the pair's.
            seed: seed of sampling; None: the pair's. Equal seeds give equal texts. Prompt i of a list has seed + i:
                with a fixed gamma, its completion is that of the prompt alone with this seed.
            detailed: whether to compute the paper's alpha, `alpha/overlap`, too, which costs time.

        Raises:
            ValueError: a prompt cannot be decoded.
            FloatingPointError: a distribution is not finite.
        """
        texts = [prompt] if isinstance(prompt, str) else prompt
        *_, completions = self._decoder.stream(texts, max_new_tokens=max_new_tokens, seed=seed, detailed=detailed)
        return completions[0] if isinstance(prompt, str) else completions

    def stream(
        self, prompt: str, *, max_new_tokens: int | None = None, seed: int | None = None, detailed: bool = False
    ) -> Iterator[Completion]:
        """Decode like `generate`, but yield the growing completion after prefill and after every round.

        The same `Completion` object is yielded each time. Finish or close a stream before starting another generation:
        the target has one KV cache.

        Raises:
            RuntimeError: another generation of this target began in between.
        """
        batches = self._decoder.stream([prompt], max_new_tokens=max_new_tokens, seed=seed, detailed=detailed)
        return (completion for (completion,) in batches)

    def measure(self, prompts: Sequence[str] | None = None, *, repeats: int | None = None) -> Comparison:
        """Measure the pair against plain decoding, as `python -m experiments.measure` does.

        Args:
            prompts: texts; None: those that the pair's overrides name (prompts=).
            repeats: timed runs per prompt; None: the pair's.

        Raises:
            ValueError: a prompt cannot be decoded, or an option is wrong; the message names it.
        """
        with value_errors():
            settings = {self._setting.drafter_name: self._setting}
            return _measured(settings, self._resources, prompts=prompts, repeats=repeats, study="measure")


def _measured(
    settings: Mapping[str, Setting],
    resources: ResourceCache,
    *,
    prompts: Sequence[str] | None,
    repeats: int | None,
    study: str,
) -> Comparison:
    """Measure points that share target, sampling and prompts, by the bench of the commands."""
    for name, setting in settings.items():
        with setting.composed(prompts=prompts, repeats=repeats) as cfg:
            check_before_loading(cfg, {name: cfg.drafter})
    candidates = []
    for name, setting in settings.items():
        with setting.composed(prompts=prompts, repeats=repeats) as cfg:
            sampling = build_sampling(cfg)
            target, plan, drafters = prepare(cfg, {name: cfg.drafter}, resources, setting.models)
            candidate = build_candidate(
                cfg, name, drafters[name], target, sampling, study=study, folder=NOWHERE, compiled=plan.compiled
            )
        candidate.tracker = NoTracker()
        candidates.append(candidate)
    records = measure(candidates, target, sampling, plan, resources)
    for candidate in candidates:
        candidate.raise_error()
    return Comparison(records)


def build_decoder(cfg: DictConfig, models: LoadedModels, resources: ResourceCache) -> TextDecoder:
    """Build the decoder described by a config such as conf/generate.yaml.

    Args:
        models: loaded models, in place of those that the config names.
        resources: cache that keeps target and drafter.

    Raises:
        ValueError, OSError: the message names the yaml key. Checks that need no model run before one is loaded.
    """
    check_basics(cfg, {"max_new_tokens": 1, "seed": 0}, or_null=["target.context"])
    sampling = build_sampling(cfg)
    factory, compiled = check_parts(cfg, {"drafter": cfg.drafter})["drafter"], compile_is_true(cfg)
    target = cached_target(cfg, resources, models)
    drafter = build_drafter("the drafter", factory, cfg.drafter, target, resources, models)
    engine = build_engine(cfg, drafter, target, sampling, compiled=compiled)
    with options_under("prompts"):
        chat = is_chat(target.tokenizer, chat=cfg.prompts.chat, system=cfg.prompts.system)
    options = [OmegaConf.to_container(part, resolve=True) for part in (cfg.drafter, cfg.verifier)]
    return TextDecoder(engine, build_stopping(cfg, target), cfg.seed, chat, cfg.prompts.system, options)
