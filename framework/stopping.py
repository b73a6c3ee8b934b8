"""When a row is finished, and what is kept of the tokens that finished it."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from framework.sequences import Sequences
from framework.whole_numbers import check_whole


@dataclass(frozen=True)
class Stopping:
    """What ends a row: an end-of-text token, a stop string, its token budget, or the model's context.

    Attributes:
        max_new_tokens: most tokens a row may add to its prompt, >= 1.
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
    """Commits tokens to sequences and deactivates the rows that are finished. Shared by every loop.

    The device commits on its own, and the host reads afterwards what it did: the one wait of a round.

    Attributes:
        finish_reasons: per row: eos, stop_string, length or context; "" while it is running, and "before" of one that
            was not active to begin with.
        left: per row, tokens it may still commit, as far as the host has read; 0 for finished rows.
        remaining: [B] int64, the same on the device.
    """

    def __init__(self, sequences: Sequences, stopping: Stopping, context: int):
        device = sequences.lengths.device
        self._sequences = sequences
        self._stopping = stopping
        self._eos = torch.tensor(stopping.eos_ids, dtype=torch.int64, device=device)
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
        sequences.active = self.remaining > 0

    @property
    def new_tokens(self) -> list[list[int]]:
        """Per row, what was committed beyond the prompt, as far as it was read."""
        return [text[length:] for text, length in zip(self._sequences.texts, self._prompt_lengths, strict=True)]

    @property
    def most_remaining(self) -> int:
        """Tokens the row with the most room may still commit; 0 when all rows are finished."""
        return max(self.left)

    def is_eos(self, tokens: Tensor) -> Tensor:
        """[...] bool: whether each token ends its row."""
        return torch.isin(tokens, self._eos)

    def commit(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Append the first counts[b] tokens of each running row, cut after an end-of-text token and by the budget.

        Args:
            tokens: [B, M] int64.
            counts: [B] int64 in 0..M.

        Returns:
            [B] int64: tokens kept; 0 for rows that were finished before.
        """
        index = torch.arange(tokens.shape[1], device=tokens.device)
        is_eos = self.is_eos(tokens)
        most = torch.minimum(counts, self.remaining).unsqueeze(1)
        keep = (index < most) & (is_eos.cumsum(1) - is_eos.long() == 0)
        kept = keep.sum(1)
        self._sequences.append(tokens, kept)
        self.remaining = torch.where((keep & is_eos).any(1), 0, self.remaining - kept)
        self._sequences.active = self.remaining > 0
        return kept

    @staticmethod
    def tell(tokens: Tensor, kept: Tensor, healthy: Tensor, *others: Tensor) -> Tensor:
        """What the host is to read of a round, as one tensor.

        Args:
            tokens: [B, M] int64 that were committed.
            kept: [B] int64: how many of them.
            healthy: [B] bool: whether the laws these tokens were drawn from are finite.
            others: [B] int64 or bool each.

        Returns:
            [B, 2 + len(others) + M] int64.
        """
        return torch.cat([torch.stack([kept, healthy, *others], 1), tokens], 1)

    def read(self, told: Tensor, num_others: int) -> list[list[int]]:
        """Let the host know what was committed, and end rows at a stop string, which only the host sees.

        Args:
            told: as `tell` makes it.
            num_others: how many others are in it.

        Returns:
            tokens kept per row, then the others.

        Raises:
            FloatingPointError: a running row is not healthy; nothing of this round is in new_tokens.
        """
        # The one wait for the device in a round: from here on the host knows what was drawn.
        drawn = told.tolist()
        first = 2 + num_others
        running = [row for row, reason in enumerate(self.finish_reasons) if not reason]
        if sick := [row for row in running if not drawn[row][1]]:
            named = f"{sick[:8]} and {len(sick) - 8} more" if len(sick) > 8 else f"{sick}"
            raise FloatingPointError(
                f"rows {named}: the law of the next token is not finite. Either the target's logits hold NaN (try "
                "target.dtype=float32), or the drafter proposed a token to which its own probs give zero"
            )
        for row in running:
            excess = self._note(row, drawn[row][first : first + drawn[row][0]])
            if self.finish_reasons[row] == "stop_string":
                self._take_back(row, excess)
                drawn[row][0] -= excess
        rows = zip(self._limits, self._sequences.texts, self.finish_reasons, strict=True)
        self.left = [0 if reason else limit - len(text) for limit, text, reason in rows]
        self._sequences.longest = max(map(len, self._sequences.texts))
        return [[row[column] for row in drawn] for column in (0, *range(2, first))]

    def _note(self, row: int, block: list[int]) -> int:
        """Take in what a row committed, and why it ends, if it does; returns how much was committed behind that."""
        text = self._sequences.texts[row]
        for count, token in enumerate(block, start=1):
            text.append(token)
            if token in self._stopping.eos_ids:
                self.finish_reasons[row] = "eos"
            elif self._completes_stop_string(text[self._prompt_lengths[row] :]):
                self.finish_reasons[row] = "stop_string"
                return len(block) - count
            elif len(text) == self._limits[row]:
                self.finish_reasons[row] = self._limit_reasons[row]
        return 0

    def _take_back(self, row: int, num_tokens: int) -> None:
        """End a row on the device, too, without its last tokens."""
        self._sequences.lengths[row] -= num_tokens
        self._sequences.active[row] = False
        self.remaining[row] = 0

    def _completes_stop_string(self, tokens: list[int]) -> bool:
        if not self._stopping.stop_strings:
            return False
        assert self._stopping.tokenizer is not None
        text = self._stopping.tokenizer.decode(tokens)
        return any(string in text for string in self._stopping.stop_strings)
