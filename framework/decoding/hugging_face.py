"""A call of transformers' `generate`, decoded by the engine: its arguments, its stopping criteria and its output.

B rows, P tokens of a prompt with its padding, T tokens of a text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, generation
from transformers.generation.utils import ALL_CACHE_NAMES
from transformers.utils import ModelOutput

from framework.core.drafter import preserve_learned_state
from framework.core.option_error import OptionError
from framework.core.sampling import Sampling
from framework.core.sequences import Conditioned, Prompt
from framework.decoding.engine import Engine
from framework.decoding.processor_list import Lengths, options_of
from framework.decoding.stopping import Finisher, Stopping
from framework.metrics.stopwatch import Stopwatch
from framework.metrics.tally import Tally
from framework.models.generation_options import refused_options

# Options that other parts of a call stand for: criteria, and prompts that transformers has changed already.
IN_THE_CALL = {"stop_strings", "max_time", "token_healing"}
OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
OTHER_DRAFTS = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")
# Arguments of the model's passes that our passes replace: masks and positions are checked, caches must be empty.
REPLACED = {"attention_mask", "position_ids", "use_cache", "logits_to_keep", "cache_position", *ALL_CACHE_NAMES}
OF_ENCODER = {"encoder_outputs", "decoder_attention_mask"}


@dataclass(frozen=True)
class Call:
    """Arguments of one call of `generate`, in the engine's terms.

    Attributes:
        prompts: token ids per row, without padding.
        texts: [B, P] int64: the rows as given, with padding on the left; the decoder's of an encoder-decoder model.
        stopping: token budget and end-of-text tokens.
        sampling: temperature 0 without do_sample.
        options: options of the logits processors.
        criteria: the other stopping criteria.
        pad: token that fills finished rows; None: rows have no end-of-text token, and end together.
        output: makes the result from the sequences [B, T].
    """

    prompts: list[Prompt]
    texts: Tensor
    stopping: Stopping
    sampling: Sampling
    options: dict[str, Any]
    criteria: generation.StoppingCriteriaList
    pad: int | None
    output: Callable[[Tensor, Tally], Tensor | ModelOutput]

    @classmethod
    def of(
        cls,
        texts: Tensor,
        inputs: Tensor,
        processors: generation.LogitsProcessorList,
        criteria: generation.StoppingCriteriaList,
        config: GenerationConfig,
        model_kwargs: Mapping[str, Any],
        *,
        has_encoder: bool,
    ) -> "Call":
        """
        Args:
            texts: [B, P] int64, repeated by num_return_sequences.
            inputs: [B / num_return_sequences, S] int64: the same before, or the sources of an encoder-decoder model.
            processors: logits processors of config and caller.
            criteria: stopping criteria of config and caller.
            config: as `generate` prepared it.
            model_kwargs: arguments of the model's passes.
            has_encoder: whether the model is an encoder-decoder one.

        Raises:
            ValueError: an argument is not served; the message names it.
        """
        _refuse_others(config, model_kwargs, known=REPLACED | (OF_ENCODER if has_encoder else set()))
        ends = [each for each in criteria if type(each) is generation.EosTokenCriteria]
        limits = [each.max_length for each in criteria if type(each) is generation.MaxLengthCriteria]
        eos_ids = {token for each in ends for token in each.eos_token_id.tolist()}
        lengths = Lengths(inputs=inputs, prompt=texts.shape[1], most=min(limits), eos_ids=frozenset(eos_ids))
        sampling, options = options_of(processors, lengths, do_sample=config.do_sample)
        rows = _without_padding(texts, None if has_encoder else model_kwargs.get("attention_mask"))
        prompts: list[Prompt] = list(rows)
        if has_encoder:
            sources = inputs.repeat_interleave(len(texts) // len(inputs), 0)
            encoded = _without_padding(sources.flip(1), _flipped(model_kwargs.get("attention_mask")))
            prompts = [Conditioned(source[::-1], text) for source, text in zip(encoded, rows, strict=True)]
        else:
            _check_positions(model_kwargs.get("position_ids"), [len(row) for row in rows])
        kind = generation.GenerateEncoderDecoderOutput if has_encoder else generation.GenerateDecoderOnlyOutput
        known = (generation.EosTokenCriteria, generation.MaxLengthCriteria)
        return cls(
            prompts=prompts,
            texts=texts,
            stopping=Stopping(max_new_tokens=min(limits) - texts.shape[1], eos_ids=tuple(sorted(eos_ids))),
            sampling=sampling,
            options=options,
            criteria=generation.StoppingCriteriaList(each for each in criteria if type(each) not in known),
            pad=int(config._pad_token_tensor) if any(hasattr(each, "eos_token_id") for each in criteria) else None,
            output=_with_tally(kind) if config.return_dict_in_generate else lambda sequences, tally: sequences,
        )

    def decode(self, engine: Engine, seeds: list[int]) -> Tensor | ModelOutput:
        """Decode all rows, and check the criteria between rounds.

        Args:
            engine: engine with this call's sampling and options.
            seeds: one per row.

        Returns:
            [B, T] int64: the texts as given and their new tokens, filled up with `pad`; or an output that holds them
            and the tally of the rounds.

        Raises:
            ValueError: a prompt is empty, or has no room for its new tokens in the target's context.
            FloatingPointError: a distribution is not finite.
        """
        self.check_room(engine.target.model.context)
        stopwatch = Stopwatch(engine.target.device)
        with preserve_learned_state(engine.drafter):
            decoding = engine.begin(
                self.prompts, stopping=self.stopping, seeds=seeds, detailed=False, stopwatch=stopwatch
            )
            ends = _Ends(self, decoding.finisher)
            ends.update()
            while decoding.finisher.most_remaining:
                engine.round(decoding)
                ends.update()
        return self.output(self.sequences(ends.new_tokens), decoding.tally)

    def check_room(self, context: int | None) -> None:
        """
        Raises:
            ValueError: the longest prompt leaves less room in the context than max_new_tokens.
        """
        longest, most = max(map(len, self.prompts)), self.stopping.max_new_tokens
        if context is not None and longest + most > context:
            allowed = f"at most {context - longest}, the room that a prompt of {longest} tokens leaves in the context"
            raise OptionError("max_new_tokens", most, allowed)

    def sequences(self, new: list[list[int]]) -> Tensor:
        """[B, T] int64: the texts as given with new tokens per row, filled up with `pad`."""
        width, pad = max(map(len, new)), self.pad or 0
        rows = [tokens + [pad] * (width - len(tokens)) for tokens in new]
        return torch.cat([self.texts, torch.tensor(rows, dtype=self.texts.dtype, device=self.texts.device)], 1)


class _Ends:
    """Ends of rows by criteria, which see the texts of all rows after every token, as in `generate`.

    Rows advance by different numbers of tokens. The criteria see a step once all rows have reached it.
    """

    def __init__(self, call: Call, finisher: Finisher):
        self._call, self._finisher = call, finisher
        self._ends: list[int | None] = [None] * len(call.prompts)
        self._done = torch.zeros(len(call.prompts), dtype=torch.bool, device=call.texts.device)
        self._num_steps = 0

    @property
    def new_tokens(self) -> list[list[int]]:
        """New tokens per row, up to its end."""
        return [tokens[:end] for tokens, end in zip(self._finisher.new_tokens, self._ends, strict=True)]

    def update(self) -> None:
        """Check the steps that all rows have reached since the last call, and end rows."""
        while self._call.criteria and self._next_step_is_complete():
            self._num_steps += 1
            texts = self._call.sequences([tokens[: self._num_steps] for tokens in self.new_tokens])
            running = [self._is_running(row, self._num_steps) for row in range(len(texts))]
            self._done = self._done | self._call.criteria(texts, None)
            if self._call.pad is not None:
                self._end([row for row, done in enumerate(self._done.tolist()) if done and running[row]])
            elif self._done.all():  # without an end-of-text token, rows continue until all have ended
                self._end(list(range(len(texts))))

    def _end(self, rows: list[int]) -> None:
        for row in rows:
            self._ends[row] = self._num_steps
            self._finisher.end(row)

    def _is_running(self, row: int, step: int) -> bool:
        """Whether a row has, or will have, a token at a step >= 1."""
        if self._ends[row] is not None:
            return False
        return step <= len(self._finisher.new_tokens_of(row)) or not self._finisher.finish_reasons[row]

    def _next_step_is_complete(self) -> bool:
        step, rows = self._num_steps + 1, range(len(self._ends))
        running = [row for row in rows if self._is_running(row, step)]
        return bool(running) and all(step <= len(self._finisher.new_tokens_of(row)) for row in running)


def _refuse_others(config: GenerationConfig, model_kwargs: Mapping[str, Any], *, known: set[str]) -> None:
    """
    Raises:
        ValueError: an option or argument is set that the engine does not serve.
    """
    options = vars(config)
    for name in refused_options(options):
        if name not in IN_THE_CALL:
            raise OptionError(name, options[name], "its default: custom_generate does not serve it")
    for name in OUTPUTS:
        if options.get(name):
            raise OptionError(name, True, "False: custom_generate returns sequences and a tally")
    for name in OTHER_DRAFTS:
        if options.get(name):
            raise OptionError(name, options[name], "its default: the argument drafter says how to draft")
    for name, value in model_kwargs.items():
        if value is not None and name not in known:
            raise OptionError(name, type(value).__name__, "None: custom_generate does not serve it")
    for name in ALL_CACHE_NAMES:
        cache: Any = model_kwargs.get(name)
        if getattr(cache, "_is_user_defined", False) or (hasattr(cache, "get_seq_length") and cache.get_seq_length()):
            raise OptionError(name, type(cache).__name__, "None: the engine has a cache of its own")


def _without_padding(texts: Tensor, mask: Tensor | None) -> list[list[int]]:
    """Token ids per row after the masked tokens at its beginning.

    Raises:
        ValueError: a token after an unmasked one is masked.
    """
    if mask is None:
        return texts.tolist()
    rows = []
    for number, (tokens, is_text) in enumerate(zip(texts.tolist(), (mask != 0).tolist(), strict=True)):
        length = sum(is_text)
        if not all(is_text[len(is_text) - length :]):
            raise OptionError(
                "attention_mask", f"row {number}", "zeros for padding on the left; for sources, on the right"
            )
        rows.append(tokens[len(tokens) - length :])
    return rows


def _flipped(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.flip(1)


def _check_positions(positions: Tensor | None, lengths: list[int]) -> None:
    """
    Raises:
        ValueError: the positions [1 or B, P] of a row's text are not 0, 1, ...
    """
    if positions is None:
        return
    for row, length in zip(positions.expand(len(lengths), -1).tolist(), lengths, strict=True):
        if row[len(row) - length :] != list(range(length)):
            raise OptionError("position_ids", row, "None, or positions from 0 on in every row")


def _with_tally(kind: type[ModelOutput]) -> Callable[[Tensor, Tally], ModelOutput]:
    def output(sequences: Tensor, tally: Tally) -> ModelOutput:
        made = kind(sequences=sequences)
        made["tally"] = tally
        return made

    return output
