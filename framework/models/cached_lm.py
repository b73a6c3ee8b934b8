"""CachedLM: a Hugging Face decoder whose rows advance and roll back independently, for targets and drafters.

The decoder of an encoder-decoder model works the same way once it has read one source per row.

Slot = position: the token of row b at position t is in cache slot t. A query at position t sees the slots up to t.
To roll back, start the next pass at a smaller position: stale slots are overwritten before any query sees them.
"""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from framework.core.cached_property import cached_property
from framework.core.memory import keep_freed_memory
from framework.core.sequences import Sequences, source_width
from framework.core.tree import Tree
from framework.kernels.compiled_graphs import Compiled, Varying, eager_products
from framework.models.attention import FLEX, attention_of, own_attention, running_with
from framework.models.attention_masks import AttentionMasks, Branches
from framework.models.cache_slots import Slots
from framework.models.encoder_decoder import ConditionedDecoder, decoder_start, num_decoder_layers
from framework.models.forward_output import ForwardOutput, LayerHooks, OutputLayerHook, rows_of
from framework.models.model_support import has_dynamic_frequencies, longest_context, why_unsupported
from framework.models.probe import probe
from framework.models.recurrent_reading import RecurrentReader
from framework.models.recurrent_states import RecurrentStates, WithoutPositions, cache_kinds, only_recurrent_layers
from framework.models.tensor_parallel import is_sharded

# Passes over more tokens per row than this compute only the logits selected by `keep`.
FEW_TOKENS = 16


