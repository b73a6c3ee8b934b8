"""Logits processors of a generation_config: functions of the text so far, applied to every row of logits.

Names, meaning and order are those of `generate` in transformers. All processors run on the device, for trees and
ragged rows, so that compiled rounds include them.

B sequences, R rows each ([pending, nodes...]), V vocabulary, W width of a text, S width of a source.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from framework.core.draft import Draft
from framework.core.sequences import Conditioned, Prompt, Sequences, text_of


@dataclass(frozen=True)
class Texts:
    """Input of the processors: the text before the token that each row scores, and its length limits.

    Attributes:
        tokens: [B, R, W] int64; entries from a text's length on are meaningless.
        lengths: [B, R] int64.
        prompt_lengths: [B] int64.
        max_lengths: [B] int64: the prompt's length plus max_new_tokens.
        sources: [B, S] int64: the encoder's input; the prompts of a decoder-only model, as in transformers.
        source_lengths: [B] int64.
        eos: [E] int64: EOS tokens.
    """

    tokens: Tensor
    lengths: Tensor
    prompt_lengths: Tensor
    max_lengths: Tensor
    sources: Tensor
    source_lengths: Tensor
    eos: Tensor

    @classmethod
    def of_round(cls, sequences: Sequences, draft: Draft | None, *, eos: Tensor, max_lengths: Tensor) -> "Texts":
        """Texts of [pending, nodes...]: the committed tokens, then the path to each node, itself included."""
        tokens, lengths = sequences.tokens.unsqueeze(1), sequences.lengths.unsqueeze(1)
        if draft is not None and draft.num_nodes:
            depth, on_path = draft.tree.depth, draft.tree.sees[:, :, 1:]
            # Nodes off a row's path go to an extra last place, beyond every length.
            places = (lengths + depth[:, 1:] - 1).unsqueeze(1)
            places = torch.where(on_path, places, tokens.shape[2]).clamp(max=tokens.shape[2])
            tokens = pad(tokens, (0, 1)).expand(-1, places.shape[1], -1)
            tokens = tokens.scatter(2, places, draft.tokens.unsqueeze(1).expand_as(places))
            lengths = lengths + depth
        sources, source_lengths = sequences.tokens, sequences.prompt_lengths
        if sequences.source is not None and sequences.source_mask is not None:
            sources, source_lengths = sequences.source, sequences.source_mask.sum(1)
        return cls(tokens, lengths, sequences.prompt_lengths, max_lengths, sources, source_lengths, eos)

    @classmethod
    def of_continuations(cls, prompt: Prompt, new: Tensor, *, eos_ids: tuple[int, ...], max_new_tokens: int) -> "Texts":
        """Texts of one prompt with several continuations, new [B, N] int64; one row each."""
        num_rows, text = len(new), text_of(prompt)
        source = prompt.source if isinstance(prompt, Conditioned) else text

        def rows_of(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=new.device).expand(num_rows, -1)

        tokens = torch.cat([rows_of(text), new], 1).unsqueeze(1)
        return cls(
            tokens=tokens,
            lengths=rows_of([tokens.shape[2]]),
            prompt_lengths=rows_of([len(text)])[:, 0],
            max_lengths=rows_of([len(text) + max_new_tokens])[:, 0],
            sources=rows_of(source),
            source_lengths=rows_of([len(source)])[:, 0],
            eos=torch.tensor(eos_ids, dtype=torch.int64, device=new.device),
        )

    @property
    def num_new(self) -> Tensor:
        """[B, R] int64: tokens beyond the prompt."""
        return self.lengths - self.prompt_lengths.unsqueeze(1)

    def last(self, number: int) -> Tensor:
        """[B, R, number] int64: the last tokens of every text; -1 before its beginning."""
        places = self.lengths.unsqueeze(2) + torch.arange(-number, 0, device=self.lengths.device)
        tokens = self.tokens.expand(-1, places.shape[1], -1).gather(2, places.clamp(min=0))
        return torch.where(places >= 0, tokens, -1)


class LogitsProcessors:
    """Logits processors for the active options of a target's generation_config.

    Attributes:
        options: values by name, in the order of application.
    """

    def __init__(
        self,
        options: Mapping[str, Any] | None = None,
        *,
        vocabulary_size: int = 0,
        device: torch.device | None = None,
    ):
        """
        Args:
            options: values of active options by name; names outside PROCESSORS are ignored.
            vocabulary_size: V.
            device: device of the logits.

        Raises:
            ValueError: an option has an invalid value; the message names the option.
        """
        options = options or {}
        self.options = {name: options[name] for name in PROCESSORS if name in options}
        self._steps = [_made(name, self.options, vocabulary_size, device) for name in self.options]

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        """Apply all processors to raw logits [B, R, V]; the result is float32, or float64 for float64 logits.

        Without processors the logits are returned unchanged.
        """
        if self._steps and logits.dtype != torch.float64:
            logits = logits.float()
        for step in self._steps:
            logits = step(logits, texts)
        return logits

    def of_round(
        self, logits: Tensor, sequences: Sequences, draft: Draft | None, *, eos: Tensor, max_lengths: Tensor
    ) -> Tensor:
        """Apply all processors to the rows of a round, [pending, nodes...]; draft None: pending alone."""
        if not self._steps:
            return logits
        return self(logits, Texts.of_round(sequences, draft, eos=eos, max_lengths=max_lengths))


Processor: TypeAlias = Callable[[Tensor, Texts], Tensor]


def _made(name: str, options: Mapping[str, Any], width: int, device: torch.device | None) -> Processor:
    kind = PROCESSORS[name]
    if name == "begin_suppress_tokens" and "forced_bos_token_id" in options:
        kind = _SuppressedAfterForced
    try:
        return kind(options[name], width, device)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is {options[name]!r}, which is invalid: {error}") from error


class _SequenceBias:
    """Add a bias to the last token of a sequence where the text ends with the tokens before it."""

    def __init__(self, biases: Mapping[tuple[int, ...], float] | list[Any], width: int, device: torch.device | None):
        pairs = list(biases.items() if isinstance(biases, Mapping) else biases)
        sequences = {tuple(map(int, sequence)): float(bias) for sequence, bias in pairs}
        if any(not sequence or min(sequence) < 0 for sequence in sequences):
            raise ValueError("a sequence is empty, or holds a negative id")
        self._of_tokens = torch.zeros(width)
        longer: dict[int, dict[tuple[int, ...], float]] = {}
        for sequence, bias in sequences.items():
            if sequence[-1] >= width:
                continue  # outside the vocabulary, so never drawn
            if len(sequence) == 1:
                self._of_tokens[sequence[0]] = bias
            else:
                longer.setdefault(len(sequence), {})[sequence] = bias
        self._of_tokens = self._of_tokens.to(device)
        self._longer = []
        for alike in longer.values():
            ids = torch.tensor(list(alike), device=device)
            self._longer.append((ids[:, :-1], ids[:, -1], torch.tensor(list(alike.values()), device=device)))

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        return self._biased(logits, texts, self._of_tokens)

    def _biased(self, logits: Tensor, texts: Texts, of_tokens: Tensor) -> Tensor:
        bias = torch.zeros_like(logits) + of_tokens
        for before, last, added in self._longer:
            matches = (texts.last(before.shape[1]).unsqueeze(2) == before).all(3)
            bias = bias.index_add(2, last, torch.where(matches, added, 0.0).to(bias.dtype))
        return logits + bias


class _BadWords(_SequenceBias):
    """Forbid the last token of each sequence where it would complete it; a sequence of one EOS token is ignored."""

    def __init__(self, words: list[list[int]], width: int, device: torch.device | None):
        super().__init__({tuple(word): -torch.inf for word in words}, width, device)

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        of_tokens = self._of_tokens.masked_fill(_among(texts.eos, logits.shape[-1]), 0.0)
        return self._biased(logits, texts, of_tokens)


class _RepetitionPenalty:
    """Divide positive logits of tokens in the text by the penalty; multiply negative ones by it."""

    def __init__(self, penalty: float, width: int, device: torch.device | None):
        self._penalty = float(penalty)
        if not self._penalty > 0:
            raise ValueError("the penalty is not positive")

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        return _penalised(logits, _held(texts.tokens, texts.lengths, logits.shape[-1]), self._penalty)


class _EncoderRepetitionPenalty(_RepetitionPenalty):
    """Apply the inverse penalty to tokens of the source: above 1 it favours them."""

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        held = _held(texts.sources, texts.source_lengths, logits.shape[-1]).unsqueeze(1)
        return _penalised(logits, held, 1 / self._penalty)


class _NoRepeatNgram:
    """Forbid tokens that would repeat an n-gram of the text."""

    def __init__(self, size: int, width: int, device: torch.device | None):
        self._size = int(size)
        if self._size != size or self._size < 1:
            raise ValueError("the size is not a whole number >= 1")

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        return self._forbidden(logits, texts, texts.tokens, texts.lengths)

    def _forbidden(self, logits: Tensor, texts: Texts, within: Tensor, lengths: Tensor) -> Tensor:
        """Forbid each token that follows the text's last size - 1 tokens somewhere in `within` [B, R or 1, L]."""
        size, width = self._size, logits.shape[-1]
        num_windows = within.shape[2] - size + 1
        if num_windows < 1:
            return logits
        ends = torch.arange(size, size + num_windows, device=logits.device)
        matches = ends <= lengths.unsqueeze(2)
        for place, token in enumerate(texts.last(size - 1).unbind(2)):
            matches = matches & (within[..., place : place + num_windows] == token.unsqueeze(2))
        # Windows that do not match forbid id `width`, which is cut off.
        ids = torch.where(matches, within[..., size - 1 :], width).clamp(max=width)
        forbidden = torch.zeros(*logits.shape[:-1], width + 1, dtype=torch.bool, device=logits.device)
        ids = ids.expand(*logits.shape[:-1], -1)
        return logits.masked_fill(forbidden.scatter(2, ids, True)[..., :width], -torch.inf)


