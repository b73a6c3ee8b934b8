"""Where a drafter is tried: a target, prompts, and the ways to make it draft through the real loop."""

import torch
from torch import Tensor

from framework.conformance.rig import PATTERNS, Dictated, Proposal, Witness
from framework.draft import Draft
from framework.drafter import Drafter
from framework.engine import Decoding, Engine
from framework.gamma_policies.fixed import Fixed
from framework.sampling import Sampling
from framework.sequences import Conditioned, Prompt, text_of, with_text
from framework.stopping import Stopping
from framework.stopwatch import Stopwatch
from framework.target import Target
from framework.verifiers.verifier import Verifier

LONG = 60  # tokens of the longest prompt
ROUNDS = 4  # played with every acceptance pattern


class ProvingGround:
    """What all checks of one drafter share; holds no drafter itself.

    Attributes:
        target: what is drafted for.
        gamma: deepest draft asked for.
        prompts: eight of different lengths; some repeat themselves, so that who copies has something to copy.
    """

    def __init__(self, *, target: Target, verifier: Verifier, gamma: int):
        self.target = target
        self.gamma = gamma
        texts = _ragged_prompts(target.vocabulary_size, longest=min(LONG, target.model.context // 3))
        start = target.model.text_start
        self.prompts = [Conditioned(text[::-1], start + text) if start else text for text in texts]
        self._verifier = verifier

    def engine(
        self, drafter: Drafter, sampling: Sampling, verifier: Verifier | None = None, *, gamma: int | None = None
    ) -> Engine:
        """The real loop; with the exact rule and the ground's gamma unless others are given."""
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
        """One draft after prefill; row i has the seed and the pending token of rows[i]."""
        rows, gamma = rows or list(range(len(prompts))), gamma or self.gamma
        pending = [1 + row % (self.target.vocabulary_size - 1) for row in rows]
        decoding = self._begun(drafter, prompts, sampling, Dictated(first=pending), rows)
        return _propose(drafter, decoding, gamma)

    def drafts_of_one(self, drafter: Drafter, prompt: Prompt, num_rows: int, sampling: Sampling) -> Draft:
        """Many drafts after the same committed tokens, each with uniforms of its own."""
        rows = list(range(num_rows))
        decoding = self._begun(drafter, [prompt] * num_rows, sampling, Dictated(first=[1] * num_rows), rows)
        return _propose(drafter, decoding, self.gamma)

    def play(
        self, drafter: Drafter, pattern: str, sampling: Sampling, *, num_rows: int | None = None
    ) -> tuple[list[Proposal], list[Tensor]]:
        """Some rounds whose acceptance is dictated: what each proposed, and the target's logits [B, N + 1, V]."""
        prompts, witness, verifier = self.prompts[:num_rows], Witness(drafter), Dictated(PATTERNS[pattern])
        engine = self.engine(witness, sampling, verifier)
        decoding = self._begun(witness, prompts, sampling, verifier, list(range(len(prompts))))
        for _ in range(ROUNDS):
            engine.round(decoding)
        return witness.proposals, verifier.logits[1:]

    def draft_again(self, drafter: Drafter, proposal: Proposal, sampling: Sampling) -> Draft:
        """What a drafter proposes that begins with the tokens that another one had got to."""
        prompts = [with_text(row, text_of(row)[:-1]) for row in proposal.committed]
        pending = [text_of(row)[-1] for row in proposal.committed]
        decoding = self._begun(drafter, prompts, sampling, Dictated(first=pending), list(range(len(prompts))))
        return drafter.propose(decoding.sequences, proposal.gamma, proposal.uniforms)

    @torch.no_grad()
    def uncached(self, prompt: Prompt) -> Tensor:
        """[T, V] float64 logits of one row by a single pass."""
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
    uniforms = decoding.uniforms.next_round()[:, : drafter.num_uniforms(gamma)]
    return drafter.propose(decoding.sequences, gamma, uniforms)


def _ragged_prompts(width: int, *, longest: int) -> list[list[int]]:
    random = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, width, (size,), generator=random).tolist() for size in (6, 1, 2, longest, 4)]
    first, second = 1 % width, 2 % width
    return [*prompts, [first, second] * 4, [second] * 7, [first, second, second] * 3 + [first]]
