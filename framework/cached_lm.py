"""CachedLM: a Hugging Face decoder whose rows advance and roll back separately. Serves target and drafter alike.

The decoder of an encoder-decoder model is one too, once it has read a source per row.

Slot = position: row b's token at position t lives in cache slot t. A query at position t sees the slots up to t, so
rolling back is only a smaller start at the next pass: stale slots are never seen before they are overwritten.
"""

import copy
import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from framework.cache_slots import Slots
from framework.conditioned_decoder import ConditionedDecoder, decoder_start, num_decoder_layers
from framework.draft import Outcome
from framework.refusal import longest_context, refusal
from framework.sequences import Sequences, power_of_two
from framework.tree import Tree

# Logits of more fed tokens than this are computed only where they are asked for.
FEW_TOKENS = 16
FEWEST_PROBED, MOST_PROBED = 8, FEW_TOKENS + 4  # tokens of a text; the latter shows long passes, too


class CachedLM:
    """A causal language model with one cache slot per row and position.

    Attributes:
        model: the Hugging Face model, in evaluation mode; never edited.
        text_start: the tokens that every text begins with where a source is read besides; empty in decoder-only models.
        vocabulary_size: width of the logits handed out. Rows of the output layer beyond it are padding and cut off;
            missing ones are filled with -inf, and such tokens are read as the last one the model knows.
        context: most positions a row may have.
        cached: [B] int64: slots of each row that hold committed tokens.
        states: [B, M, H] what the output layer reads of all tokens of the latest pass.
        hidden: [B, M, H], or [B, 1, H] with keep: those of them that the logits were made from.
    """

    states: Tensor
    hidden: Tensor

    def __init__(self, model: PreTrainedModel, *, vocabulary_size: int, context: int | None = None):
        """
        Raises:
            ValueError: the model cannot be served exactly; the message gives the reason.
        """
        if reason := refusal(model, context):
            raise ValueError(f"{_name(model)} cannot be served: {reason}")
        self.model = model.eval()
        self.vocabulary_size = vocabulary_size
        self.context: int = context or longest_context(model.config.get_text_config()) or 0
        self.text_start = decoder_start(model) if model.config.is_encoder_decoder else []
        self.cached = torch.zeros(0, dtype=torch.int64)
        self._watched = _OutputLayerInput(self.model)
        self._last_known = model.config.get_text_config().vocab_size - 1
        self._slots = Slots(num_decoder_layers(model))
        self._decoder: Any = model
        if self.text_start:
            self._decoder = ConditionedDecoder(model, self._slots.cache)
        self._probe()

    @property
    def device(self) -> torch.device:
        return self.model.device

    def begin(self, num_rows: int, capacity: int) -> None:
        """Forget all rows and make room for num_rows of `capacity` slots: committed tokens, a draft, and one more."""
        self._slots.begin(num_rows, capacity, self.device)
        self.cached = torch.zeros(num_rows, dtype=torch.int64, device=self.device)
        self._most_uncached: int | None = None  # no row has more committed tokens to read; None: the host does not know

    def read_sources(self, sequences: Sequences) -> None:
        """Encode the sources of these sequences, once for all passes to come; nothing to do in a decoder-only model."""
        if self.text_start:
            self._decoder.read(sequences.source, sequences.source_mask)

    def forward(
        self,
        tokens: Tensor,
        start: Tensor | None,
        *,
        visible: int,
        keep: Tensor | None = None,
        tree: Tree | None = None,
        first: int = 0,
    ) -> Tensor:
        """Read tokens at the positions from start[b] on, writing their slots.

        Nodes of a tree lie in slots in their own order, each at the position its depth says and blind to all nodes
        but its ancestors; `keep_path` moves the accepted ones into place.

        Args:
            tokens: [B, M] int64.
            start: [B] int64 position of tokens[:, 0]; None is the beginning of every row.
            visible: how many slots the row that sees most may see, known to the host: the largest position among the
                tokens that matter, plus 1 (M where start is None). What lies behind it is neither seen nor needed.
            keep: [B] int64 index in 0..M-1 of the one token per row whose logits are wanted; None keeps all.
            tree: how tokens hang together; start is then where pending lies. None, like a chain, is one after another.
            first: tokens[:, 0] is this row of the tree's [pending, nodes...].

        Returns:
            [B, M, V] logits (or [B, 1, V] with keep): row j scores the token after tokens[:, j].
        """
        num_tokens = tokens.shape[1]
        slots = self._slots.ids[first : first + num_tokens].expand(len(tokens), -1)
        if start is not None:
            # Rows that need fewer tokens than M run past their end: into the last slot, not into the next row.
            slots = (start.unsqueeze(1) + slots).clamp_(max=self._slots.capacity - 1)
        visible = min(visible, self._slots.capacity)
        self._slots.aim(slots, visible=visible)
        key_positions = self._slots.ids[:visible].unsqueeze(0)
        if tree is None or tree.is_chain:
            positions, mask = slots, self._mask(start, slots, visible)
        else:
            assert start is not None, "the nodes of a tree lie behind something committed"
            positions = start.unsqueeze(1) + tree.depth[:, first : first + num_tokens]
            mask = self._slots.tree_mask(start, tree.sees[:, first : first + num_tokens], visible, self.model.dtype)
            if self.text_start:
                key_positions = self._tree_positions(start, tree.depth, visible)
        if self._last_known < self.vocabulary_size - 1:
            tokens = tokens.clamp(max=self._last_known)
        # Inference mode saves a twentieth of the pass.
        quietly = torch.no_grad() if torch.compiler.is_compiling() else torch.inference_mode()
        with quietly, self._watched.letting_through(keep if num_tokens > FEW_TOKENS else None):
            logits = self._decoder(
                input_ids=tokens,
                attention_mask=mask,
                # Tokens past the context belong to no committed row; they only must not index out of the table.
                position_ids=positions.clamp(max=self.context - 1),
                past_key_values=self._slots.cache,
                use_cache=True,
                **({"key_positions": key_positions} if self.text_start else {}),
            ).logits
        # Of a model on several devices the output layer's input lies where that layer does.
        made = (self._to_vocabulary(logits).to(tokens.device), self._watched.states.to(tokens.device))
        # What is copied out of inference mode is an ordinary tensor again, fit to be trained on.
        logits, self.states = (each.clone() for each in made)
        self.hidden = self.states if keep is None else _rows_of(self.states, keep)
        return logits if keep is None or logits.shape[1] == 1 else _rows_of(logits, keep)

    def keep_path(self, tree: Tree, path: Tensor, *, after: Tensor) -> None:
        """Move what was read of a path's nodes to where its tokens belong; a chain lies there already.

        Args:
            tree: its nodes were read with `first` 0 and lie from slot after[b] on.
            path: [B, depth] int64: the node for each depth from 1 on; an entry that names its own place stays.
            after: [B] int64: slot of the first node, which is where the path will begin.
        """
        if tree.is_chain:
            return
        begin = after.unsqueeze(1)
        self._slots.move(begin + path, begin + self._slots.ids[: path.shape[1]])

    def begin_with(self, sequences: Sequences) -> None:
        """Begin with as many rows and slots as these sequences have, and read all that they hold."""
        self.begin(*sequences.tokens.shape)
        self.read_sources(sequences)
        self.catch_up(sequences)
        self._most_uncached = 2  # as after every other round (`keep_accepted`), although one is all there is

    def catch_up(self, sequences: Sequences) -> Tensor:
        """Read every committed token that is not cached yet, pending always included.

        Returns:
            [B, V] logits of what follows pending.
        """
        start: Tensor | None
        if self._most_uncached is None:
            start = torch.minimum(self.cached, sequences.lengths - 1)
            num_tokens, furthest = torch.stack([(sequences.lengths - start).max(), start.max()]).tolist()
        else:
            num_tokens = furthest = power_of_two(self._most_uncached)
            start = (sequences.lengths - num_tokens).clamp(min=0)
        index = (start.unsqueeze(1) + self._slots.ids[:num_tokens]).clamp_(max=sequences.tokens.shape[1] - 1)
        logits = self.forward(
            sequences.tokens.gather(1, index),
            start if furthest else None,
            visible=sequences.longest,
            keep=sequences.lengths - 1 - start,
        )
        self.cached, self._most_uncached = sequences.lengths, None
        return logits[:, 0]

    def keep_accepted(self, sequences: Sequences, outcome: Outcome) -> None:
        """Keep what this model, a drafter's, has read of its draft, as far as it was accepted.

        To be called after the commit, by a drafter that read all that was committed before, and of its draft all
        nodes but the deepest. The host then knows how little is left to read, and `catch_up` does not ask the device.
        """
        draft = outcome.draft
        if draft.num_nodes:
            before = sequences.lengths - outcome.num_committed
            self.keep_path(draft.tree, draft.tree.path(outcome.stop), after=before)
            num_read = outcome.num_accepted.clamp(max=draft.tree.deepest - 1)
            self.cached = torch.minimum(before + num_read, sequences.lengths)
            self._most_uncached = 2  # an accepted node that is among the deepest, and what follows it
        elif self._most_uncached is not None:
            # In programs it is a number that they are made for: doubled, it takes few values. No row has more to read.
            more = self._most_uncached if torch.compiler.is_compiling() else 1
            self._most_uncached = min(self._most_uncached + more, self._slots.capacity)

    def rewind(self, sequences: Sequences) -> None:
        """Keep what was read of rows that tokens were taken back from, but for what is pending now (`Rewindable`)."""
        self.cached = torch.minimum(self.cached, sequences.lengths - 1)
        self._most_uncached = 2  # pending, and what stands before it if it was pending when tokens were taken back

    def sharing_cache(self, model: PreTrainedModel) -> "CachedLM":
        """The same rows and slots, read and written by another module; `begin` is this one's to call.

        Args:
            model: one that borrows this one's layers, each attention with its `layer_idx`. What it writes is its own
                keys and values: slots that this model is to see must be read by this model again.
        """
        shared = copy.copy(self)
        shared.model = model
        shared._decoder = self._decoder.sharing_sources(model) if self.text_start else model
        if model.get_output_embeddings() is not self.model.get_output_embeddings():
            shared._watched = _OutputLayerInput(model)
        return shared

    def _mask(self, start: Tensor | None, positions: Tensor, visible: int) -> Tensor | None:
        """[B, 1, M, visible]: 0 on slots up to a token's position, the lowest number behind it."""
        # Plainly causal, or one token that sees all there is: without a mask attention is faster. Where every slot is
        # visible nobody knows how much there is.
        if start is None or (positions.numel() == 1 and visible < self._slots.capacity):
            return None
        return self._slots.mask_behind(positions, visible, self.model.dtype)

    def _tree_positions(self, start: Tensor, depth: Tensor, visible: int) -> Tensor:
        """[B, visible] int64: where what lies in each slot stands; nodes of a tree stand as deep as they are."""
        row = (self._slots.ids[:visible] - start.unsqueeze(1)).clamp(min=0, max=depth.shape[1] - 1)
        behind = start.unsqueeze(1) + depth.expand(len(start), -1).gather(1, row)
        return torch.where(self._slots.ids[:visible] > start.unsqueeze(1), behind, self._slots.ids[:visible])

    def uncached(self, tokens: Tensor, source: list[int] | None = None) -> Tensor:
        """[B, T, V] logits of whole texts by one pass of the model itself, without a cache.

        Args:
            tokens: [B, T] int64.
            source: of all of them; None for decoder-only models.
        """
        inputs = {"input_ids": tokens}
        if source is not None:
            sources = torch.tensor([source], device=tokens.device).expand(len(tokens), -1)
            inputs = {"input_ids": sources, "decoder_input_ids": tokens}
        return self._to_vocabulary(self.model(**inputs, use_cache=False).logits)

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
        if self.context < FEWEST_PROBED:
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
                f"{error:.1e} of their size; it is not causal, takes positions from cache slots, or its output layer "
                "looks at more than one token"
            )

    @torch.no_grad()
    def _rollback_error(self) -> float:
        """Largest difference between cached and uncached logits, as a share of 1 + the largest logit."""
        most = min(self.vocabulary_size, self._last_known + 1)
        width = min(self.context, MOST_PROBED)
        tokens = torch.randint(0, most, (2, width), generator=torch.Generator().manual_seed(0)).to(self.device)
        start = torch.tensor([width - 3, 2], device=self.device)
        source = tokens.flip(1) if self.text_start else None
        self.begin(2, width)
        if source is not None:
            self._decoder.read(source, torch.ones_like(source, dtype=torch.bool))
        self.forward(tokens.flip(1), None, visible=width)  # what is to be rolled back
        read = self.forward(tokens[:, :-3], None, visible=width - 3, keep=torch.full_like(start, width - 4))
        continued = tokens.gather(1, start.unsqueeze(1) + torch.arange(3, device=self.device))
        cached = self.forward(continued, start, visible=width)
        errors = []
        for row, (end, logits) in enumerate([(width, torch.cat([read[0], cached[0]])), (5, cached[1])]):
            its_source = None if source is None else source[row].tolist()
            uncached = self.uncached(tokens[row : row + 1, :end], its_source)[0, -len(logits) :]
            # Not over the filling of a vocabulary wider than the model.
            expected, got = uncached[:, :most].double(), logits[:, :most].double()
            errors.append((expected - got).abs().max() / (1 + expected.abs().max()))
        return float(torch.stack(errors).max())


