"""What EAGLE's layer knows of a batch: the target's states of committed tokens, and its own keys and values.

B rows, M pairs read, H hidden. Slot = position: pair t of a row is the target's state at token t with token t + 1, and
lies in slot t. The last pair before drafting ends with pending; what is drafted lies behind it, until the next pairs
overwrite it.
"""

import torch
from torch import Tensor

from framework.cache_slots import Slots
from framework.draft import Outcome
from framework.eagle_layer import EagleLayer
from framework.sequences import Sequences, power_of_two


class EagleStates:
    """The layer, row by row: reads pairs of the target's states as they become known, and drafted ones behind them.

    All pairs that a round committed are read at the next draft, with the target's states in place of predicted ones.
    So nothing that was drafted is ever kept, and nothing is rolled back.
    """

    def __init__(self, layer: EagleLayer):
        self.layer = layer
        self._slots = Slots(num_layers=1)
        self._dtype = layer.join.weight.dtype

    def begin(self, sequences: Sequences, prefill: Outcome, *, room: int) -> None:
        """Forget all rows, and read the prompts.

        Args:
            room: slots that drafts need beyond those of the sequences.
        """
        states = prefill.target.states
        assert states is not None, "the layer needs TargetRows.states"
        num_rows, width = sequences.tokens.shape
        self._slots.begin(num_rows, width + room, sequences.tokens.device)
        longest = states.shape[1]
        self._states = states.new_zeros(num_rows, width, states.shape[2])
        self._states[:, :longest] = states
        # Behind a prompt's end there is nothing yet; such slots are overwritten before they are seen.
        slots = self._slots.ids[:longest].unsqueeze(0)
        self._slots.aim(slots, visible=longest)
        self._passed(
            states, sequences.tokens[:, 1 : longest + 1], slots, self._slots.mask_behind(slots, longest, self._dtype)
        )
        self._most_unread = 0

    def catch_up(self, sequences: Sequences, depth: int) -> Tensor:
        """Read the pairs that are new, at least depth + 1: [B, H] the state predicted at pending.

        May be called again before anything is committed, and is the same then.
        """
        # A power of two, so that there are few different passes; pairs that are read again are what they were.
        num_pairs = min(power_of_two(max(self._most_unread, depth + 1)), self._states.shape[1])
        self._most_unread = 0
        last = sequences.lengths - 2
        start = (last + 1 - num_pairs).clamp(min=0)
        slots = start.unsqueeze(1) + self._slots.ids[:num_pairs]
        tokens = sequences.tokens.gather(1, (slots + 1).clamp(max=sequences.tokens.shape[1] - 1))
        rows = torch.arange(len(slots), device=slots.device)
        known = self._states[rows.unsqueeze(1), slots]
        return self._read(known, tokens, slots, sequences.longest - 1)[rows, last - start]

    def read_chain(self, sequences: Sequences, states: Tensor, tokens: Tensor, *, depth: int) -> Tensor:
        """[B, H] the states predicted at drafted tokens [B] int64, so deep, that follow predicted states [B, H]."""
        slots = (sequences.lengths - 2 + depth).unsqueeze(1)
        return self._read(states.unsqueeze(1), tokens.unsqueeze(1), slots, sequences.longest - 1 + depth)[:, 0]

    def read_level(self, sequences: Sequences, states: Tensor, tokens: Tensor, sees: Tensor, *, depth: int) -> Tensor:
        """The same for M nodes of a tree, all so deep: [B, M, H] from states [B, M, H] and tokens [B, M].

        Args:
            sees: [B, M, 1 + R] bool: which of the R nodes read so far, these M at their end, are a node's ancestors or
                itself; the first entry is pending, and True.
        """
        num_read, num_pairs = sees.shape[2] - 1, tokens.shape[1]
        last = sequences.lengths - 2
        slots = last.unsqueeze(1) + 1 + self._slots.ids[num_read - num_pairs : num_read]
        visible = min(sequences.longest - 1 + num_read, self._slots.capacity)
        self._slots.aim(slots, visible=visible)
        mask = self._slots.tree_mask(last, sees, visible, self._dtype)
        return self._passed(states, tokens, (last + depth).unsqueeze(1), mask)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        """Take in the target's states of what was committed."""
        hidden = outcome.target.hidden
        assert hidden is not None, "the layer needs TargetRows.hidden"
        # Behind what was committed the rows are any, and need not be there.
        followed = outcome.followed.clamp(max=hidden.shape[1] - 1)
        first = sequences.lengths - outcome.num_committed - 1
        slots = first.unsqueeze(1) + self._slots.ids[: followed.shape[1]]
        rows = torch.arange(len(slots), device=slots.device).unsqueeze(1)
        self._states[rows, slots.clamp(max=self._states.shape[1] - 1)] = hidden[rows, followed]
        unread = self._most_unread + followed.shape[1]
        # In programs it is a number that they are made for: as a power of two it takes few values.
        self._most_unread = min(
            power_of_two(unread) if torch.compiler.is_compiling() else unread, self._states.shape[1]
        )

    def _read(self, states: Tensor, tokens: Tensor, slots: Tensor, visible: int) -> Tensor:
        """[B, M, H] of pairs in slots [B, M] int64, each of which sees all slots up to its own."""
        slots, visible = slots.clamp(max=self._slots.capacity - 1), min(visible, self._slots.capacity)
        self._slots.aim(slots, visible=visible)
        return self._passed(states, tokens, slots, self._slots.mask_behind(slots, visible, self._dtype))

    def _passed(self, states: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        return self.layer(states, tokens, positions, keep=self._slots.cache.layers[0].update, mask=mask)