class CachedLM:
    """A causal language model with one cache slot per row and position.

    Attributes:
        model: the Hugging Face model, in evaluation mode; its weights and modules are never modified.
        text_start: tokens at the beginning of every text of an encoder-decoder model; empty in decoder-only models.
        vocabulary_size: width of the returned logits. Rows of the output layer beyond it are padding and cut off.
            Logits of tokens that the model does not know are -inf; such tokens are read as the last known one.
        num_known: number of tokens that the model was trained with; no other tokens are drafted.
        context: most positions that a row may have.
        masks: attention masks of its passes; `probe` shortens their spans.
        recurrent: reader of its recurrent layers; None: it has none.
        num_begun: generations begun so far.
        is_sharded: whether other processes hold parts of it, and run the same passes.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        vocabulary_size: int,
        context: int | None = None,
        num_known: int | None = None,
        prefill_chunk: int | None = None,
        compile_prefill: bool = False,
    ):
        """
        Args:
            model: a causal or encoder-decoder model.
            vocabulary_size: width of the returned logits.
            context: most positions that a row may have; None: the model's own limit.
            num_known: number of tokens that the model was trained with, if its tokenizer has fewer than the target's;
                None: the vocabulary size in its config.
            prefill_chunk: most tokens per row that one pass reads of a prompt; None: all of them.
            compile_prefill: whether compiled decoders compile the prefill, too; on a CPU only.

        Raises:
            ValueError: the model cannot be served exactly, or not in chunks, or compile_prefill is set for a GPU; the
                message gives the reason.
        """
        if reason := why_unsupported(model, context):
            raise ValueError(f"{_name(model)} cannot be served: {reason}")
        keep_freed_memory()
        self.model = model.eval()
        self.num_begun = 0
        self.is_sharded = is_sharded(model)
        self.vocabulary_size = vocabulary_size
        self.prefill_chunk = prefill_chunk
        self.compile_prefill = compile_prefill
        self.context: int = context or longest_context(model.config.get_text_config()) or 0
        self.text_start = decoder_start(model) if model.config.is_encoder_decoder else []
        self._output_layer, self._layers = OutputLayerHook(self.model), LayerHooks(self.model)
        config = model.config.get_text_config()
        self.num_known = min(config.vocab_size, num_known or config.vocab_size)
        self._slots = Slots(num_decoder_layers(model), context=self.context, kinds=cache_kinds(config))
        self.masks = AttentionMasks(config)
        self._masks_in_blocks = self.attention == FLEX
        states = RecurrentStates.of(self._slots.cache)
        self.recurrent = None if states is None else RecurrentReader(states, self._slots)
        self._decoder: Any = WithoutPositions(model) if only_recurrent_layers(config) else model
        if self.text_start:
            self._decoder = ConditionedDecoder(model, self._slots.cache)
        if prefill_chunk is not None:
            self.refuse_recurrent(f"target.prefill_chunk is {prefill_chunk}", "null")
        if compile_prefill and self.device.type != "cpu":
            raise ValueError(f"target.compile_prefill is true, and the device is {self.device}; allowed: false")
        if reason := probe(self):
            raise ValueError(f"{_name(model)} cannot be served: {reason}")

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def attention(self) -> str:
        """Name of the attention implementation in use."""
        return attention_of(self.model)

    @property
    def is_recurrent(self) -> bool:
        """Whether layers keep recurrent states, which `replay` rolls back once a round is committed."""
        return self.recurrent is not None

    @property
    def one_by_one(self) -> bool:
        """Whether recurrent layers read a draft in one pass per token, so that speculation cannot pay off."""
        return self.recurrent is not None and self.recurrent.one_by_one

    @property
    def why_no_graphs(self) -> str | None:
        """Reason why rounds of this model cannot be compiled, and the alternatives; None: they can."""
        name = _name(self.model)
        if self._masks_in_blocks and self.device.type == "cpu":  # inductor finds no kernel (NoValidChoicesError)
            return (
                "target.attention is 'flex', which PyTorch does not compile for a CPU; allowed: false, or "
                "target.attention=fused"
            )
        if self.is_recurrent:
            return f"{name} has recurrent layers; allowed: false"
        if self.is_sharded:
            return "target.tensor_parallel is 'auto'; allowed: false"
        if has_dynamic_frequencies(self.model):
            return f"{name} has dynamic rotary positions; allowed: false, or save it, and load its folder (target.path)"
        return None

    def refuse_compiling(self) -> None:
        """Reject a model whose rounds cannot be compiled.

        Raises:
            ValueError: there is a reason against it (`why_no_graphs`).
        """
        if self.why_no_graphs is not None:
            raise ValueError(f"engine.compile is true, and {self.why_no_graphs}")

    def refuse_refilling(self) -> None:
        """Reject a model that cannot read the prompts of single rows.

        Raises:
            ValueError: the model has recurrent layers, or reads a source per row.
        """
        self.refuse_recurrent("refill is true", "false")
        if self.text_start:
            raise ValueError(f"refill is true, and {_name(self.model)} reads a source per row; allowed: false")

    def refuse_recurrent(self, given: str, allowed: str) -> None:
        """Reject a model with recurrent layers, for a use that is not exact with them.

        Args:
            given: the use, as the beginning of the message.
            allowed: the alternatives, as its end.

        Raises:
            ValueError: the model has recurrent layers.
        """
        if self.is_recurrent:
            raise ValueError(f"{given}, and {_name(self.model)} has recurrent layers; allowed: {allowed}")

    def refuse_layers(self, layers: Sequence[int], given: str) -> None:
        """Reject layers whose states a pass cannot capture.

        Args:
            layers: the layers.
            given: their use, as the beginning of the message.

        Raises:
            ValueError: a layer out of range.
        """
        if not all(0 <= layer <= self._layers.num_layers for layer in layers):
            raise ValueError(
                f"{given} the hidden layers {list(layers)} of {_name(self.model)}; allowed: 0, its embeddings, to "
                f"{self._layers.num_layers}, the output of its last layer"
            )

    def begin(self, num_rows: int, capacity: int) -> None:
        """Clear all rows and make room for num_rows of `capacity` slots: committed tokens, a draft, and one more."""
        self.num_begun += 1
        self._slots.begin(num_rows, capacity, self.device)
        if self.recurrent is not None:
            self.recurrent.states.begin(num_rows)

    def read_sources(self, sequences: Sequences) -> None:
        """Encode the sources of these sequences once for all later passes; no effect in a decoder-only model."""
        source, mask = sequences.source, sequences.source_mask
        if self.text_start and source is not None and mask is not None:
            num_read = source.shape[1]
            if self.device.type == "cpu":  # buffers of other devices are no wider, and counting would wait for them
                num_read = source_width(int(mask.any(0).sum()))
            source = source[:, :num_read].clamp(max=self.num_known - 1)
            in_graph = sequences.compiled and self.compile_prefill
            with nullcontext() if in_graph else self._eager(sequences):
                self._decoder.read(source, mask, compiled=in_graph)

    def read_prompts(self, sequences: Sequences, layers: Sequence[int] = ()) -> ForwardOutput:
        """Begin with the rows and slots of these sequences, and read their sources and all their tokens.

        Args:
            sequences: the prompts.
            layers: as for `forward`.

        Returns:
            the pass, with the logits [B, 1, V] of the next token.
        """
        self.begin(*sequences.tokens.shape)
        self.read_sources(sequences)
        return self.read_all(sequences, layers)

    def read_rows(self, sequences: Sequences, rows: list[int], layers: Sequence[int] = ()) -> ForwardOutput:
        """Read all tokens of sequences into these rows alone, from the first slot on; the other rows stay.

        Returns:
            the pass, with the logits [R, 1, V] of the next token.
        """
        if len(rows) > 1 and self._has_prefill_graph(sequences):
            # One after the other by the graph for one row; each number of rows would need its own graph.
            return ForwardOutput.stacked(
                [self.read_rows(sequences.row(place), [row], layers) for place, row in enumerate(rows)]
            )
        with self._slots.only(torch.tensor(rows, device=self.device)):
            return self.read_all(sequences, layers)

    def read_all(self, sequences: Sequences, layers: Sequence[int] = ()) -> ForwardOutput:
        """Read all tokens of sequences from the first slot on, in a compiled graph if `compile_prefill` says so."""
        tokens, longest, keep = sequences.tokens, sequences.longest, sequences.lengths - 1
        if not self._has_prefill_graph(sequences):
            with self._eager(sequences):
                return self._read_first(tokens, longest, keep, layers)
        key = (self._slots.num_rows, self._slots.rows is None, tokens.shape, tuple(layers))
        if not (self._slots.are_made and self._prefill_graph.has(key)):
            with self._eager(sequences):
                self._read_first(tokens, 1, torch.zeros_like(keep), layers)  # makes cache and hooks, as no graph can
            self._slots.are_made = True
        return self._prefill_graph(key, tokens, Varying(longest), keep, tuple(layers))

    def _eager(self, sequences: Sequences) -> AbstractContextManager[object]:
        """Context of an eager pass over prompts; in bfloat16 packed products would serve only the shortest."""
        beside_graphs = sequences.compiled and self.model.dtype == torch.float32
        return eager_products(self.device) if beside_graphs else nullcontext()

    def _has_prefill_graph(self, sequences: Sequences) -> bool:
        """Whether a graph reads these tokens; an encoder-decoder model has one for sources, its texts being short."""
        if not (sequences.compiled and self.compile_prefill) or self.text_start or self.is_recurrent:
            return False
        return FEW_TOKENS < sequences.longest <= (self.prefill_chunk or sequences.longest)

    @cached_property
    def _prefill_graph(self) -> Compiled:
        return Compiled(self._read_first, self.device, name="a prefill")

    def _read_first(self, tokens: Tensor, longest: int, keep: Tensor, layers: Sequence[int]) -> ForwardOutput:
        """Read the first `longest` tokens [B, T] of every row; other arguments as for `forward`."""
        return self.forward(tokens[:, :longest], None, visible=longest, keep=keep, layers=layers)

    def forward(
        self,
        tokens: Tensor,
        start: Tensor | None,
        *,
        visible: int,
        keep: Tensor | None = None,
        tree: Tree | None = None,
        first: int = 0,
        layers: Sequence[int] = (),
    ) -> ForwardOutput:
        """Read tokens at the positions from start[b] on, and write their slots.

        Tree nodes are written to slots in node order. The position of a node is given by its depth, and of all nodes it
        sees only itself and its ancestors. `keep_path` moves the accepted nodes into place.

        Args:
            tokens: [B, M] int64.
            start: [B] int64 position of tokens[:, 0]; None: the beginning of every row.
            visible: number of slots that the pass may see, the most over all rows, known to the host: the largest
                position among the relevant tokens, plus 1 (M if start is None). Later slots are neither seen nor
                needed.
            keep: [B] int64 index in 0..M-1 of the one token per row that needs logits; None: all tokens.
            tree: structure of the tokens; start is then the position of pending. None, or a chain: consecutive tokens.
            first: row of tokens[:, 0] among the tree's [pending, nodes...].
            layers: indices of the `LayerHooks` states that become `ForwardOutput.features`.
        """
        if self.prefill_chunk is not None and tokens.shape[1] > self.prefill_chunk and tree is None:
            size = self.prefill_chunk
            return self._read_in_chunks(tokens, start, size, visible=visible, keep=keep, layers=layers)
        if self.recurrent is None:
            return self._pass(tokens, start, visible=visible, keep=keep, tree=tree, first=first, layers=layers)
        if tree is not None and not tree.is_chain:
            self.refuse_recurrent("a tree is to be read", "chains")
        return self.recurrent.read(partial(self._pass, layers=layers), tokens, start, visible=visible, keep=keep)

    def _read_in_chunks(
        self,
        tokens: Tensor,
        start: Tensor | None,
        size: int,
        *,
        visible: int,
        keep: Tensor | None,
        layers: Sequence[int],
    ) -> ForwardOutput:
        """Read consecutive tokens in passes over at most `size` of them; other arguments as for `forward`."""
        num_tokens, logits = tokens.shape[1], []
        whole: list[Tensor] = []  # one buffer for the states of all chunks, since a long prompt's take much memory
        for first in range(0, num_tokens, size):
            piece = tokens[:, first : first + size]
            last = first + piece.shape[1] - 1
            begin = torch.full_like(tokens[:, 0], first) if start is None else start + first
            is_first = start is None and not first
            seen = last + 1 if start is None else visible
            here = None if keep is None else (keep - first).clamp(0, last - first)
            output = self._pass(piece, None if is_first else begin, visible=seen, keep=here, layers=layers)
            whole = whole or [states.new_empty(*tokens.shape, states.shape[2]) for states in output.by_token]
            for states, read in zip(whole, output.by_token, strict=True):
                states[:, first : last + 1] = read
            logits.append(output.logits)
        if keep is None:
            return ForwardOutput(torch.cat(logits, 1), *whole)
        return ForwardOutput(rows_of(torch.cat(logits, 1), keep // size), *whole, keep=keep)

    def _pass(
        self,
        tokens: Tensor,
        start: Tensor | None,
        *,
        visible: int,
        keep: Tensor | None = None,
        tree: Tree | None = None,
        first: int = 0,
        layers: Sequence[int] = (),
    ) -> ForwardOutput:
        """One call of the model, with the arguments of `forward`."""
        num_tokens = tokens.shape[1]
        slots = self._slots.ids[first : first + num_tokens].expand(len(tokens), -1)
        if start is not None:
            # Rows that need fewer than M tokens run past their end: clamp to the last slot, not into the next row.
            slots = (start.unsqueeze(1) + slots).clamp_(max=self._slots.capacity - 1)
        visible = min(visible, self._slots.capacity)
        key_positions = self._slots.ids[:visible].unsqueeze(0)
        positions, branches = slots, None
        if tree is not None and not tree.is_chain:
            assert start is not None, "a tree needs start, the position of pending"
            positions = start.unsqueeze(1) + tree.depth[:, first : first + num_tokens]
            key_positions = self._slots.positions_of_tree(start, tree.depth, visible)
            branches = Branches(start, positions, tree.sees[:, first : first + num_tokens], tree.depth)
        mask = self._mask(start, slots, key_positions, branches)
        if self.num_known < self.vocabulary_size:
            tokens = tokens.clamp(max=self.num_known - 1)
        # Inference mode saves a twentieth of the pass.
        quietly = torch.no_grad() if torch.compiler.is_compiling() else torch.inference_mode()
        kept_logits = self._output_layer.letting_through(keep if num_tokens > FEW_TOKENS else None)
        captured = self._layers.capturing(layers) if layers else nullcontext()
        with quietly, kept_logits, captured, self._slots.in_pass(slots, visible=visible):
            logits = self._decoder(
                input_ids=tokens,
                attention_mask=mask,
                # Tokens past the context are never committed, but must not index beyond a table of positions.
                position_ids=positions.clamp(max=self.context - 1),
                past_key_values=self._slots.cache,
                use_cache=True,
                **({"key_positions": key_positions} if self.text_start else {}),
            ).logits
        # In a model on several devices, the input of the output layer is on that layer's device.
        made = [self._to_vocabulary(logits), self._output_layer.take()]
        if layers:
            made.append(self._layers.take(layers))
        # Copies made outside inference mode are ordinary tensors, which training can use.
        logits, *states = (each.to(tokens.device).clone() for each in made)
        if keep is not None and logits.shape[1] > 1:
            logits = rows_of(logits, keep)
        return ForwardOutput(logits, *states, keep=keep)

    def keep_path(self, tree: Tree, path: Tensor, *, after: Tensor) -> None:
        """Move the cache entries of a path's nodes to consecutive slots; no effect for a chain.

        Args:
            tree: structure of nodes that were read with `first` 0, into the slots from after[b] on.
            path: [B, depth] int64: the node at each depth from 1 on; entry k stays in place if it is k.
            after: [B] int64: slot of the first node, where the path will begin.
        """
        if tree.is_chain:
            return
        begin = after.unsqueeze(1)
        self._slots.move(begin + path, begin + self._slots.ids[: path.shape[1]])

    def replay(self, sequences: Sequences) -> None:
        """Bring recurrent states to the token before pending: undo rejected tokens, and read accepted ones again.

        Call this between rounds, when the host knows the committed tokens. No effect without recurrent layers.
        """
        if self.recurrent is not None:
            self.recurrent.replay(self._pass, [text[:-1] for text in sequences.texts])

    def sharing_cache(self, model: PreTrainedModel) -> "CachedLM":
        """CachedLM of another module over the same rows and slots; only call `begin` of this object.

        Args:
            model: a module that borrows layers of this model, each attention with its `layer_idx`. It writes its own
                keys and values: before this model may see these slots, it must read their tokens again.

        Raises:
            ValueError: the model has recurrent layers.
        """
        self.refuse_recurrent(
            "a drafter that skips target layers shares its cache", "another drafter= (small_transformer, ngram, ...)"
        )
        shared = copy.copy(self)
        shared.model = model
        shared._decoder = self._decoder.sharing_sources(model) if self.text_start else model
        if model.get_output_embeddings() is not self.model.get_output_embeddings():
            shared._output_layer = OutputLayerHook(model)
        return shared

    def _mask(self, start: Tensor | None, slots: Tensor, key_positions: Tensor, branches: Branches | None) -> Any:
        """Attention mask of a pass, for all layers or by kind of layer; None: plainly causal, or every slot is seen.

        Args:
            start: as for `forward`.
            slots: [B, M] int64: slots that the pass writes.
            key_positions: [1 or B, W] int64: positions of the tokens in the slots seen.
            branches: structure of the tokens if they are a tree.
        """
        visible = key_positions.shape[1]
        if branches is None and self._needs_no_mask(start, slots, visible):
            return None
        if self._masks_in_blocks:
            return self.masks.in_blocks(slots, visible, branches)
        if branches is None:
            return self.masks.of(self._slots.causal(slots, visible), slots, key_positions, self.model.dtype)
        sees = self._slots.of_tree(branches.start, branches.sees, visible)
        return self.masks.of(sees, branches.positions, key_positions, self.model.dtype)

    def _needs_no_mask(self, start: Tensor | None, slots: Tensor, visible: int) -> bool:
        """Whether a pass is plainly causal or one token that sees all slots: attention is faster without a mask."""
        if self.masks.shortest is not None and self.masks.shortest < self.context:
            return start is None and visible <= self.masks.shortest
        # If all slots are visible, as in compiled graphs on a GPU, some of them are still empty.
        return start is None or (slots.numel() == 1 and visible < self._slots.capacity)

    def uncached(self, tokens: Tensor, source: list[int] | None = None) -> Tensor:
        """[B, T, V] logits of whole texts from one pass of the plain model: its own attention, no cache.

        Args:
            tokens: [B, T] int64.
            source: source tokens shared by all texts; None for decoder-only models.
        """
        inputs = {"input_ids": tokens}
        if source is not None:
            sources = torch.tensor([source], device=tokens.device).expand(len(tokens), -1)
            inputs = {"input_ids": sources, "decoder_input_ids": tokens}
        with running_with(self.model, own_attention(self.model)):
            return self._to_vocabulary(self.model(**inputs, use_cache=False).logits)

    def _to_vocabulary(self, logits: Tensor) -> Tensor:
        logits = logits[..., : self.num_known]
        missing = self.vocabulary_size - logits.shape[-1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return logits[..., : self.vocabulary_size]


def _name(model: PreTrainedModel) -> str:
    return f"{type(model).__name__} ({model.config.name_or_path or 'built in memory'})"
