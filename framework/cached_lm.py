"""CachedLM: a Hugging Face decoder whose rows advance and roll back separately. Serves target and drafter alike.

Slot = position: row b's token at position t lives in cache slot t. A query at position t sees the slots up to t, so
rolling back is only a smaller start at the next pass: stale slots are never seen before they are overwritten.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from framework.refusal import refusal
from framework.sequences import Sequences

# Logits of more fed tokens than this are computed only where they are asked for.
FEW_TOKENS = 16
PROBE_TOKENS = 8


class CachedLM:
    """A causal language model with one cache slot per row and position.

    Attributes:
        model: the Hugging Face model, in evaluation mode; never edited.
        vocabulary_size: width of the logits handed out. Rows of the output layer beyond it are padding and cut off;
            missing ones are filled with -inf, and such tokens are read as the last one the model knows.
        context: most positions a row may have.
        cached: [B] int64: slots of each row that hold committed tokens.
    """

    def __init__(self, model: PreTrainedModel, *, vocabulary_size: int, context: int | None = None):
        """
        Raises:
            ValueError: the model cannot be served exactly; the message gives the reason.
        """
        if reason := refusal(model, context):
            raise ValueError(f"{_name(model)} cannot be served: {reason}")
        self.model = model.eval()
        self.vocabulary_size = vocabulary_size
        self.context: int = context or model.config.get_text_config().max_position_embeddings
        self.cached = torch.zeros(0, dtype=torch.int64)
        self._last_known = model.config.get_text_config().vocab_size - 1
        self._slots = _Slots(0, 0)
        self._cache = Cache(layers=[])
        self._probe()

    @property
    def device(self) -> torch.device:
        return self.model.device

    def begin(self, num_rows: int, capacity: int) -> None:
        """Forget all rows and make room for num_rows of `capacity` slots: committed tokens, a draft, and one more."""
        if (num_rows, capacity) == (self._slots.num_rows, self._slots.capacity):
            # What a failed generation left behind may be a NaN, and a masked NaN is still a NaN.
            with torch.inference_mode():
                self._cache.reset()
        else:
            self._slots = _Slots(num_rows, capacity)
            num_layers = self.model.config.get_text_config().num_hidden_layers
            self._cache = Cache(layers=[_SlotLayer(self._slots) for _ in range(num_layers)])
        self._slot_ids = torch.arange(capacity, device=self.device)
        self._row_offsets = torch.arange(num_rows, device=self.device).unsqueeze(1) * capacity
        self.cached = torch.zeros(num_rows, dtype=torch.int64, device=self.device)

    def forward(self, tokens: Tensor, start: Tensor | None, *, visible: int, keep: Tensor | None = None) -> Tensor:
        """Read tokens at the positions from start[b] on, writing their slots.

        Args:
            tokens: [B, M] int64.
            start: [B] int64 position of tokens[:, 0]; None is the beginning of every row.
            visible: how many slots the row that sees most may see, known to the host: the largest position among the
                tokens that matter, plus 1 (M where start is None). What lies behind it is neither seen nor needed.
            keep: [B] int64 index in 0..M-1 of the one token per row whose logits are wanted; None keeps all.

        Returns:
            [B, M, V] logits (or [B, 1, V] with keep): row j scores the token after tokens[:, j].
        """
        num_tokens = tokens.shape[1]
        positions = self._slot_ids[:num_tokens].expand(len(tokens), -1)
        if start is not None:
            # Rows that need fewer tokens than M run past their end: into the last slot, not into the next row.
            positions = (start.unsqueeze(1) + positions).clamp_(max=self._slots.capacity - 1)
        visible = min(visible, self._slots.capacity)
        self._slots.writes = (self._row_offsets + positions).flatten()
        self._slots.visible, self._slots.num_tokens = visible, num_tokens
        kept = torch.unique(keep) if keep is not None and num_tokens > FEW_TOKENS else None
        mask = self._mask(start, positions, visible)
        if self._last_known < self.vocabulary_size - 1:
            tokens = tokens.clamp(max=self._last_known)
        # Inference mode saves a twentieth of the pass; the copy is an ordinary tensor again, fit to be trained on.
        with torch.inference_mode():
            logits = self.model(
                input_ids=tokens,
                attention_mask=mask,
                # Tokens past the context belong to no committed row; they only must not index out of the table.
                position_ids=positions.clamp(max=self.context - 1),
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=0 if kept is None else kept,
            ).logits
        logits = self._to_vocabulary(logits).clone()
        if keep is not None:
            # A model may hand out all rows all the same.
            index = keep if kept is None or logits.shape[1] == num_tokens else torch.searchsorted(kept, keep)
            logits = logits[torch.arange(len(keep), device=keep.device), index].unsqueeze(1)
        return logits

    def catch_up(self, sequences: Sequences) -> Tensor:
        """Read every committed token that is not cached yet, pending always included.

        Returns:
            [B, V] logits of what follows pending.
        """
        start = torch.minimum(self.cached, sequences.lengths - 1)
        num_tokens, furthest = torch.stack([(sequences.lengths - start).max(), start.max()]).tolist()
        index = (start.unsqueeze(1) + self._slot_ids[:num_tokens]).clamp_(max=sequences.tokens.shape[1] - 1)
        logits = self.forward(
            sequences.tokens.gather(1, index),
            start if furthest else None,
            visible=sequences.longest,
            keep=sequences.lengths - 1 - start,
        )
        self.cached = sequences.lengths
        return logits[:, 0]

    def _mask(self, start: Tensor | None, positions: Tensor, visible: int) -> Tensor | None:
        """[B, 1, M, visible]: 0 on slots up to a token's position, the lowest number behind it."""
        if start is None or positions.numel() == 1:
            return None  # plainly causal, or one token that sees all there is: without a mask attention is faster
        behind = (self._slot_ids[:visible] > positions.unsqueeze(2)).unsqueeze(1)
        # Additive, because eager attention is silently wrong with a bool mask and sdpa converts one in every layer.
        dtype = self.model.dtype
        mask = torch.zeros(behind.shape, dtype=dtype, device=behind.device)
        return mask.masked_fill_(behind, torch.finfo(dtype).min)

    def _to_vocabulary(self, logits: Tensor) -> Tensor:
        missing = self.vocabulary_size - logits.shape[-1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return logits[..., : self.vocabulary_size]

    def _probe(self) -> None:
        """Roll a ragged cache back and compare with uncached passes: catches what no config says, ALiBi for example.

        Raises:
            ValueError: they differ, or the model cannot be called this way at all.
        """
        if self.context < PROBE_TOKENS:
            return
        try:
            error = self._rollback_error()
        except torch.OutOfMemoryError:
            raise
        except Exception as failure:  # whatever a foreign forward may raise
            reason = f"it does not run with a cache and positions of ours ({type(failure).__name__}: {failure})"
            raise ValueError(f"{_name(self.model)} cannot be served: {reason}") from failure
        if math.isnan(error):
            raise ValueError(f"{_name(self.model)} cannot be served: its logits hold NaN; try target.dtype=float32")
        if not error < (1e-4 if self.model.dtype in (torch.float32, torch.float64) else 5e-2):
            raise ValueError(
                f"{_name(self.model)} cannot be served: its logits after a roll-back differ from uncached ones by "
                f"{error:.1e} of their size; it is not causal, or takes positions from cache slots"
            )

    @torch.no_grad()
    def _rollback_error(self) -> float:
        """Largest difference between cached and uncached logits, as a share of 1 + the largest logit."""
        most = min(self.vocabulary_size, self._last_known + 1)
        tokens = torch.randint(0, most, (2, PROBE_TOKENS), generator=torch.Generator().manual_seed(0)).to(self.device)
        start = torch.tensor([PROBE_TOKENS - 3, 2], device=self.device)
        self.begin(2, PROBE_TOKENS)
        self.forward(tokens.flip(1), None, visible=PROBE_TOKENS)  # what is to be rolled back
        self.forward(tokens[:, :-3], None, visible=PROBE_TOKENS - 3)
        continued = tokens.gather(1, start.unsqueeze(1) + torch.arange(3, device=self.device))
        cached = self.forward(continued, start, visible=PROBE_TOKENS)
        errors = []
        for row, end in enumerate((PROBE_TOKENS, 5)):
            uncached = self.model(input_ids=tokens[row : row + 1, :end], use_cache=False).logits[0, -3:]
            # Not over the filling of a vocabulary wider than the model.
            expected, got = uncached[:, :most].double(), cached[row, :, :most].double()
            errors.append((expected - got).abs().max() / (1 + expected.abs().max()))
        return float(torch.stack(errors).max())


def _name(model: PreTrainedModel) -> str:
    return f"{type(model).__name__} ({model.config.name_or_path or 'built in memory'})"


@dataclass
class _Slots:
    """The room there is, and where the pass under way writes and how far it sees; shared by all layers."""

    num_rows: int
    capacity: int
    num_tokens: int = field(init=False)
    visible: int = field(init=False)
    writes: Tensor = field(init=False)  # [B * M] int64 into the slots of all rows laid end to end


class _SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, [B, capacity, heads, dim]: a slot is one contiguous row to copy into."""

    def __init__(self, slots: _Slots):
        super().__init__()
        self.slots = slots

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        rows, capacity = self.slots.num_rows, self.slots.capacity
        self.keys, self.values = (
            torch.zeros(rows, capacity, s.shape[1], s.shape[3], dtype=s.dtype, device=s.device)
            for s in (key_states, value_states)
        )
        self._flat_keys, self._flat_values = self.keys.flatten(0, 1), self.values.flatten(0, 1)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        slots = self.slots
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._flat_keys.index_copy_(0, slots.writes, key_states.transpose(1, 2).flatten(0, 1))
        self._flat_values.index_copy_(0, slots.writes, value_states.transpose(1, 2).flatten(0, 1))
        return self.keys[:, : slots.visible].transpose(1, 2), self.values[:, : slots.visible].transpose(1, 2)

    # Asked only when a pass comes without a mask: a single token of a single row, or rows from their beginning.
    def get_seq_length(self) -> int:
        return self.slots.visible - self.slots.num_tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.slots.visible, 0

    def get_max_length(self) -> int:
        return self.slots.capacity
