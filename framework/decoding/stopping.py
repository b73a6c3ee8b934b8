"""Stopping criteria of a row, and the commit that cuts tokens at them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from framework.core.sequences import Sequences, put
from framework.core.validation import check_whole
from framework.decoding.round_summary import StepSummary


@dataclass(frozen=True)
class Stopping:
    """Stopping criteria of a row: an end-of-text token, a stop string, the token budget, or the model's context.

    Attributes:
        max_new_tokens: token budget of a row, without its prompt, >= 1.
        eos_ids: tokens that end a row; the token itself is kept.
        stop_strings: texts that end a row; the token that completes one is kept.
        tokenizer: needed for stop strings only.
    """

    max_new_tokens: int
    eos_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    tokenizer: PreTrainedTokenizerBase | None = None

    def __post_init__(self) -> None:
        check_whole("max_new_tokens", self.max_new_tokens, least=1)
        if self.stop_strings and self.tokenizer is None:
            raise ValueError("stop_strings need a tokenizer")
        if any(not string for string in self.stop_strings):
            raise ValueError("stop_strings holds an empty string; allowed: non-empty strings")


class Finisher:
    """Commits tokens to sequences and deactivates finished rows. Shared by every loop.

    The device commits without the host, which reads the summary afterwards: the only synchronisation of a round.

    Attributes:
        stopping: stopping criteria of a row.
        finish_reasons: per row: eos, stop_string, length, context or criterion (`end`); "" while the row is running,
            "before" if it was inactive from the start.
        left: per row, tokens it may still commit, as of the host's last read; 0 for finished rows.
        remaining: [B] int64: the same, up to date on the device.
        eos: [E] int64: end-of-text tokens, on the device.
        max_lengths: [B] int64: prompt length plus max_new_tokens, regardless of the context.
    """

    def __init__(self, sequences: Sequences, stopping: Stopping, context: int):
        device = sequences.lengths.device
        self._sequences = sequences
        self.stopping = stopping
        self.eos = torch.tensor(stopping.eos_ids, dtype=torch.int64, device=device)
        self._prompt_lengths = [len(text) for text in sequences.texts]
        budgets = [length + stopping.max_new_tokens for length in self._prompt_lengths]
        self._limits = [min(budget, context) for budget in budgets]
        self._limit_reasons = ["length" if budget <= context else "context" for budget in budgets]
        running = sequences.active.tolist()
        self.finish_reasons = ["" if runs else "before" for runs in running]
        self.left = [
            (limit - length) * runs
            for limit, length, runs in zip(self._limits, self._prompt_lengths, running, strict=True)
        ]
        self.remaining = torch.tensor(self.left, device=device)
        self.max_lengths = torch.tensor(budgets, device=device)
        sequences.active = self.remaining > 0

    @property
    def width(self) -> int:
        """Width of the sequences' buffer, in tokens."""
        return self._sequences.tokens.shape[1]

    @property
    def new_tokens(self) -> list[list[int]]:
        """Per row, tokens committed after the prompt, as of the host's last read."""
        return [self.new_tokens_of(row) for row in range(len(self._prompt_lengths))]

    def new_tokens_of(self, row: int) -> list[int]:
        """Tokens of a row committed after the prompt, as of the host's last read."""
        return self._sequences.texts[row][self._prompt_lengths[row] :]

    @property
    def most_remaining(self) -> int:
        """Largest remaining budget among the rows, in tokens; 0 when all rows are finished."""
        return max(self.left)

    def replace_rows(self, rows: list[int], others: "Finisher") -> None:
        """Replace the state of rows by that of other sequences with the same stopping criteria, in place."""
        index = torch.tensor(rows, device=self.remaining.device)
        for name in ("remaining", "max_lengths"):
            getattr(self, name).index_copy_(0, index, getattr(others, name))
        for name in ("_prompt_lengths", "_limits", "_limit_reasons", "finish_reasons", "left"):
            put(getattr(self, name), rows, getattr(others, name))

    def end(self, row: int) -> None:
        """End a row between rounds, whatever it holds, by a criterion of the caller's; its tokens stay."""
        self.finish_reasons[row], self.left[row] = "criterion", 0
        self._take_back(row, 0)

    def is_eos(self, tokens: Tensor) -> Tensor:
        """[...] bool: whether each token ends its row."""
        return torch.isin(tokens, self.eos)

    def commit(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Append the first counts[b] tokens of each running row, cut after an end-of-text token and by the budget.

        Args:
            tokens: [B, M] int64.
            counts: [B] int64 in 0..M.

        Returns:
            [B] int64: tokens kept; 0 for finished rows.
        """
        index = torch.arange(tokens.shape[1], device=tokens.device)
        is_eos = self.is_eos(tokens)
        most = torch.minimum(counts, self.remaining).unsqueeze(1)
        keep = (index < most) & (is_eos.cumsum(1) - is_eos.long() == 0)
        kept = keep.sum(1)
        self._sequences.append(tokens, kept)
        self.remaining.copy_(torch.where((keep & is_eos).any(1), 0, self.remaining - kept))
        self._sequences.active.copy_(self.remaining > 0)
        return kept

    def read(self, summary: StepSummary[list[Any]]) -> list[int]:
        """Read a round's summary on the host, and end rows at stop strings, which only the host detects.

        Returns:
            number of tokens kept per row.

        Raises:
            FloatingPointError: a running row is not healthy; no token of this round is then in new_tokens.
        """
        committed = list(summary.num_committed)
        running = [row for row, reason in enumerate(self.finish_reasons) if not reason]
        if sick := [row for row in running if not summary.healthy[row]]:
            named = f"{sick[:8]} and {len(sick) - 8} more" if len(sick) > 8 else f"{sick}"
            raise FloatingPointError(
                f"rows {named}: the distribution of the next token is not finite, negative or all zero. Either the "
                "target's logits hold NaN (try target.dtype=float32), or its generation_config forbids every token "
                "(target.generation), or the drafter proposed a token to which its own probs give zero, or the "
                "verifier is faulty (`check verifier=NAME` tests it)"
            )
        for row in running:
            excess = self._note(row, summary.tokens[row][: committed[row]])
            if self.finish_reasons[row] == "stop_string":
                self._take_back(row, excess)
                committed[row] -= excess
        rows = zip(self._limits, self._sequences.texts, self.finish_reasons, strict=True)
        self.left = [0 if reason else limit - len(text) for limit, text, reason in rows]
        self._sequences.longest = max(map(len, self._sequences.texts))
        return committed

    def _note(self, row: int, block: list[int]) -> int:
        """Append a row's committed tokens and set its finish reason; returns how many follow a stop string."""
        text = self._sequences.texts[row]
        for count, token in enumerate(block, start=1):
            text.append(token)
            if token in self.stopping.eos_ids:
                self.finish_reasons[row] = "eos"
            elif self.stopping.stop_strings and self._completes_stop_string(text[self._prompt_lengths[row] :]):
                self.finish_reasons[row] = "stop_string"
                return len(block) - count
            elif len(text) == self._limits[row]:
                self.finish_reasons[row] = self._limit_reasons[row]
        return 0

    def _take_back(self, row: int, num_tokens: int) -> None:
        """End a row on the device as well, and drop its last tokens there."""
        self._sequences.lengths[row] -= num_tokens
        self._sequences.active[row] = False
        self.remaining[row] = 0

    def _completes_stop_string(self, tokens: list[int]) -> bool:
        assert self.stopping.tokenizer is not None
        text = self.stopping.tokenizer.decode(tokens)
        return any(string in text for string in self.stopping.stop_strings)
