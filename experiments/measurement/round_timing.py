"""Times of whole rounds by gamma, measured once and stored, for gamma policies that decide by a profile."""

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from experiments.config.cli_errors import announce
from experiments.config.progress import Steps
from experiments.measurement.plan import Batch
from experiments.results.round_profiles import Identity, identity_of, load_profile, store_profile, with_identity
from framework.core.draft import Readout
from framework.core.drafter import Drafter, most_nodes, preserve_learned_state
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.gamma_policies.round_profile import UNKNOWN_ALPHA, AcceptanceByDepth, RoundProfile, is_profiled
from framework.metrics.stopwatch import Stopwatch
from framework.models.tensor_parallel import agreed

REPEATS = 5  # generations per gamma; each gives a ratio to rounds without a draft, in which the machine's speed cancels
ROUNDS = 20  # of a generation, at most
SETTLING = 6  # first rounds, not counted: on a CPU, rounds soon after reading the prompt take up to 1.3 times as long
ROUNDS_OF_WARM_UP = 3  # a CUDA graph is replayed from the third run on
# If acceptance were measured with a run's own uniforms, the run's gammas would depend on uniforms of later rounds.
OTHER_SEEDS = 2**61


def provide_profile(engine: Engine, batches: Sequence[Batch], *, stopping: Stopping, options: Any) -> None:
    """Give the stored profile to a policy that decides by one; if there is none, measure the rounds and store it.

    Args:
        engine: engine with any policy; others need no profile.
        batches: batches to decode, at least one.
        stopping: stopping criteria of the generations to come, with which they share compiled graphs.
        options: options of drafter and verifier, as JSON values.
    """
    policy, sharded = engine.gamma_policy, engine.target.model.is_sharded
    if not is_profiled(policy) or not policy.awaits_profile:
        return
    beginnings = [batch.beginning for batch in batches[:REPEATS]]
    full = [batch for batch in beginnings if len(batch.rows) == len(beginnings[0].rows)]
    identity = profile_identity(engine, options, full[0], stopping)
    assert identity is not None
    profile = agreed(load_profile(identity), sharded=sharded)
    if profile is None:
        gammas = identity["gammas"]
        kind = "compiled rounds, each with a graph," if engine.compiled else "rounds"
        point = f"{type(engine.drafter).__name__} at T={engine.sampling.temperature:g}, gamma"
        announce(f"measuring {kind} of {point} {', '.join(map(str, gammas))}; later runs reuse the times")
        profile = agreed(measure_rounds(engine, full, gammas, stopping), sharded=sharded)
        if list(profile.round_ms) == gammas:  # a drafter that found nothing to draft is measured again
            store_profile(identity, profile)
    policy.use_profile(profile)


def profile_identity(engine: Engine, options: Any, batch: Batch, stopping: Stopping) -> Identity | None:
    """Identity of the profile that experiments provide to an engine's policy; None: they provide none."""
    policy = engine.gamma_policy
    if not is_profiled(policy) or not policy.awaits_profile:
        return None
    # The first token is the prefill's, and the last token of a draft's round is the target's own.
    fitting = [gamma for gamma in policy.gammas if gamma + 2 <= stopping.max_new_tokens or not gamma]
    gammas = distinct_gammas(fitting, engine.drafter)
    return identity_of(engine, options, batch_size=len(batch.beginning.rows), gammas=gammas)


def recorded_profile(engine: Engine, options: Any, batch: Batch, stopping: Stopping) -> dict[str, Any] | None:
    """The profile that an engine's policy decides by, for a record; None: it decides by none."""
    policy = engine.gamma_policy
    if not is_profiled(policy) or policy.profile is None:
        return None
    return with_identity(profile_identity(engine, options, batch, stopping), policy.profile)


def distinct_gammas(gammas: Sequence[int], drafter: Drafter) -> list[int]:
    """Gammas of different drafts: of those with equally many nodes, the smallest that reaches the depth of the tree."""
    by_nodes = defaultdict(list)
    for gamma in gammas:
        by_nodes[most_nodes(drafter, gamma) if gamma else 0].append(gamma)
    depth = getattr(drafter, "depth", 0)
    return sorted(next((gamma for gamma in each if gamma >= depth), each[-1]) for each in by_nodes.values())


