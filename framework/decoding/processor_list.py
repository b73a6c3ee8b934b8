"""Logits processors that transformers' `generate` has built, as sampling settings and options of ours."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import generation

from framework.core.logits_processors import PROCESSORS
from framework.core.option_error import OptionError
from framework.core.sampling import Sampling

SAMPLING = ("temperature", "top_k", "top_p", "min_p")
NORMALISED = "renormalize_logits"  # without effect after all others
ORDER = (*PROCESSORS, *SAMPLING, NORMALISED)


@dataclass(frozen=True)
class Lengths:
    """Arguments that `generate` gives to its processors beside their options.

    Attributes:
        inputs: [B, S] int64: prompts with their padding; the sources of an encoder-decoder model.
        prompt: length of all prompts, their padding included.
        most: largest length of a text, its padding included.
        eos_ids: end-of-text tokens.
    """

    inputs: Tensor
    prompt: int
    most: int
    eos_ids: frozenset[int]


@dataclass(frozen=True)
class _Kind:
    """Option of a class of processors, the option's value in a processor, and whether `generate` would build it so."""

    option: str
    value: Callable[[Any, Lengths], Any]
    fits: Callable[[Any, Lengths], bool] = lambda processor, lengths: True


def _ends_alike(processor: Any, lengths: Lengths) -> bool:
    return set(processor.eos_token_id.tolist()) == lengths.eos_ids


def _sees_the_source(processor: Any, lengths: Lengths) -> bool:
    alike = generation.EncoderNoRepeatNGramLogitsProcessor(processor.ngram_size, lengths.inputs)
    return processor.generated_ngrams == alike.generated_ngrams


KINDS: dict[type, _Kind] = {
    generation.SequenceBiasLogitsProcessor: _Kind("sequence_bias", lambda its, _: its.sequence_bias),
    generation.EncoderRepetitionPenaltyLogitsProcessor: _Kind(
        "encoder_repetition_penalty",
        lambda its, _: 1 / its.penalty,
        lambda its, lengths: torch.equal(its.encoder_input_ids, lengths.inputs),
    ),
    generation.RepetitionPenaltyLogitsProcessor: _Kind(
        "repetition_penalty",
        lambda its, _: its.penalty,
        lambda its, _: not isinstance(its.prompt_ignore_length, int),  # a tensor holds the lengths of the padding
    ),
    generation.NoRepeatNGramLogitsProcessor: _Kind("no_repeat_ngram_size", lambda its, _: its.ngram_size),
    generation.EncoderNoRepeatNGramLogitsProcessor: _Kind(
        "encoder_no_repeat_ngram_size", lambda its, _: its.ngram_size, _sees_the_source
    ),
    generation.NoBadWordsLogitsProcessor: _Kind("bad_words_ids", lambda its, _: its.bad_word_ids),
    generation.MinLengthLogitsProcessor: _Kind("min_length", lambda its, _: its.min_length, _ends_alike),
    generation.MinNewTokensLengthLogitsProcessor: _Kind(
        "min_new_tokens",
        lambda its, _: its.min_new_tokens,
        lambda its, lengths: its.prompt_length_to_skip == lengths.prompt and _ends_alike(its, lengths),
    ),
    generation.ForcedBOSTokenLogitsProcessor: _Kind("forced_bos_token_id", lambda its, _: its.bos_token_id),
    generation.ForcedEOSTokenLogitsProcessor: _Kind(
        "forced_eos_token_id",
        lambda its, _: its.eos_token_id.tolist(),
        lambda its, lengths: its.max_length == lengths.most,
    ),
    generation.InfNanRemoveLogitsProcessor: _Kind("remove_invalid_values", lambda its, _: True),
    generation.ExponentialDecayLengthPenalty: _Kind(
        "exponential_decay_length_penalty",
        lambda its, lengths: (its.regulation_start - lengths.prompt, its.regulation_factor),
        _ends_alike,
    ),
    generation.SuppressTokensLogitsProcessor: _Kind("suppress_tokens", lambda its, _: its.suppress_tokens.tolist()),
    generation.SuppressTokensAtBeginLogitsProcessor: _Kind(
        "begin_suppress_tokens",
        lambda its, _: its.begin_suppress_tokens.tolist(),
        lambda its, lengths: its.begin_index == lengths.prompt or lengths.prompt == 1,
    ),
    generation.TemperatureLogitsWarper: _Kind("temperature", lambda its, _: its.temperature),
    generation.TopKLogitsWarper: _Kind(
        "top_k", lambda its, _: its.top_k, lambda its, _: its.filter_value == -torch.inf
    ),
    generation.TopPLogitsWarper: _Kind(
        "top_p",
        lambda its, _: its.top_p,
        lambda its, _: its.filter_value == -torch.inf and its.min_tokens_to_keep == 1,
    ),
    generation.MinPLogitsWarper: _Kind(
        "min_p",
        lambda its, _: its.min_p,
        lambda its, _: its.filter_value == -torch.inf and its.min_tokens_to_keep == 1,
    ),
    generation.LogitNormalization: _Kind(NORMALISED, lambda its, _: True),
}
"""Served processors, by their exact class: a class derived from one of them may do anything."""


def options_of(processors: Iterable[Any], lengths: Lengths, *, do_sample: bool) -> tuple[Sampling, dict[str, Any]]:
    """Sampling settings of a list of processors, and options for `LogitsProcessors`.

    Args:
        processors: as `generate` built and merged them, in the order of application.
        lengths: the other arguments that `generate` built them with.
        do_sample: whether tokens are drawn; otherwise the most likely one is taken.

    Raises:
        ValueError: a processor is not served, was built with other arguments, occurs twice, or has another place than
            in `generate`; the message names its class.
    """
    options: dict[str, Any] = {}
    for processor in processors:
        name = type(processor).__name__
        kind = KINDS.get(type(processor))
        if kind is None:
            raise OptionError("logits_processor", name, ", ".join(each.__name__ for each in KINDS))
        if not kind.fits(processor, lengths):
            problem = "made with other arguments than those of this call"
            raise OptionError("logits_processor", name, f"the option {kind.option} in its place", problem)
        if kind.option in options:
            raise OptionError("logits_processor", name, "each class once", "which occurs twice")
        options[kind.option] = kind.value(processor, lengths)
    usual = [name for name in ORDER if name in options]
    if list(options) != usual:
        first = next(name for name, place in zip(options, usual, strict=True) if name != place)
        problem = f"where {first} has another place than in transformers"
        raise OptionError("logits_processor", list(options), f"the order {', '.join(usual)}", problem)
    if options.get("min_length") == lengths.prompt + options.get("min_new_tokens", 0):
        options.pop("min_length", None)  # `generate` derived it, and counts padding
    settings = {name: options.pop(name) for name in SAMPLING if name in options}
    options.pop(NORMALISED, None)
    return Sampling(**settings) if do_sample else Sampling(temperature=0), options
