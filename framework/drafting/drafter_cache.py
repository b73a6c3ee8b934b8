"""KV cache of a drafter's model, kept in step with the committed tokens.

B rows, V vocabulary.
"""

import torch
from torch import Tensor

from framework.core.backlog import Backlog
from framework.core.draft import Outcome
from framework.core.fixed_buffer import FixedBuffer
from framework.core.sequences import Sequences
from framework.models.cached_lm import CachedLM
from framework.models.forward_output import ForwardOutput

AFTER_A_ROUND = 2  # most committed tokens left to read: an accepted node of the deepest level, and pending


class DrafterCache:
    """Keeps a drafter's model in step with the committed tokens, and reuses the accepted part of its draft.

    Attributes:
        model: the model that owns the slots.
        cached: [B] int64: number of slots of each row that hold committed tokens.
    """

    def __init__(self, model: CachedLM):
        self.model = model
        self._buffer = FixedBuffer()
        self.cached = torch.zeros(0, dtype=torch.int64)

    def begin(self, num_rows: int, capacity: int) -> None:
        """Clear all rows and allocate slots, as `CachedLM.begin`."""
        self.model.begin(num_rows, capacity)
        self.cached = self._buffer.zeros((num_rows,), dtype=torch.int64, device=self.model.device)
        self._capacity = capacity
        self._backlog = Backlog(capacity, None)

    def begin_with(self, sequences: Sequences) -> None:
        """Begin with the number of rows and slots of these sequences, and read their sources and tokens."""
        self.begin(*sequences.tokens.shape)
        self.model.read_sources(sequences)
        if self.model.is_recurrent:
            self.catch_up(sequences)
        else:
            self.model.read_all(sequences)
            self.cached.copy_(sequences.lengths)
        self._backlog.most = AFTER_A_ROUND  # the bound after every later round, although only pending is left

    def begin_rows(self, rows: list[int], sequences: Sequences) -> None:
        """Begin other sequences in some rows, and read all their tokens; the other rows stay."""
        self.model.read_rows(sequences, rows)
        self.cached[rows] = sequences.lengths

    def catch_up(self, sequences: Sequences) -> Tensor:
        """Read every committed token that is not cached yet, always including pending.

        Returns:
            [B, V] logits after pending.
        """
        return self.read(sequences).logits[:, 0]

    def read(self, sequences: Sequences) -> ForwardOutput:
        """As `catch_up`, with the pass whose only scored token is pending."""
        if self.model.recurrent is not None:
            # The next round restarts from these states, whatever part of this draft is accepted.
            self.model.replay(sequences)
            self.model.recurrent.states.save()
            pending = sequences.pending.unsqueeze(1)
            return self.model.forward(pending, sequences.lengths - 1, visible=sequences.longest)
        start: Tensor | None
        if self._backlog.most is None:
            start = torch.minimum(self.cached, sequences.lengths - 1)
            num_tokens, furthest = torch.stack([(sequences.lengths - start).max(), start.max()]).tolist()
        else:
            num_tokens = furthest = self._backlog.size_of_pass()
            start = (sequences.lengths - num_tokens).clamp(min=0)
        index = start.unsqueeze(1) + torch.arange(num_tokens, device=start.device)
        index = index.clamp_(max=sequences.tokens.shape[1] - 1)
        output = self.model.forward(
            sequences.tokens.gather(1, index),
            start if furthest else None,
            visible=sequences.longest,
            keep=sequences.lengths - 1 - start,
        )
        self.cached.copy_(sequences.lengths)
        self._backlog.most = None
        return output

    def keep_accepted(self, sequences: Sequences, outcome: Outcome) -> None:
        """Keep the cached slots of accepted nodes.

        Call after the commit, if the model had read all tokens committed before and all nodes of the draft but the
        deepest. The host then has a bound on the tokens left to read, and `catch_up` does not synchronise with the
        device.
        """
        draft = outcome.draft
        if draft.num_nodes:
            before = sequences.lengths - outcome.num_committed
            self.model.keep_path(draft.tree, draft.tree.path(outcome.stop), after=before)
            num_read = outcome.num_accepted.clamp(max=draft.tree.deepest - 1)
            self.cached.copy_(torch.minimum(before + num_read, sequences.lengths))
            self._backlog.most = AFTER_A_ROUND
        elif not torch.compiler.is_compiling():  # `resume` gets the number of tokens of compiled rounds
            self._backlog.add(1)

    def follow(self, outcome: Outcome) -> None:
        """Leave the tokens of a round that another drafter drafted to the next pass."""
        self._backlog.add(outcome.draft.tree.deepest + 1)

    def resume(self, sequences: Sequences, num_tokens: int) -> None:
        """Read what more than a round has committed, num_tokens of it in compiled rounds without a draft (`Resuming`).

        A recurrent model has no such bound: it reads everything when it drafts.
        """
        self._backlog.add(num_tokens)
        if self.model.recurrent is None and (self._backlog.most or 0) > AFTER_A_ROUND:
            self.catch_up(sequences)
            self._backlog.most = AFTER_A_ROUND

    def rewind(self, sequences: Sequences) -> None:
        """Roll back to sequences from which tokens were removed; pending will be read again (`Rewindable`)."""
        if self.model.is_recurrent:
            self.begin(sequences.num_rows, self._capacity)  # states of earlier rounds are not kept
            return
        self.cached.clamp_(max=sequences.lengths - 1)
        self._backlog.most = AFTER_A_ROUND  # pending, and the token before it if that was pending in the last round
