"""The speculative decoding loop: propose, target pass, verify, commit, observe."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from framework.core.draft import Draft, Outcome, Readout, Shape
from framework.core.draft_faults import probs_fault, structure_fault
from framework.core.drafter import (
    Drafter,
    compiles,
    drafts_on_host,
    has_trees,
    hidden_layers_of,
    is_refillable,
    learns,
    looks_up,
    models_of,
    most_nodes,
)
from framework.core.sampling import Sampling
from framework.core.sequences import Prompt, Sequences
from framework.core.uniforms import RoundUniforms, Uniforms, check_seeds
from framework.decoding.compiled_round import CompiledRound, can_be_queued
from framework.decoding.device_round import Decoding, DeviceRound, Rows
from framework.decoding.generation import Generation
from framework.decoding.prefill import prefill, prefill_rows
from framework.decoding.refill import Queue, Refill
from framework.decoding.round_summary import HostCopy
from framework.decoding.stopping import Stopping
from framework.gamma_policies.gamma_policy import GammaPolicy, has_rows, has_shadows, has_tensors
from framework.kernels.compiled_graphs import eager_products
from framework.metrics.stopwatch import Stopwatch
from framework.metrics.tally import Tally
from framework.models.model_support import has_dynamic_frequencies
from framework.models.target import Target
from framework.verifiers.default_verifier import default_verifier
from framework.verifiers.verifier import Verifier


def why_no_graphs(drafter: Drafter) -> str | None:
    """Reason why rounds with a drafter cannot be compiled, and the alternatives; None: they can."""
    name = type(drafter).__name__
    if not compiles(drafter) and drafts_on_host(drafter):
        return f"{name} drafts trees on the host; allowed: false"
    if not compiles(drafter):
        return (
            f"{name} learns while it drafts; allowed: false, since a compiled graph keeps the weights it was compiled "
            "with"
        )
    if any(map(has_dynamic_frequencies, models_of(drafter))):
        return f"a model of {name} has dynamic rotary positions; allowed: false"
    return None


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
            verifier: acceptance rule; None: the usual exact rule for the drafter's drafts (`default_verifier`).
            compiled: whether to compile the device's part of a round into one graph; the first round then takes a
                minute.

        Raises:
            ValueError: the verifier cannot verify this drafter's drafts, `compiled` is set for a drafter without
                graphs (`why_no_graphs`), a target with recurrent layers is given with `compiled` or a drafter of trees,
                or a sharded one with `compiled`, or the drafter reads hidden layers that the target lacks.
        """
        verifier = verifier or default_verifier(drafter.scheme, drafter.shape)
        verifier.check(drafter.scheme, drafter.shape)
        if compiled and (fault := why_no_graphs(drafter)):
            raise ValueError(f"engine.compile is true, and {fault}")
        if drafter.shape is not Shape.CHAIN:
            target.model.refuse_recurrent(
                f"{type(drafter).__name__} drafts trees",
                "drafters that draft chains, such as drafter=small_transformer or prompt_lookup",
            )
        if layers := hidden_layers_of(drafter):
            target.model.refuse_layers(layers, f"{type(drafter).__name__} reads")
        if compiled:
            target.model.refuse_compiling()
        self.target = target
        self.drafter = drafter
        self.verifier = verifier
        self.gamma_policy = gamma_policy
        self.sampling = sampling
        self._on_device = DeviceRound(target=target, drafter=drafter, verifier=verifier, sampling=sampling)
        self.compiled = compiled
        self._graph = CompiledRound(self._on_device, gamma_policy) if compiled else None
        self._ends_rounds = target.model.is_recurrent or learns(drafter)

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        stopping: Stopping,
        seeds: list[int],
        detailed: bool = False,
        on_round: Callable[[Outcome], None] | None = None,
        stopwatch: Stopwatch | None = None,
        queue: Queue | None = None,
    ) -> Generation:
        """Decode a batch of prompts.

        Args:
            prompts: token ids of each, none empty, each shorter than the model's context.
            stopping: stopping criteria of a row.
            seeds: one per prompt; with a fixed gamma, the tokens of a prompt depend only on it and its seed.
            detailed: whether the tally sums overlaps and each draft is checked against the drafter's contract; too slow
                for timed runs.
            on_round: called with the outcome of every round; rounds then run eagerly.
            stopwatch: times the stages prefill, begin, draft, target, verify, observe, replay (targets with recurrent
                layers) and learn (drafters that learn).
            queue: order in which finished rows take further prompts; None: every prompt has a row from the beginning.

        Raises:
            ValueError: a prompt cannot be decoded, or seeds are not one whole number per prompt; the target or the
                drafter cannot begin in single rows; in detailed mode, a draft breaks the drafter's contract.
            FloatingPointError: probabilities are not finite, negative or all zero, because of NaN logits, q = 0 for a
                drafted token, or a faulty verifier.
        """
        refill = Refill(prompts, seeds, queue)
        if refill.waiting:
            self.require_refillable()
        decoding = self.begin(
            refill.first.prompts,
            stopping=stopping,
            seeds=refill.first.seeds,
            detailed=detailed,
            stopwatch=stopwatch or Stopwatch(self.target.device),
            on_round=on_round,
            waiting=refill.waiting,
        )
        self._refill(decoding, refill)
        decoding.stopwatch.end_round()
        queues = (
            self.compiled
            and can_be_queued(self.drafter, self.gamma_policy, self.target.device)
            # Between rounds the host ends rows at stop strings, and begins waiting prompts.
            and not (stopping.stop_strings or refill.waiting or decoding.is_observed)
        )
        while decoding.finisher.most_remaining:
            self.round(decoding, queues=queues)
            decoding.stopwatch.end_round()
            self._refill(decoding, refill)
        return Generation(tokens=refill.tokens, finish_reasons=refill.finish_reasons, tally=decoding.tally)

    def require_refillable(self) -> None:
        """
        Raises:
            ValueError: the target or the drafter cannot begin other prompts in single rows.
        """
        self.target.model.refuse_refilling()
        if not is_refillable(self.drafter):
            raise ValueError(
                f"refill is true, and {type(self.drafter).__name__} cannot begin other prompts in single rows with its "
                "options; allowed: false, or another drafter, such as small_transformer or prompt_lookup"
            )

    def each_alone(
        self, prompts: Sequence[Prompt], *, stopping: Stopping, seed: int, detailed: bool = False
    ) -> Iterator[Tally]:
        """Decode prompts one at a time, prompt i with seed + i; yields the tally of each."""
        for number, prompt in enumerate(prompts):
            tally = self.generate([prompt], stopping=stopping, seeds=[seed + number], detailed=detailed).tally
            assert tally is not None
            yield tally

    def begin(
        self,
        prompts: Sequence[Prompt],
        *,
        stopping: Stopping,
        seeds: list[int],
        detailed: bool,
        stopwatch: Stopwatch,
        on_round: Callable[[Outcome], None] | None = None,
        waiting: Sequence[Prompt] = (),
    ) -> Decoding:
        """Prefill: read the prompts and commit a first token, as a round without a draft.

        Args:
            prompts: one per row; the other arguments are those of `generate`.
            waiting: further prompts, which finished rows take later.
        """
        check_seeds(seeds, len(prompts))
        device, max_gamma = self.target.device, self.gamma_policy.max_gamma
        uniforms = Uniforms(seeds, RoundUniforms.width(self.drafter.num_uniforms(max_gamma)), device)
        with stopwatch.stage("prefill"):
            sequences, finisher, output = prefill(
                self.target,
                prompts,
                stopping,
                max_nodes=self.max_nodes,
                waiting=waiting,
                layers=self._on_device.hidden_layers,
                compiled=self.compiled,
            )
            if self._graph is not None:
                self._graph.begin(sequences, finisher)
            tally, number = self.new_tally(detailed=detailed), self.target.model.num_begun
            decoding = Decoding(sequences, finisher, uniforms, tally, stopwatch, number, on_round)
            outcome, packed = self._on_device.commit(decoding, decoding.no_draft, output, uniforms.next_round())
            self._on_device.read(decoding, packed)
        with stopwatch.stage("begin"):
            if has_tensors(self.gamma_policy):
                self.gamma_policy.move_to(torch.device("cpu") if drafts_on_host(self.drafter) else device)
            self.gamma_policy.begin()
            if has_shadows(self.gamma_policy) and looks_up(self.drafter) and self.verifier.token_rule:
                self.gamma_policy.allow_shadows()
                decoding.shadow_policy = self.gamma_policy
            if has_trees(self.drafter):
                self.drafter.build_trees(len(prompts), max_gamma)
            self.drafter.begin(sequences, outcome, self.sampling)
        return decoding

    def _refill(self, decoding: Decoding, refill: Refill) -> None:
        """Begin waiting prompts in finished rows; the first token of each is committed as in `begin`."""
        while new := refill.newcomers(decoding.finisher):
            with decoding.stopwatch.stage("prefill"):
                uniforms = decoding.uniforms.begin_rows(new.rows, new.seeds)
                sequences, finisher, output = prefill_rows(
                    self.target,
                    new.prompts,
                    new.rows,
                    decoding.finisher,
                    layers=self._on_device.hidden_layers,
                    compiled=self.compiled,
                )
                draft, begun = Draft.empty(len(new.rows), self.target.device), Rows(sequences, finisher)
                outcome, packed = self._on_device.commit(begun, draft, output, uniforms)
                self._on_device.read(begun, packed)
                decoding.replace_rows(new.rows, begun)
            with decoding.stopwatch.stage("begin"):
                if has_rows(self.gamma_policy):
                    self.gamma_policy.begin_rows(new.rows)
                assert is_refillable(self.drafter), "checked before decoding"
                self.drafter.begin_rows(new.rows, sequences, outcome)

    def new_tally(self, *, detailed: bool) -> Tally:
        """An empty tally for generations of this engine."""
        return Tally(
            self.gamma_policy.max_gamma,
            self.max_nodes,
            shape=self.drafter.shape,
            detailed=detailed,
            token_rule=self.verifier.token_rule,
        )

    @property
    def max_nodes(self) -> int:
        """Largest number of nodes in a draft."""
        return most_nodes(self.drafter, self.gamma_policy.max_gamma)

    def round(self, decoding: Decoding, *, queues: bool = False) -> Readout:
        """Draft up to gamma tokens, verify them in one target pass, commit the accepted path and one more token.

        Args:
            queues: whether to queue the next round before the host waits for this one, so that the device never waits
                for the host; the caller leaves the decoding alone in between.

        Raises:
            RuntimeError: another generation of this target has begun since `begin`.
        """
        if decoding.number != self.target.model.num_begun:
            raise RuntimeError(
                "another generation with this target began before this one ended, and they share a KV cache; finish or "
                "close one first"
            )
        gamma = self.gamma_policy.next_gamma()
        policy = decoding.shadow_policy
        shadow = self._shadow(decoding) if policy is not None and policy.is_shadow_due else None
        packed = decoding.pipeline.next_summary(
            lambda: self._run(decoding, gamma), another=queues and decoding.finisher.most_remaining > gamma + 1
        )
        readout = self._observe(decoding, packed, gamma)
        if shadow is not None:
            self._observe_shadow(decoding, shadow, readout)
        if self._ends_rounds:
            self._end_round(decoding)
        return readout

    def _run(self, decoding: Decoding, gamma: int) -> Tensor:
        """Run the device's part of a round; returns the packed `RoundSummary`."""
        uniforms = decoding.uniforms.next_round()
        if self._graph is not None and not decoding.is_observed:
            return self._graph.run(decoding, gamma, uniforms)
        with eager_products(self.target.device) if self.compiled else nullcontext():
            draft = self._propose(decoding, gamma, uniforms)
            return self._verify_and_commit(decoding, draft, uniforms)

    def _propose(self, decoding: Decoding, gamma: int, uniforms: RoundUniforms) -> Draft:
        """Draft at most gamma tokens deep; in detailed mode, check the draft and all its probabilities."""
        # The last token of a row's budget is the replaced or bonus token.
        gamma, sequences = min(gamma, decoding.finisher.most_remaining - 1), decoding.sequences
        if not gamma:
            return decoding.no_draft
        with decoding.stopwatch.stage("draft"):
            before = sequences.snapshot() if decoding.tally.detailed else None
            draft = self._on_device.propose(sequences, gamma, uniforms, self.gamma_policy.should_continue)
            if before is not None:
                self._require_contract(draft, sequences, before)
        return draft

    def _require_contract(self, draft: Draft, sequences: Sequences, before: tuple[object, ...]) -> None:
        """
        Raises:
            ValueError: the draft breaks the drafter's contract, or `propose` changed the sequences.
        """
        running = draft.rows(sequences.active)
        fault = structure_fault(running) or probs_fault(running)
        if sequences.snapshot() != before:
            fault = "propose changed the sequences, which belong to the loop"
        if fault is not None:
            raise ValueError(
                f"drafter {type(self.drafter).__name__}: {fault} (`check drafter=NAME` checks its contract)"
            )

    def _verify_and_commit(self, decoding: Decoding, draft: Draft, uniforms: RoundUniforms) -> Tensor:
        """Verify and commit eagerly, and report the full outcome; returns the packed `RoundSummary`."""
        outcome, packed = self._on_device.verify_and_commit(decoding, draft, uniforms, stage=decoding.stopwatch.stage)
        if decoding.tally.detailed:
            decoding.tally.observe_distributions(outcome)
        if decoding.on_round is not None:
            decoding.on_round(outcome)
        return packed

    def _observe(self, decoding: Decoding, packed: Tensor | HostCopy, gamma: int) -> Readout:
        """Read the round's summary on the host; pass it to the gamma policy and the tally."""
        with decoding.stopwatch.stage("observe"):
            readout = self._on_device.read(decoding, packed)
            self.gamma_policy.observe(readout)
            decoding.tally.observe(readout, gamma=gamma)
        return readout

    def _shadow(self, decoding: Decoding) -> list[list[int]] | None:
        """Look up a shadow draft (`WithShadowDrafts`): at most one token per row; None: only last tokens are left."""
        if decoding.finisher.most_remaining == 1:  # a row's last token needs no draft
            return None
        assert looks_up(self.drafter), "checked when the generation began"
        with decoding.stopwatch.stage("draft"):
            return self.drafter.look_up(decoding.sequences, 1)

    def _observe_shadow(self, decoding: Decoding, shadow: list[list[int]], readout: Readout) -> None:
        """Compare a shadow draft with the tokens of its round, and pass the result to the gamma policy."""
        assert decoding.shadow_policy is not None, "it has asked for the draft"
        with decoding.stopwatch.stage("observe"):
            offered = [int(bool(tokens) and most > 0) for tokens, most in zip(shadow, readout.max_depth, strict=True)]
            rows = zip(offered, shadow, decoding.sequences.texts, strict=True)
            accepted = [offers * (tokens[:1] == text[-1:]) for offers, tokens, text in rows]
            rejected = [offers - keeps for offers, keeps in zip(offered, accepted, strict=True)]
            decoding.shadow_policy.observe_shadow(
                readout._replace(num_nodes=max(offered), offered=offered, accepted=accepted, rejected=rejected)
            )

    def _end_round(self, decoding: Decoding) -> None:
        """Replay the target's recurrent states, and let a drafter learn."""
        if self.target.model.is_recurrent:
            with decoding.stopwatch.stage("replay"):
                self.target.model.replay(decoding.sequences)
        if learns(self.drafter):
            with decoding.stopwatch.stage("learn"):
                self.drafter.learn(decoding.sequences)
