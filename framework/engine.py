"""The loop: propose, one target pass, verify, commit, observe. The same for every drafter and acceptance rule."""

from collections.abc import Callable, Iterator, Sequence

import torch

from framework.compiled import CompiledRound
from framework.device_round import Decoding, DeviceRound
from framework.draft import Draft, Outcome, Readout
from framework.drafter import Drafter, learns, most_nodes
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.generation import Generation
from framework.prefill import prefill
from framework.sampling import Sampling
from framework.sequences import Prompt
from framework.stopping import Stopping
from framework.stopwatch import Stopwatch
from framework.tally import Tally
from framework.target import Target
from framework.uniforms import Uniforms
from framework.verifiers.standard import standard_rule
from framework.verifiers.verifier import Verifier


class Engine:
    """Speculative decoding (Leviathan et al., 2023) for any drafter, verifier and gamma policy."""

    def __init__(
        self,
        *,
        target: Target,
        drafter: Drafter,
        verifier: Verifier | None = None,
        gamma_policy: GammaPolicy,
        sampling: Sampling,
        compiled: bool = False,
    ):
        """
        Args:
            verifier: None is the usual exact rule for the drafter's drafts (`standard_rule`).
            compiled: whether the device's share of a round is made one program; the first round then takes a minute.

        Raises:
            ValueError: the verifier cannot verify this drafter's drafts, or a drafter that learns is to be compiled.
        """
        verifier = verifier or standard_rule(drafter.law, drafter.shape)
        verifier.check(drafter.law, drafter.shape)
        if compiled and learns(drafter):
            raise ValueError(
                f"engine.compile is true, and {type(drafter).__name__} learns while it drafts; allowed: false, since a "
                "program holds weights as they were when it was made"
            )
        self.target = target
        self.drafter = drafter
        self.verifier = verifier
        self.gamma_policy = gamma_policy
        self.sampling = sampling
        self._on_device = DeviceRound(target=target, drafter=drafter, verifier=verifier, sampling=sampling)
        self.compiled = compiled
        self._program = CompiledRound(self._on_device, gamma_policy) if compiled else None

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        stopping: Stopping,
        seeds: list[int],
        detailed: bool = False,
        watch: Callable[[Outcome], None] | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> Generation:
        """Decode a batch of prompts.

        Args:
            prompts: token ids per row, none empty, each within the model's context.
            stopping: what ends a row.
            seeds: one per row; with a fixed gamma a row's tokens depend on its prompt and its seed only.
            detailed: whether the tally sums overlaps; costs time, so not in timed runs.
            watch: called with the outcome of every round, which is then no program.
            stopwatch: gets the stages prefill, begin, draft, target, verify, observe, and learn of drafters that do.

        Raises:
            ValueError: a prompt cannot be decoded.
            FloatingPointError: a law is not finite: NaN logits, or q = 0 for a drafted token.
        """
        stopwatch = stopwatch or Stopwatch(self.target.device)
        decoding = self.begin(prompts, stopping=stopping, seeds=seeds, detailed=detailed, stopwatch=stopwatch)
        decoding.watch = watch
        while decoding.finisher.most_remaining:
            self.round(decoding)
        finisher = decoding.finisher
        return Generation(tokens=finisher.new_tokens, finish_reasons=finisher.finish_reasons, tally=decoding.tally)

    def each_alone(
        self, prompts: Sequence[Prompt], *, stopping: Stopping, seed: int, detailed: bool = False
    ) -> Iterator[Tally]:
        """Decode one prompt after another, prompt i with seed + i: what was counted of each."""
        for number, prompt in enumerate(prompts):
            tally = self.generate([prompt], stopping=stopping, seeds=[seed + number], detailed=detailed).tally
            assert tally is not None
            yield tally

    def begin(
        self, prompts: Sequence[Prompt], *, stopping: Stopping, seeds: list[int], detailed: bool, stopwatch: Stopwatch
    ) -> Decoding:
        """Read the prompts and commit a first token: a round that proposed nothing."""
        device, max_gamma = self.target.device, self.gamma_policy.max_gamma
        uniforms = Uniforms(seeds, 2 + self.drafter.num_uniforms(max_gamma), device)
        with stopwatch.stage("prefill"):
            sequences, finisher, logits = prefill(self.target, prompts, stopping, max_nodes=self.max_nodes)
            decoding = Decoding(sequences, finisher, uniforms, self.new_tally(detailed=detailed), stopwatch)
            draft = Draft.empty(len(prompts), device)
            outcome, told = self._on_device.commit(decoding, draft, logits, uniforms.next_round())
            self._on_device.read(decoding, told)
        with stopwatch.stage("begin"):
            self.gamma_policy.begin()
            if hasattr(self.drafter, "keep_drafting"):  # drafters that draft all nodes at once have no such thing
                self.drafter.keep_drafting = self.gamma_policy.keep_drafting
            self.drafter.begin(sequences, outcome, self.sampling)
        return decoding

    def new_tally(self, *, detailed: bool) -> Tally:
        """Without counts yet, for generations of this engine."""
        return Tally(
            self.gamma_policy.max_gamma,
            self.max_nodes,
            shape=self.drafter.shape,
            detailed=detailed,
            token_rule=self.verifier.token_rule,
        )

    @property
    def max_nodes(self) -> int:
        """Most nodes that a draft may hold."""
        return most_nodes(self.drafter, self.gamma_policy.max_gamma)

    def round(self, decoding: Decoding) -> Readout:
        """Propose, one target pass over pending and the nodes, verify, commit, observe; says what became of it."""
        uniforms, stage = decoding.uniforms.next_round(), decoding.stopwatch.stage
        gamma = self.gamma_policy.next_gamma()
        if self._program is not None and not decoding.tally.detailed and decoding.watch is None:
            told = self._program.run(decoding, gamma, uniforms)
        else:
            with stage("draft"):
                # One place is kept for the token that follows the accepted ones.
                gamma = min(gamma, decoding.finisher.most_remaining - 1)
                draft = self._on_device.propose(decoding, gamma, uniforms)
            outcome, told = self._on_device.judge(decoding, draft, uniforms, stage)
            if decoding.tally.detailed:
                decoding.tally.observe_laws(outcome)
            if decoding.watch is not None:
                decoding.watch(outcome)
        with stage("observe"):
            readout = self._on_device.read(decoding, told)
            self.gamma_policy.observe(readout)
            decoding.tally.observe(readout)
        if learns(self.drafter):
            with stage("learn"):
                self.drafter.learn(decoding.sequences)
        return readout
