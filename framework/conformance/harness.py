"""Test bench for drafters: a target, prompts, and methods that make a drafter draft in the real loop."""

from dataclasses import replace

import torch
from torch import Tensor

from framework.conformance.test_doubles import PATTERNS, Dictated, Proposal, Witness
from framework.core.draft import Draft
from framework.core.drafter import Drafter, Lookup
from framework.core.logits_processors import LogitsProcessors
from framework.core.sampling import Sampling
from framework.core.sequences import Conditioned, Prompt, text_of, with_text
from framework.decoding.engine import Decoding, Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.metrics.stopwatch import Stopwatch
from framework.models.target import Target
from framework.verifiers.verifier import Verifier

LONG = 60  # tokens of the longest prompt
ROUNDS = 4  # rounds per acceptance pattern


class Harness:
    """Target, verifier and prompts shared by all checks of one drafter; the drafter is passed to every method.

    Attributes:
        target: target of the drafts, without logits processors.
        gamma: depth of the deepest draft.
        prompts: eight prompts of different lengths; some repeat themselves, so that lookup drafters find matches.
    """

    def __init__(self, *, target: Target, verifier: Verifier, gamma: int):
        # Logits processors change only p, which drafters do not see; checks compare raw logits of passes.
        self.target = replace(target, processors=LogitsProcessors())
        self.gamma = gamma
        texts = _ragged_prompts(target.vocabulary_size, longest=min(LONG, target.model.context // 3))
        start = target.model.text_start
        self.prompts = [Conditioned(text[::-1], start + text) if start else text for text in texts]
        self._verifier = verifier

    def engine(
        self, drafter: Drafter, sampling: Sampling, verifier: Verifier | None = None, *, gamma: int | None = None
    ) -> Engine:
        """The real loop, by default with the harness's verifier and gamma."""
        return Engine(
            target=self.target,
            drafter=drafter,
            verifier=verifier or self._verifier,
            gamma_policy=Fixed(gamma=gamma or self.gamma),
            sampling=sampling,
        )

    def draft(
        self,
        drafter: Drafter,
        prompts: list[Prompt],
        sampling: Sampling,
        *,
        gamma: int | None = None,
        rows: list[int] | None = None,
    ) -> Draft:
        """One draft after prefill; row i has the seed and pending token of row rows[i]."""
        rows, gamma = rows or list(range(len(prompts))), gamma or self.gamma
        pending = [1 + row % (self.target.vocabulary_size - 1) for row in rows]
        decoding = self._begun(drafter, prompts, sampling, Dictated(first=pending), rows)
        return _propose(drafter, decoding, gamma)

    def lookup(self, drafter: Lookup, sampling: Sampling) -> tuple[list[list[int]], Draft]:
        """The tokens that a drafter looks up after prefill, and then its draft."""
        rows = list(range(len(self.prompts)))
        decoding = self._begun(drafter, self.prompts, sampling, Dictated(first=[1] * len(rows)), rows)
        return drafter.look_up(decoding.sequences, self.gamma), _propose(drafter, decoding, self.gamma)

    def drafts_of_one(self, drafter: Drafter, prompt: Prompt, num_rows: int, sampling: Sampling) -> Draft:
        """Many drafts after the same committed tokens, each with its own uniforms."""
        rows = list(range(num_rows))
        decoding = self._begun(drafter, [prompt] * num_rows, sampling, Dictated(first=[1] * num_rows), rows)
        return _propose(drafter, decoding, self.gamma)

    def play(
        self, drafter: Drafter, pattern: str, sampling: Sampling, *, num_rows: int | None = None
    ) -> tuple[list[Proposal], list[Tensor]]:
        """Run ROUNDS rounds with dictated acceptance; returns their proposals and target logits [B, N + 1, V]."""
        prompts, witness, verifier = self.prompts[:num_rows], Witness(drafter), Dictated(PATTERNS[pattern])
        engine = self.engine(witness, sampling, verifier)
        decoding = self._begun(witness, prompts, sampling, verifier, list(range(len(prompts))))
        for _ in range(ROUNDS):
            engine.round(decoding)
        return witness.proposals, verifier.logits[1:]

    def draft_again(self, drafter: Drafter, proposal: Proposal, sampling: Sampling) -> Draft:
        """The draft of a drafter that begins with the committed tokens of an earlier proposal."""
        prompts = [with_text(row, text_of(row)[:-1]) for row in proposal.committed]
        pending = [text_of(row)[-1] for row in proposal.committed]
        decoding = self._begun(drafter, prompts, sampling, Dictated(first=pending), list(range(len(prompts))))
        return drafter.propose(decoding.sequences, proposal.gamma, proposal.uniforms)

    @torch.no_grad()
    def uncached(self, prompt: Prompt) -> Tensor:
        """[T, V] float64 logits of one prompt, from a single pass without KV cache."""
        return self.target.uncached(prompt).double()

    def _begun(
        self, drafter: Drafter, prompts: list[Prompt], sampling: Sampling, verifier: Verifier, seeds: list[int]
    ) -> Decoding:
        return self.engine(drafter, sampling, verifier).begin(
            prompts,
            stopping=Stopping(max_new_tokens=(ROUNDS + 1) * (self.gamma + 1)),
            seeds=seeds,
            detailed=False,
            stopwatch=Stopwatch(self.target.device),
        )


def _propose(drafter: Drafter, decoding: Decoding, gamma: int) -> Draft:
    uniforms = decoding.uniforms.next_round().numbers[:, : drafter.num_uniforms(gamma)]
    return drafter.propose(decoding.sequences, gamma, uniforms)


def _ragged_prompts(width: int, *, longest: int) -> list[list[int]]:
    random = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, width, (size,), generator=random).tolist() for size in (6, 1, 2, longest, 4)]
    first, second = 1 % width, 2 % width
    return [*prompts, [first, second] * 4, [second] * 7, [first, second, second] * 3 + [first]]
