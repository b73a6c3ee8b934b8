"""DFlash drafter: a block of mask tokens, all predicted in one pass over the target's states (Chen et al., 2026)."""

import torch
from torch import Tensor, nn

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.drafter import ShouldContinue
from framework.core.option_error import OptionError
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.drafting.chain_builder import ChainBuilder
from framework.heads.draft_layer import TargetEnds
from framework.heads.published_dflash import read_dflash
from framework.models.cache_slots import Slots
from framework.models.target import Target

FORMS = {"sampled_chain": SamplingScheme.IID, "greedy_chain": SamplingScheme.ONE_HOT}


class Dflash:
    """Drafts a chain of at most a block's positions; the whole block is predicted whatever gamma is.

    Positions are independent of each other's tokens, unless the drafter has a Markov head (DSpark). A sampled chain
    draws each token, a greedy chain takes the most likely ones. Keys and values of committed tokens come from the
    target's states and are written after every round, so a round without a draft costs these products alone.
    """

    shape = Shape.CHAIN
    stepwise = True

    def __init__(self, target: Target, *, path: str, form: str, min_confidence: float):
        """
        Args:
            target: the target that the layers were trained for.
            path: folder or hub name of a published drafter.
            form: sampled_chain or greedy_chain.
            min_confidence: offer a token only if the confidence head expects all up to it to be accepted with at least
                this probability, in [0, 1); 0: offer all.

        Raises:
            OSError: the files cannot be read.
            ValueError: an unknown form, min_confidence without a confidence head, or a drafter for another target.
        """
        if form not in FORMS:
            raise OptionError("form", form, ", ".join(FORMS))
        if isinstance(min_confidence, bool) or not 0 <= min_confidence < 1:
            raise OptionError("min_confidence", min_confidence, "a number in [0, 1)")
        self.scheme = FORMS[form]
        self._drafter, self._ends = read_dflash(path, target), TargetEnds(target)
        self._layers, self.hidden_layers = self._drafter.layers, self._drafter.hidden_layers
        if min_confidence and self._layers.confidence_head is None:
            raise OptionError("min_confidence", min_confidence, "0: the drafter has no confidence head")
        self._min_confidence = min_confidence
        self._vocabulary = target.vocabulary_size
        self._slots = Slots(num_layers=len(self._layers.layers))

    @property
    def models(self) -> list[nn.Module]:
        return [self._layers]

    def num_uniforms(self, gamma: int) -> int:
        return self.num_nodes(gamma) if self.scheme is SamplingScheme.IID else 0

    def num_nodes(self, gamma: int) -> int:
        """Nodes of a draft: gamma, or the block's positions that predict a token if those are fewer."""
        return min(gamma, self._drafter.block_size - self._drafter.first)

    @torch.no_grad()
    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling if self.scheme is SamplingScheme.IID else Sampling(temperature=0)
        num_rows, width = sequences.tokens.shape
        self._slots.begin(num_rows, width + self._drafter.block_size, sequences.tokens.device)
        self.begin_rows(list(range(num_rows)), sequences, prefill)

    @torch.no_grad()
    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        features = prefill.features
        assert features is not None, "the layers need Outcome.features"
        # Slots after a prompt's end hold no token; they are overwritten before the block attends to them.
        slots = self._slots.ids[: features.shape[1]].unsqueeze(0)
        index = torch.tensor(rows, device=slots.device)
        with self._slots.only(index), self._slots.in_pass(slots, visible=slots.shape[1]):
            self._layers.write_context(features, slots, self._slots)

    @torch.no_grad()
    def propose(
        self, sequences: Sequences, gamma: int, uniforms: Tensor, should_continue: ShouldContinue | None = None
    ) -> Draft:
        """Draft to depth gamma, or to the end of the block if that is nearer."""
        chain = ChainBuilder(
            gamma=self.num_nodes(gamma),
            active=sequences.active,
            sampling=self._sampling,
            uniforms=uniforms,
            should_continue=should_continue,
        )
        states = self._predicted(sequences)[:, : self.num_nodes(gamma)]
        logits, previous, confidences = self._scored(states), sequences.pending, []
        support = self._drafter.support
        support = None if support is None else support.expand(len(previous), -1)
        continues = True
        while continues:
            place = chain.num_nodes
            if self._min_confidence:
                confidences.append(self._layers.confidence(states[:, place], previous))
            continues = chain.add(self._following(logits[:, place], previous), support)
            previous = chain.last
        draft = chain.draft()
        # The confidence in a token depends on the tokens before it, so dropping it is exact.
        return draft.offered(torch.stack(confidences, 1).cumprod(1) >= self._min_confidence) if confidences else draft

    @torch.no_grad()
    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        """Write keys and values of the committed tokens before pending."""
        features = outcome.features
        assert features is not None, "the layers need Outcome.features"
        # Entries after the committed tokens are arbitrary; the next block overwrites or does not see their slots.
        followed = outcome.followed.clamp(max=features.shape[1] - 1)
        first = sequences.lengths - outcome.num_committed - 1
        slots = first.unsqueeze(1) + self._slots.ids[: followed.shape[1]]
        slots = slots.clamp(max=self._slots.capacity - 1)
        rows = torch.arange(len(slots), device=slots.device).unsqueeze(1)
        with self._slots.in_pass(slots, visible=self._slots.capacity):
            self._layers.write_context(features[rows, followed], slots, self._slots)

    def _predicted(self, sequences: Sequences) -> Tensor:
        """[B, S - first, H] inputs of the output layer at the positions that predict a token."""
        size, start = self._drafter.block_size, sequences.lengths - 1
        slots = start.unsqueeze(1) + self._slots.ids[:size]
        visible = min(sequences.longest - 1 + size, self._slots.capacity)
        sees = (self._slots.ids[:visible] < (start + size).unsqueeze(1)).unsqueeze(1).expand(-1, size, -1)
        masks = torch.full_like(slots[:, 1:], self._drafter.mask_token)
        tokens = torch.cat([sequences.pending.unsqueeze(1), masks], 1)
        own = self._layers.embed_tokens
        embedded = self._ends.embedded(tokens) if own is None else own(tokens.clamp(max=own.num_embeddings - 1))
        with self._slots.in_pass(slots, visible=visible):
            return self._layers(embedded, slots, self._slots, sees)[:, self._drafter.first :]

    def _scored(self, states: Tensor) -> Tensor:
        """[B, N, Vd] logits before temperature, without those of a Markov head."""
        own, support = self._layers.lm_head, self._drafter.support
        if own is None:
            logits = self._ends.scored(states)
            return logits if support is None else logits[..., support]
        return own(states) if support is not None else own(states)[..., : self._vocabulary]

    def _following(self, logits: Tensor, previous: Tensor) -> Tensor:
        """[B, Vd] logits of one position after the previous tokens [B] int64."""
        markov = self._layers.markov_head
        return logits if markov is None else logits + markov(previous)[:, : logits.shape[1]]