class _EncoderNoRepeatNgram(_NoRepeatNgram):
    """Forbid tokens that would repeat an n-gram of the source."""

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        return self._forbidden(logits, texts, texts.sources.unsqueeze(1), texts.source_lengths.unsqueeze(1))


class _MinLength:
    """Forbid EOS tokens while the text, prompt included, has fewer than `least` tokens."""

    def __init__(self, least: int, width: int, device: torch.device | None):
        self._least = int(least)

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        return self._longer(logits, texts, texts.lengths)

    def _longer(self, logits: Tensor, texts: Texts, lengths: Tensor) -> Tensor:
        is_short = (lengths < self._least).unsqueeze(2)
        return logits.masked_fill(is_short & _among(texts.eos, logits.shape[-1]), -torch.inf)


class _MinNewTokens(_MinLength):
    """Forbid EOS tokens while the text has fewer than `least` tokens beyond its prompt."""

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        return self._longer(logits, texts, texts.num_new)


class _ForcedTokens:
    """Force tokens at a certain length of the text: their logits become 0, all others -inf."""

    def __init__(self, tokens: int | list[int], width: int, device: torch.device | None):
        ids = [int(token) for token in (tokens if isinstance(tokens, list) else [tokens])]
        if not ids or not all(0 <= token < width for token in ids):
            raise ValueError("a forced token is not in the vocabulary")
        forced = torch.full((width,), -torch.inf)
        forced[ids] = 0.0
        self._forced = forced.to(device)

    def _where(self, is_forced: Tensor, logits: Tensor) -> Tensor:
        return torch.where(is_forced.unsqueeze(2), self._forced.to(logits.dtype), logits)