def _name(model: PreTrainedModel) -> str:
    return f"{type(model).__name__} ({model.config.name_or_path or 'built in memory'})"


def _rows_of(tensor: Tensor, index: Tensor) -> Tensor:
    """[B, 1, ...]: one row of each [B, M, ...]; index is [B] int64."""
    return tensor[torch.arange(len(index), device=index.device), index].unsqueeze(1)


class _OutputLayerInput:
    """Keeps what a model handed to its output layer in the latest pass, for as long as this object lives."""

    def __init__(self, model: PreTrainedModel):
        seen: list[Tensor] = [torch.empty(0)]
        wanted: list[Tensor | None] = [None]

        def keep(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            seen[0], index = inputs[0], wanted[0]
            return inputs if index is None else (_rows_of(inputs[0], index.to(inputs[0].device)), *inputs[1:])

        self._seen, self._wanted = seen, wanted
        weakref.finalize(self, model.get_output_embeddings().register_forward_pre_hook(keep).remove)

    @contextmanager
    def letting_through(self, index: Tensor | None) -> Iterator[None]:
        """Within, the output layer reads one token of every row alone, [B] int64, or all."""
        self._wanted[0] = index
        try:
            yield
        finally:
            self._wanted[0] = None

    @property
    def states(self) -> Tensor:
        """[B, M, H] of all tokens."""
        return self._seen[0]
