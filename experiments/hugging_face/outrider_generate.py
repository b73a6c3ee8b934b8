"""Functions for custom_generate, the argument of `generate` in transformers."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.utils import ModelOutput

from experiments.config.builders import MOST
from experiments.hugging_face.served_model import ServedModel, as_found
from experiments.measurement.plan import Batch
from experiments.measurement.round_timing import provide_profile
from framework.core.drafter import Drafter
from framework.core.option_error import OptionError
from framework.core.sequences import Conditioned
from framework.core.validation import check_whole
from framework.decoding.hugging_face import Call
from framework.models.model_support import longest_context

FOLDER = Path(__file__).parent  # `custom_generate/generate.py` in it holds `generate`
# Arguments of `generate` that a function for custom_generate does not receive.
NOT_PASSED_ON = ("streamer", "assistant_model", "assistant_tokenizer", "synced_gpus")


def outrider_generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    inputs_tensor: Tensor | None = None,
    *,
    drafter: str | PreTrainedModel | Drafter | Callable[..., Drafter],
    overrides: Iterable[str] = (),
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    seed: int | None = None,
    **model_kwargs: Any,
) -> Tensor | ModelOutput:
    """Decode by the engine: `model.generate(**inputs, custom_generate=outrider_generate, drafter="prompt_lookup")`.

    Arguments of `generate` keep their meaning; those that the engine does not serve raise an error. transformers itself
    keeps `tokenizer`, `streamer` and `assistant_model` from this function; `generate` of this module refuses them.

    Args:
        model: the target, used in place; afterwards its attention implementation and mode are as before.
        input_ids: [B, P] int64: prompts with padding on the left, repeated by num_return_sequences.
        logits_processor: processors that `generate` built from its arguments.
        stopping_criteria: criteria that `generate` built from its arguments.
        generation_config: arguments of the call, the model's own where the call gives none.
        inputs_tensor: [B / num_return_sequences, S] int64: input_ids before, or sources of an encoder-decoder model.
        drafter: a name of `conf/drafter`; a loaded small model with the target's tokenizer; a drafter; or a class or
            function that makes one from `target`.
        overrides: options of drafter, verifier and gamma as on the command line: ["gamma=6", "drafter.path=..."].
        target_tokenizer: the model's tokenizer; None: the one in the folder or repository of the model.
        seed: row i is drawn with seed + i; None: a number drawn by torch's generator, as torch.manual_seed sets it.
        model_kwargs: arguments that `generate` prepared for the model's passes.

    Returns:
        [B, T] int64: the prompts and their new tokens; with return_dict_in_generate, transformers' output for greedy
        search and sampling, with the counts of the rounds as `tally`.

    Raises:
        ValueError: an argument is not served, the model cannot be served exactly, or the drafter does not fit it; the
            message names the argument or the override.
    """
    check_whole("seed", seed, least=0, most=MOST, or_null=True)
    if isinstance(overrides, str):
        raise OptionError("overrides", overrides, f"a list of strings, such as [{overrides!r}]")
    call = Call.of(
        input_ids,
        input_ids if inputs_tensor is None else inputs_tensor,
        logits_processor,
        stopping_criteria,
        generation_config,
        model_kwargs,
        has_encoder=model.config.is_encoder_decoder,
    )
    call.check_room(longest_context(model.config.get_text_config()))
    with as_found(model, drafter):
        served = ServedModel.of(model)
        engine = served.engine(drafter, tuple(overrides), target_tokenizer, call.sampling, call.options)
        first = int(torch.randint(2**48, ())) if seed is None and not call.sampling.greedy else seed or 0
        seeds = [first + row for row in range(len(input_ids))]
        prompts = [prompt.source if isinstance(prompt, Conditioned) else prompt for prompt in call.prompts]
        batch = Batch(number=0, rows=list(range(len(seeds))), prompts=prompts, seeds=seeds)
        provide_profile(engine, [batch], stopping=call.stopping, options=served.options)
        return call.decode(engine, seeds)


def generate(
    model: PreTrainedModel,
    inputs: Tensor | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **arguments: Any,
) -> Tensor | ModelOutput:
    """Decode as `outrider_generate`, for `custom_generate=FOLDER`, which transformers calls with all arguments.

    Args:
        model: the target.
        inputs: as for `generate` of transformers.
        tokenizer: the model's tokenizer, also for stop strings; None: the one in the folder of the model.
        arguments: the other arguments of `generate`, and the options of `outrider_generate`.

    Raises:
        ValueError: as `outrider_generate`, or an argument is given that it would not receive.
    """
    for name in NOT_PASSED_ON:
        if (value := arguments.pop(name, None)) is not None:
            raise OptionError(name, type(value).__name__, "None: custom_generate does not serve it")
    if tokenizer is not None:
        arguments = {"target_tokenizer": tokenizer} | _with_stop_strings(model, tokenizer, arguments)
    # A model loaded with this folder beside it has this function as its own `generate`.
    of_class: Any = type(model).generate
    return of_class(model, inputs, custom_generate=outrider_generate, **arguments)


def _with_stop_strings(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Arguments with a stopping criterion for stop strings, since transformers would not find the tokenizer."""
    config = arguments.get("generation_config") or model.generation_config
    strings = arguments.get("stop_strings") or config.stop_strings
    if strings is None:
        return arguments
    criteria = [*(arguments.get("stopping_criteria") or []), StopStringCriteria(tokenizer, strings)]
    return arguments | {"stop_strings": None, "stopping_criteria": StoppingCriteriaList(criteria)}
