"""Forward passes of models with recurrent layers, whose states cannot be rolled back.

B rows, M tokens, V vocabulary, H hidden.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from framework.models.cache_slots import Slots
from framework.models.forward_output import ForwardOutput, rows_of
from framework.models.recurrent_states import RecurrentStates

Pass: TypeAlias = Callable[..., ForwardOutput]
"""`(tokens, start, *, visible, keep=None)`: a pass as `CachedLM.forward`, over the current rows and states."""


class RecurrentReader:
    """Reader of ragged rows in groups of equal length, and of drafts from a snapshot that `replay` can restore.

    Attributes:
        states: the recurrent states of all rows.
        one_by_one: whether a draft takes one pass per token, so that speculation cannot pay off.
    """

    def __init__(self, states: RecurrentStates, slots: Slots):
        self.states = states
        self._slots = slots
        self.one_by_one = False

    def read(
        self, run: Pass, tokens: Tensor, start: Tensor | None, *, visible: int, keep: Tensor | None = None
    ) -> ForwardOutput:
        """Read tokens [B, M] int64, with the other arguments of `CachedLM.forward`; `run` is the pass itself."""
        several = tokens.shape[1] > 1
        if start is None and keep is not None and not self.states.reads_some_rows:
            return self._read_ragged(run, tokens, keep)
        if several and self.states.needs_snapshot:
            self.states.save()  # the tokens after pending are drafted, and may be rejected
        if several and self.one_by_one and start is not None:
            return self._read_one_by_one(run, tokens, start, visible, keep)
        self.states.note(tokens)
        return run(tokens, start, visible=visible, keep=keep)

    def replay(self, run: Pass, texts: Sequence[list[int]]) -> None:
        """Bring the states of every row to the end of its text: undo rejected tokens, and read accepted ones."""
        self.states.take_back(texts)
        for _ in self._read_groups(run, texts):
            pass

    def _read_groups(self, run: Pass, texts: Sequence[list[int]]) -> Iterator[tuple[Tensor, ForwardOutput]]:
        """Read the unread tokens of each text, in groups of rows with equally many: padding would enter the states.

        Yields:
            [R] int64 rows, and the pass over them, with the logits [R, 1, V] of the token after their texts.
        """
        device = self._slots.ids.device
        for rows, number in self.states.unread(texts):
            index = torch.tensor(rows, device=device)
            tokens = torch.tensor([texts[row][-number:] for row in rows], device=device)
            starts = [len(texts[row]) - number for row in rows]
            start = torch.tensor(starts, device=device) if any(starts) else None
            last = torch.full_like(index, number - 1)
            with self._slots.only(index), self.states.only(rows):
                output = self.read(run, tokens, start, visible=max(starts) + number, keep=last)
            yield index, output

    def _read_ragged(self, run: Pass, tokens: Tensor, keep: Tensor) -> ForwardOutput:
        """Read tokens [B, M] up to index keep[b] only: later tokens would enter the states."""
        texts = [row[: last + 1] for row, last in zip(tokens.tolist(), keep.tolist(), strict=True)]
        read = list(self._read_groups(run, texts))
        one = read[0][1]
        logits = one.logits.new_empty(len(texts), *one.logits.shape[1:])
        whole = [states.new_zeros(*tokens.shape, states.shape[2]) for states in one.by_token]
        for rows, output in read:
            logits[rows] = output.logits
            for states, of_rows in zip(whole, output.by_token, strict=True):
                states[rows, : of_rows.shape[1]] = of_rows
        return ForwardOutput(logits, *whole, keep=keep)

    def _read_one_by_one(
        self, run: Pass, tokens: Tensor, start: Tensor, visible: int, keep: Tensor | None
    ) -> ForwardOutput:
        """Read one token per pass, for layers that read several tokens only from an empty state."""
        read = []
        for place in range(tokens.shape[1]):
            seen = visible - tokens.shape[1] + 1 + place
            read.append(self.read(run, tokens[:, place : place + 1], start + place, visible=seen))
        logits = torch.cat([output.logits for output in read], 1)
        states = [torch.cat(of_token, 1) for of_token in zip(*(output.by_token for output in read), strict=True)]
        return ForwardOutput(logits if keep is None else rows_of(logits, keep), *states, keep=keep)