class _ForcedBeginning(_ForcedTokens):
    """Force the token after a text of one token."""

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        return self._where(texts.lengths == 1, logits)


class _ForcedEnd(_ForcedTokens):
    """Force the last token that max_new_tokens allows."""

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        return self._where(texts.lengths == texts.max_lengths.unsqueeze(1) - 1, logits)


class _InvalidValuesRemoved:
    """Replace NaN by 0, and infinities by the dtype's largest and smallest finite numbers."""

    def __init__(self, wanted: bool, width: int, device: torch.device | None):
        pass

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        return logits.nan_to_num(nan=0.0)


class _LengthPenalty:
    """Raise EOS logits beyond `start` new tokens, by a factor that grows exponentially with every token."""

    def __init__(self, start_and_factor: tuple[int, float], width: int, device: torch.device | None):
        start, factor = start_and_factor
        self._start, self._factor = int(start), float(factor)

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        beyond = texts.num_new - self._start
        growth = ((self._factor ** beyond.clamp(min=0).double()) - 1).to(logits.dtype).unsqueeze(2)
        raised = logits + (logits.abs() * growth).masked_fill(~logits.isfinite(), 0.0)
        is_raised = (beyond > 0).unsqueeze(2) & _among(texts.eos, logits.shape[-1])
        return torch.where(is_raised, raised, logits)


