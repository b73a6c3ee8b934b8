"""Small language model as drafter of a large one (Leviathan et al., 2023; Chen et al., 2023)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.drafter import ShouldContinue
from framework.core.option_error import OptionError, options_under
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.core.validation import check_number, check_whole
from framework.drafting.chain_builder import ChainBuilder
from framework.drafting.drafter_cache import DrafterCache
from framework.drafting.quantized_probs import BITS
from framework.models.cached_lm import CachedLM
from framework.models.target import Target
from framework.training.online_examples import OnlineExample


class SmallTransformer:
    """Draws a chain from a small model, with the target's temperature, top-k, top-p and min-p."""

    scheme = SamplingScheme.IID
    shape = Shape.CHAIN
    stepwise = True

    def __init__(
        self,
        target: Target,
        *,
        model: Callable[[Target], CachedLM],
        top_k: int | None = None,
        top_p: float | None = None,
        bits: int | None = None,
    ):
        """
        Args:
            target: the target; the model must share its vocabulary and tokenizer.
            model: builds the small model for that target.
            top_k: number of most likely tokens to draw from. q is then the distribution over these tokens, with top_k
                entries instead of V; the verifier makes up for the mass of p outside them. None: all tokens.
            top_p: mass of the most likely tokens to draw from, after top_k; q is the distribution over these tokens.
                None: all tokens.
            bits: bits per entry to which q is rounded before drawing, so that it can be sent in few bytes
                (`drafters.remote`); None: q is not rounded.

        Raises:
            ValueError: top_k, top_p or bits is out of range, the tokenizers differ, or the model is not supported.
        """
        check_whole("top_k", top_k, least=1, or_null=True)
        if top_p is not None:
            check_number("top_p", top_p, lambda mass: 0 < mass <= 1, "a number in (0, 1], or null for all tokens")
        if bits is not None and (isinstance(bits, bool) or bits not in BITS):
            allowed = " or ".join(map(str, BITS))
            raise OptionError("bits", bits, f"{allowed}, or null for the distribution as it is")
        self._top_k, self._top_p, self._bits = top_k, top_p, bits
        with options_under("model"):
            self.model = model(target)
        self._cache = DrafterCache(self.model)

    @property
    def on_host(self) -> bool:
        """Whether the model is recurrent: its states are replayed from host data, outside compiled graphs."""
        return self.model.is_recurrent

    def num_uniforms(self, gamma: int) -> int:
        return gamma

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self._cache.begin_with(sequences)

    @property
    def refillable(self) -> bool:
        """Whether the model has no recurrent layers, whose states are those of all rows."""
        return not self.model.is_recurrent

    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        self._cache.begin_rows(rows, sequences)

    def propose(
        self, sequences: Sequences, gamma: int, uniforms: Tensor, should_continue: ShouldContinue | None = None
    ) -> Draft:
        chain = ChainBuilder(
            gamma=gamma,
            active=sequences.active,
            sampling=self._sampling,
            uniforms=uniforms.to(sequences.tokens.device),
            should_continue=should_continue,
            top_k=self._top_k,
            top_p=self._top_p,
            bits=self._bits,
        )
        output = self._cache.read(sequences)
        while chain.add(output.logits[:, 0], hidden=None if should_continue is None else output.scored_states[:, 0]):
            read = chain.num_nodes
            output = self.model.forward(
                chain.last.unsqueeze(1), sequences.lengths + (read - 1), visible=sequences.longest + read
            )
        return chain.draft()

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        self._cache.keep_accepted(sequences, outcome)

    def follow(self, sequences: Sequences, outcome: Outcome) -> None:
        self._cache.follow(outcome)

    def resume(self, sequences: Sequences, num_tokens: int) -> None:
        self._cache.resume(sequences, num_tokens)

    def rewind(self, sequences: Sequences) -> None:
        self._cache.rewind(sequences)

    @property
    def models(self) -> list[nn.Module]:
        return [self.model.model]

    @property
    def module(self) -> nn.Module:
        return self.model.model

    @property
    def longest_text(self) -> int:
        return self.model.context

    def logits_of(self, examples: Sequence[OnlineExample]) -> tuple[Tensor, Tensor]:
        # Padding on the right is not attended to by the tokens of a text.
        logits = self.model.uncached(pad_sequence([example.tokens[:-1] for example in examples], batch_first=True))
        known = [
            row[len(example.tokens) - 1 - len(example.p_logits) : len(example.tokens) - 1]
            for row, example in zip(logits, examples, strict=True)
        ]
        return torch.cat([example.p_logits for example in examples]), torch.cat(known)

    def refresh(self, sequences: Sequences) -> None:
        self._cache.begin_with(sequences)
