"""State of EAGLE's layer or an MTP layer: the target's states, and the layer's own KV cache.

B rows, M pairs read, H hidden. Pair t of a row is the known state at token t with token t + 1, in slot t. The last
pair before drafting ends with pending. Drafted pairs lie in the slots after it until the next pairs overwrite them.
"""

import torch
from torch import Tensor, nn

from framework.core.backlog import Backlog
from framework.core.draft import Outcome, SamplingScheme, Shape
from framework.core.fixed_buffer import FixedBuffer
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.heads.eagle_layer import EagleLayer
from framework.heads.mtp_layer import MtpLayer
from framework.models.attention_masks import additive
from framework.models.cache_slots import Slots


class EagleStates:
    """Runs the layer over pairs with the target's states as tokens are committed, then over drafted pairs.

    The next draft starts by reading all pairs that a round committed, with the target's states instead of predicted
    ones. Drafted pairs are therefore never kept, and nothing is rolled back.
    """

    def __init__(self, layer: EagleLayer | MtpLayer):
        self.layer = layer
        self._slots = Slots(num_layers=1)
        self._buffer = FixedBuffer()

    def begin(self, sequences: Sequences, prefill: Outcome, *, room: int) -> None:
        """Clear all rows and read the prompts.

        Args:
            sequences: rows after prefill.
            prefill: outcome of prefill, with `states` and, if the layer reads them, `features`.
            room: slots for drafts, in addition to those of the sequences.
        """
        states = self._known(prefill)
        num_rows, width = sequences.tokens.shape
        self._slots.begin(num_rows, width + room, sequences.tokens.device)
        shape = num_rows, width, states.shape[2]
        self._states = self._buffer.zeros(shape, dtype=states.dtype, device=states.device)
        self.begin_rows(list(range(num_rows)), sequences, prefill)
        self._backlog = Backlog(width, 0)

    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        """Read the prompts of some rows.

        Args:
            rows: these rows.
            sequences: these rows alone, after prefill.
            prefill: outcome of their prefill.
        """
        states, index = self._known(prefill), torch.tensor(rows, device=sequences.tokens.device)
        longest = states.shape[1]
        self._states[index.to(states.device), :longest] = states
        # Slots after a prompt's end hold no pair yet; they are overwritten before a pair attends to them.
        slots = self._slots.ids[:longest].unsqueeze(0)
        with self._slots.only(index), self._slots.in_pass(slots, visible=longest):
            self._passed(states, sequences.tokens[:, 1 : longest + 1], slots, self._slots.causal(slots, longest))

    def catch_up(self, sequences: Sequences, depth: int) -> Tensor:
        """Read the new pairs, at least depth + 1 per row; returns the states [B, H] predicted at pending.

        A repeated call before the next commit returns the same.
        """
        known, tokens, slots, last = self._new_pairs(sequences, depth, further=0)
        rows = torch.arange(len(slots), device=slots.device)
        return self._read(known, tokens, slots, sequences.longest - 1)[rows, last - slots[:, 0]]

    def catch_up_with_masks(self, sequences: Sequences, depth: int, *, token: int, state: Tensor) -> Tensor:
        """As `catch_up`, and read depth - 1 masks after pending in the same pass.

        Args:
            sequences: committed tokens.
            depth: number of states to predict.
            token: token of a mask.
            state: [1, 1, H] state of a mask.

        Returns:
            [B, depth, H] states predicted at pending and at the masks.
        """
        known, tokens, slots, last = self._new_pairs(sequences, depth, further=depth - 1)
        is_mask = slots > last.unsqueeze(1)
        known = torch.where(is_mask.unsqueeze(2).to(known.device), state.to(known), known)
        states = self._read(known, tokens.masked_fill(is_mask, token), slots, sequences.longest - 2 + depth)
        places = (last - slots[:, 0]).unsqueeze(1) + self._slots.ids[:depth]
        rows = torch.arange(len(slots), device=slots.device).unsqueeze(1)
        return states[rows, places.clamp(max=slots.shape[1] - 1)]

    def _new_pairs(self, sequences: Sequences, depth: int, *, further: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States [B, M, H], tokens [B, M] and slots [B, M] of the new pairs and further slots, and their last [B]."""
        num_pairs = self._backlog.size_of_pass(depth + 1)
        self._backlog.most = 0
        last = sequences.lengths - 2
        start = (last + 1 - num_pairs).clamp(min=0)
        slots = start.unsqueeze(1) + self._slots.ids[: num_pairs + further]
        if further:
            slots = slots.clamp(max=self._slots.capacity - 1)
        tokens = sequences.tokens.gather(1, (slots + 1).clamp(max=sequences.tokens.shape[1] - 1))
        rows = torch.arange(len(slots), device=slots.device).unsqueeze(1)
        return self._states[rows, slots], tokens, slots, last

    def read_chain(self, sequences: Sequences, states: Tensor, tokens: Tensor, *, depth: int) -> Tensor:
        """[B, H] states predicted at drafted tokens [B] int64 of this depth, from predicted states [B, H]."""
        slots = (sequences.lengths - 2 + depth).unsqueeze(1)
        return self._read(states.unsqueeze(1), tokens.unsqueeze(1), slots, sequences.longest - 1 + depth)[:, 0]

    def read_level(self, sequences: Sequences, states: Tensor, tokens: Tensor, sees: Tensor, *, depth: int) -> Tensor:
        """As `read_chain`, for M nodes of a tree level: [B, M, H] from states [B, M, H] and tokens [B, M].

        Args:
            sequences: committed tokens.
            states: [B, M, H] predicted states before the nodes.
            tokens: [B, M] int64: tokens of the nodes.
            sees: [B, M, 1 + R] bool: True for a node's ancestors and itself, among the R nodes read so far, these M
                last; the first entry is pending, always True.
            depth: depth of the level.
        """
        num_read, num_pairs = sees.shape[2] - 1, tokens.shape[1]
        last = sequences.lengths - 2
        slots = last.unsqueeze(1) + 1 + self._slots.ids[num_read - num_pairs : num_read]
        visible = min(sequences.longest - 1 + num_read, self._slots.capacity)
        with self._slots.in_pass(slots, visible=visible):
            return self._passed(states, tokens, (last + depth).unsqueeze(1), self._slots.of_tree(last, sees, visible))

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        """Store the target's states of the committed tokens."""
        known = self._known(outcome)
        # Entries after the committed tokens are arbitrary and may be out of range.
        followed = outcome.followed.clamp(max=known.shape[1] - 1)
        first = sequences.lengths - outcome.num_committed - 1
        slots = first.unsqueeze(1) + self._slots.ids[: followed.shape[1]]
        rows = torch.arange(len(slots), device=slots.device).unsqueeze(1)
        self._states[rows, slots.clamp(max=self._states.shape[1] - 1)] = known[rows, followed]
        if outcome.draft.num_nodes or not torch.compiler.is_compiling():
            self._backlog.add(followed.shape[1])

    def resume(self, sequences: Sequences, num_tokens: int) -> None:
        """Read all new pairs, num_tokens of them from compiled rounds without a draft (`Resuming`)."""
        self._backlog.add(num_tokens)
        if self._backlog.most:
            self.catch_up(sequences, 0)

    def _read(self, states: Tensor, tokens: Tensor, slots: Tensor, visible: int) -> Tensor:
        """[B, M, H] states predicted by pairs in slots [B, M] int64; each pair attends to all slots up to its own."""
        slots, visible = slots.clamp(max=self._slots.capacity - 1), min(visible, self._slots.capacity)
        with self._slots.in_pass(slots, visible=visible):
            return self._passed(states, tokens, slots, self._slots.causal(slots, visible))

    def _passed(self, states: Tensor, tokens: Tensor, positions: Tensor, sees: Tensor) -> Tensor:
        mask = additive(sees, self.layer.dtype)
        return self.layer(states, tokens, positions, pairs=self._slots.cache, mask=mask)

    def _known(self, outcome: Outcome) -> Tensor:
        """[B, M, H] states that the layer pairs with tokens, for all tokens of a pass of the target."""
        assert outcome.states is not None, "the layer needs Outcome.states"
        return self.layer.known(outcome.states, outcome.features)


class DrafterOnStates:
    """A drafter on EagleStates without `propose`: it draws a chain unless a subclass says otherwise."""

    scheme = SamplingScheme.IID
    shape = Shape.CHAIN

    def __init__(self, layer: EagleLayer | MtpLayer, *, room: int = 0):
        """
        Args:
            layer: drafts.
            room: as for `EagleStates.begin`.
        """
        self._states, self._room, self.hidden_layers = EagleStates(layer), room, layer.hidden_layers

    @property
    def models(self) -> list[nn.Module]:
        return [self._states.layer]

    def num_uniforms(self, gamma: int) -> int:
        return gamma

    @torch.no_grad()
    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self._states.begin(sequences, prefill, room=self._room)

    @torch.no_grad()
    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        self._states.begin_rows(rows, sequences, prefill)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        self._states.observe(sequences, outcome)

    @torch.no_grad()
    def resume(self, sequences: Sequences, num_tokens: int) -> None:
        self._states.resume(sequences, num_tokens)