def measure_rounds(engine: Engine, batches: Sequence[Batch], gammas: Sequence[int], stopping: Stopping) -> RoundProfile:
    """Time rounds of each gamma within generations, and count accepted nodes by depth.

    Gammas at which the drafter found nothing to draft have no time; rounds in which it looked in vain have their own.
    """
    acceptance = AcceptanceByDepth(engine.gamma_policy.max_gamma)
    draft = min(filter(None, gammas), default=0)
    num_rounds = max(1, min(ROUNDS, stopping.max_new_tokens - draft - 2))  # and a draft after as many rounds without
    repeats: list[Mapping[int, float]] = []  # median seconds by gamma
    restarts: list[float] = []
    misses: list[float] = []  # in rounds without a draft
    num_tried = 0
    passes = (1 + REPEATS) * len(gammas)
    with preserve_learned_state(engine.drafter), Steps(passes, "rounds", is_timed=True) as steps:
        for repeat in range(1 + REPEATS):
            batch, medians = batches[repeat % len(batches)], {}
            missed: list[float] = []
            for gamma in gammas if repeat % 2 == 0 else reversed(gammas):
                plan = [gamma] * num_rounds + ([draft] if not gamma and draft else [])
                rounds = list(_rounds(engine, batch, plan, stopping))
                for number, _, readout in rounds:
                    acceptance.observe(number, readout)
                settled = rounds[min(SETTLING, len(rounds) // 2) :]
                if seconds := _seconds(settled, gamma):
                    medians[gamma] = statistics.median(seconds)
                missed += [seconds for number, seconds, readout in settled if number and not readout.num_nodes]
                if repeat:
                    num_tried += sum(number > 0 for number, _, _ in settled)
                    restarts += _seconds(rounds, draft) if draft and not gamma else []
                steps.update(f"rounds with gamma {gamma}", advance=1)
            repeats.append(medians)
            if repeat and 0 in medians:
                misses += [seconds / medians[0] for seconds in missed]
    profile = _profile(repeats[1:], restarts, draft, acceptance)  # the first repeat warms up
    if not misses:
        return profile
    miss_ms = profile.round_ms[0] * statistics.median(misses)
    return replace(profile, found=1 - len(misses) / num_tried, miss_ms=miss_ms)


def run_every_gamma(engine: Engine, batch: Batch, stopping: Stopping) -> None:
    """Run some rounds of every gamma that the policy may choose, which makes their compiled graphs."""
    if is_profiled(engine.gamma_policy):
        with preserve_learned_state(engine.drafter):
            for gamma in engine.gamma_policy.usable:
                list(_rounds(engine, batch.beginning, [gamma] * ROUNDS_OF_WARM_UP, stopping))


class _Chosen:
    """A policy whose next gamma is set from outside."""

    should_continue = None

    def __init__(self, max_gamma: int):
        self.max_gamma, self.gamma = max_gamma, 0

    def begin(self) -> None:
        pass

    def next_gamma(self) -> int:
        return self.gamma

    def observe(self, readout: Readout) -> None:
        pass


Round = tuple[int, float, Readout]
"""Gamma, seconds and outcome of a round."""


@torch.no_grad()
def _rounds(engine: Engine, batch: Batch, gammas: Sequence[int], stopping: Stopping) -> Iterator[Round]:
    """Decode with these gammas, up to the first that the rest of the budget cuts; the generator must be exhausted."""
    own, chosen = engine.gamma_policy, _Chosen(engine.gamma_policy.max_gamma)
    policy: GammaPolicy = chosen
    engine.gamma_policy = policy
    try:
        stopwatch = Stopwatch(engine.target.device, only=())
        seeds = [(seed + OTHER_SEEDS) % 2**62 for seed in batch.seeds]
        decoding = engine.begin(batch.prompts, stopping=stopping, seeds=seeds, detailed=False, stopwatch=stopwatch)
        for gamma in gammas:
            if decoding.finisher.most_remaining <= gamma:
                return
            chosen.gamma, start = gamma, time.perf_counter()
            readout = engine.round(decoding)  # ends with reading the round's summary on the host
            yield gamma, time.perf_counter() - start, readout
    finally:
        engine.gamma_policy = own


def _seconds(rounds: Sequence[Round], gamma: int) -> list[float]:
    """Seconds of the rounds of this gamma, without those for which nothing was found to draft."""
    return [
        seconds for number, seconds, readout in rounds if number == gamma and bool(readout.num_nodes) == bool(gamma)
    ]


def _profile(
    repeats: Sequence[Mapping[int, float]], restarts: Sequence[float], draft: int, acceptance: AcceptanceByDepth
) -> RoundProfile:
    """Profile from medians by gamma of several repeats, and from first drafts of gamma `draft` after a pause."""
    whole = [medians for medians in repeats if 0 in medians]
    if not whole:  # every generation ended with the prefill
        return RoundProfile(round_ms={0: 1.0}, restart_ms=0.0, acceptance=[UNKNOWN_ALPHA])
    plain = 1000 * statistics.median(medians[0] for medians in whole)
    ratios = defaultdict(list)
    for medians in whole:
        for gamma, seconds in medians.items():
            ratios[gamma].append(seconds / medians[0])
    round_ms = {gamma: plain * statistics.median(ratios[gamma]) for gamma in sorted(ratios)}
    restart_ms = 1000 * statistics.median(restarts) - round_ms[draft] if restarts and draft in round_ms else 0.0
    return RoundProfile(round_ms, max(0.0, restart_ms), acceptance.measured())