class _SuppressedTokens:
    """Forbid tokens."""

    def __init__(self, tokens: list[int], width: int, device: torch.device | None):
        suppressed = torch.zeros(width, dtype=torch.bool)
        suppressed[[int(token) for token in tokens if 0 <= token < width]] = True
        self._suppressed = suppressed.to(device)

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        return logits.masked_fill(self._suppressed, -torch.inf)


class _SuppressedAtBeginning(_SuppressedTokens):
    """Forbid tokens right after the prompt."""

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        return self._from(logits, texts, texts.prompt_lengths)

    def _from(self, logits: Tensor, texts: Texts, begin: Tensor) -> Tensor:
        is_first = (texts.lengths == begin.unsqueeze(1)).unsqueeze(2)
        return logits.masked_fill(is_first & self._suppressed, -torch.inf)


class _SuppressedAfterForced(_SuppressedAtBeginning):
    """Forbid tokens right after the prompt, or, for a prompt of one token, right after the forced token."""

    def __call__(self, logits: Tensor, texts: Texts) -> Tensor:
        return self._from(logits, texts, texts.prompt_lengths + (texts.prompt_lengths == 1))


# In the order of `_get_logits_processor` in transformers 5.23.
PROCESSORS: dict[str, Callable[[Any, int, torch.device | None], Processor]] = {
    "sequence_bias": _SequenceBias,
    "encoder_repetition_penalty": _EncoderRepetitionPenalty,
    "repetition_penalty": _RepetitionPenalty,
    "no_repeat_ngram_size": _NoRepeatNgram,
    "encoder_no_repeat_ngram_size": _EncoderNoRepeatNgram,
    "bad_words_ids": _BadWords,
    "min_length": _MinLength,
    "min_new_tokens": _MinNewTokens,
    "forced_bos_token_id": _ForcedBeginning,
    "forced_eos_token_id": _ForcedEnd,
    "remove_invalid_values": _InvalidValuesRemoved,
    "exponential_decay_length_penalty": _LengthPenalty,
    "suppress_tokens": _SuppressedTokens,
    "begin_suppress_tokens": _SuppressedAtBeginning,
}


def _among(ids: Tensor, width: int) -> Tensor:
    """[width] bool: tokens that are among ids."""
    return torch.isin(torch.arange(width, device=ids.device), ids)


def _held(tokens: Tensor, lengths: Tensor, width: int) -> Tensor:
    """[..., width] bool: tokens that occur among the first lengths [...] of tokens [..., L]."""
    inside = torch.arange(tokens.shape[-1], device=tokens.device) < lengths.unsqueeze(-1)
    ids = torch.where(inside, tokens, width).clamp(max=width)
    held = torch.zeros(*ids.shape[:-1], width + 1, dtype=torch.bool, device=tokens.device)
    return held.scatter(-1, ids, True)[..., :width]


def _penalised(logits: Tensor, where: Tensor, penalty: float) -> Tensor:
    return torch.where(where, torch.where(logits < 0, logits * penalty, logits / penalty), logits)
