"""Cells of the proof: drafters, rules, gamma policies and samplings, by enumeration and by sampling from the engine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor

from experiments.config.builders import build, rules, yamls
from experiments.proof.tiny_drafters import NAMES, tiny_factory
from framework.conformance.goodness_of_fit import continuation_distribution
from framework.conformance.standard_cases import ROUNDING_OF, worst_total_variation
from framework.conformance.tiny_models import NARROW, tiny_target
from framework.conformance.verifier_checks import SAMPLINGS
from framework.core.draft import DraftedNode
from framework.core.drafter import is_stepwise
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.gamma_policies.gamma_policy import Costs, GammaPolicy
from framework.gamma_policies.round_profile import give_costs
from framework.verifiers.default_verifier import default_verifier
from framework.verifiers.verifier import Guarantee, Verifier

PROMPT = [1, 2, 1, 1, 2]
ROWS_PER_BATCH = 5_000  # larger batches are no faster: their buffers exceed the CPU caches
# An adaptive policy chooses one gamma per batch from past acceptances. Small batches make gamma vary between batches
# but are slow, so only 1 in SMALL_SHARE samples is drawn.
ROWS_PER_ADAPTIVE_BATCH, SMALL_SHARE = 128, 10
LEAST_ADAPTIVE_SAMPLES = 5000
POLICY_SHARE = 5  # without thoroughness, 1 in so many pairs of drafter and gamma policy
GREEDY_SAMPLES = 500  # at temperature 0 there is one continuation
# Options that make a policy adapt within a few tokens at any alpha: weak priors and cheap drafting. Other options keep
# the values of the yaml.
LIVELY = {
    "c": 0.1,
    "prior_accepted": 0.1,
    "prior_rejected": 2,
    "forgetting": 0.5,
    "probe_every": 2,
    "margin": 0,
    "prior_weight": 0.1,
    "threshold": 0.9,
}
FALSE_ALARM = 1e-9  # false-alarm rate of one chi-square test; seeds are fixed


Case = tuple[str, str, str, str]  # names of drafter, verifier, gamma policy and sampling setting


@dataclass(frozen=True)
class Cell:
    """One drafter, rule, gamma policy and sampling setting.

    Attributes:
        exact: whether the rule claims to be exact at this sampling setting.
        total_variation: of the rule on drafts of this scheme and shape, by enumeration.
        p_value: of the chi-square test on tokens sampled from the engine; None for a lossy rule.
        sampled: total variation of that sample from the target's distribution, sampling noise included; None for a
            lossy rule.
        samples: number of sampled sequences.
        gammas: all gammas chosen by the policy, ascending.
        stopped: whether the policy ended a draft early.
    """

    drafter: str
    verifier: str
    gamma_policy: str
    sampling: str
    exact: bool
    total_variation: float
    p_value: float | None
    sampled: float | None
    samples: int
    gammas: tuple[int, ...]
    stopped: bool

    @property
    def idle(self) -> bool:
        """Whether an adaptive policy never acted.

        At T=0, where all drafts may be accepted, it need not act.
        """
        return self.gamma_policy != "fixed" and self.sampling != "T=0" and len(self.gammas) < 2 and not self.stopped

    @property
    def holds(self) -> bool:
        """Whether an exact rule passes both tests under a policy that acts; True for a lossy rule."""
        if self.p_value is None:
            return True
        return self.total_variation <= ROUNDING_OF[torch.float64] and self.p_value > FALSE_ALARM and not self.idle


class _Watched:
    """Wrapper of a gamma policy that records its decisions."""

    def __init__(self, policy: GammaPolicy):
        self.policy = policy
        self.gammas: set[int] = set()
        self.stopped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def next_gamma(self) -> int:
        gamma = self.policy.next_gamma()
        self.gammas.add(gamma)
        return gamma

    @property
    def should_continue(self) -> Callable[[DraftedNode], Tensor] | None:
        return None if self.policy.should_continue is None else self._asked

    def _asked(self, node: DraftedNode) -> Tensor:
        assert self.policy.should_continue is not None
        goes_on = self.policy.should_continue(node)
        self.stopped |= not bool(goes_on.all())
        return goes_on


class Prover:
    """Computes the cells of the matrix on a tiny random target, with every part built from its yaml.

    Args:
        samples: sequences per cell.
        vocabulary: vocabulary size of the target.
        gamma: draft depth; adaptive policies get one more as max_gamma.
        thorough: whether all rules meet all sampling settings, default rules get all samples at each, and all policies
            meet all drafters.
    """

    def __init__(self, *, samples: int, vocabulary: int, gamma: int, thorough: bool = True):
        self.samples, self.gamma, self.thorough = samples, gamma, thorough
        self.target = tiny_target(vocabulary=vocabulary, **NARROW)
        self.drafters = {name: tiny_factory(name, vocabulary)(target=self.target) for name in NAMES}
        self.verifiers: dict[str, Verifier] = rules()
        self.distribution = cache(
            lambda sampling, length: continuation_distribution(self.target, PROMPT, length, sampling)
        )
        self.enumerated = cache(
            lambda verifier, scheme, shape, sampling: worst_total_variation(
                self.verifiers[verifier], scheme=scheme, shape=shape, sampling=sampling
            )[0]
        )

    def matrix(self) -> Iterator[Case]:
        """Yield a case per drafter, compatible rule and sampling setting.

        If not thorough, rules other than a drafter's default rule are combined with T=1 and T=0 only; enumeration
        covers all settings.
        """
        for drafter, verifier, sampling in product(self.drafters, self.verifiers, SAMPLINGS):
            wanted = self.thorough or sampling in ("T=1", "T=0") or verifier == self.usual(drafter)
            if wanted and self.fits(verifier, drafter):
                yield drafter, verifier, "fixed", sampling

    def policies(self) -> Iterator[Case]:
        """Yield a case per adaptive policy and drafter it can steer, with its default rule, at T=1 and T=0.

        If not thorough, a policy steers some of the drafters only, and each drafter is steered by some policy.
        """
        others = [policy for policy in yamls("gamma") if not isinstance(self._policy(policy), Fixed)]
        pairs = [pair for pair in product(self.drafters, others) if self._steers(*pair)]
        for (drafter, policy), sampling in product(pairs[:: 1 if self.thorough else POLICY_SHARE], ("T=1", "T=0")):
            yield drafter, self.usual(drafter), policy, sampling

    def _steers(self, drafter: str, policy: str) -> bool:
        """Whether the policy can act: one that ends drafts early needs a drafter that drafts step by step."""
        return self._policy(policy).should_continue is None or is_stepwise(self.drafters[drafter])

    def usual(self, drafter: str) -> str:
        """Name of the default rule for a drafter's scheme and shape."""
        standard = default_verifier(self.drafters[drafter].scheme, self.drafters[drafter].shape)
        return next(name for name, rule in self.verifiers.items() if type(rule) is type(standard))

    def fits(self, verifier: str, drafter: str) -> bool:
        """Whether a rule accepts a drafter's scheme and shape."""
        try:
            self.verifiers[verifier].check(self.drafters[drafter].scheme, self.drafters[drafter].shape)
        except ValueError:
            return False
        return True

    def cell(self, drafter: str, verifier: str, policy: str, sampling: str) -> Cell:
        """Compute one cell: an enumeration and, for an exact rule, a chi-square test."""
        rule, built, setting = self.verifiers[verifier], self.drafters[drafter], SAMPLINGS[sampling]
        exact = rule.guarantee is Guarantee.EXACT or (rule.guarantee is Guarantee.GREEDY_EXACT and setting.greedy)
        watched = _Watched(self._policy(policy))
        samples = self._samples(policy, setting, is_standard=verifier == self.usual(drafter))
        tokens = self._sample(drafter, verifier, watched, setting, samples) if exact else []
        fit = self.distribution(setting, len(tokens[0])).fit(tokens) if exact else None
        return Cell(
            drafter=drafter,
            verifier=verifier,
            gamma_policy=policy,
            sampling=sampling,
            exact=exact,
            total_variation=self.enumerated(verifier, built.scheme, built.shape, setting),
            p_value=fit.p_value if fit else None,
            sampled=fit.total_variation if fit else None,
            samples=len(tokens),
            gammas=tuple(sorted(watched.gammas)),
            stopped=watched.stopped,
        )

    def _samples(self, policy: str, sampling: Sampling, *, is_standard: bool) -> int:
        """Number of sequences: all for a drafter's default rule, a tenth for others, which see the same drafts."""
        if sampling.greedy:
            return min(self.samples, GREEDY_SAMPLES)
        if policy != "fixed":
            return max(LEAST_ADAPTIVE_SAMPLES, self.samples // SMALL_SHARE)
        in_full = is_standard and (self.thorough or sampling == Sampling())
        return self.samples if in_full else self.samples // SMALL_SHARE

    def _sample(
        self, drafter: str, verifier: str, policy: _Watched, sampling: Sampling, samples: int
    ) -> list[list[int]]:
        """Sample continuations of one prompt: the prefill's token and one round, or two where gamma may change."""
        engine = Engine(
            target=self.target,
            drafter=self.drafters[drafter],
            verifier=self.verifiers[verifier],
            gamma_policy=policy,
            sampling=sampling,
        )
        fixed = isinstance(policy.policy, Fixed)
        rows = ROWS_PER_BATCH if fixed else ROWS_PER_ADAPTIVE_BATCH
        stopping, tokens = Stopping(max_new_tokens=self.gamma + (2 if fixed else 4)), []
        for first in range(0, samples, rows):
            seeds = list(range(first, min(first + rows, samples)))
            tokens += engine.generate([PROMPT] * len(seeds), stopping=stopping, seeds=seeds).tokens
        return tokens

    def _policy(self, name: str) -> GammaPolicy:
        node = yamls("gamma")[name].copy()
        gamma = self.gamma + (name != "fixed")
        ours = {"gamma": gamma, "max_gamma": gamma, "initial": gamma, "gammas": [gamma, 1]} | LIVELY
        ours["candidates"] = list(range(gamma + 1))
        node.update({key: value for key, value in ours.items() if key in node})
        policy: GammaPolicy = build(node)
        give_costs(policy, Costs(c=LIVELY["c"], target_times=(1.0,) * (policy.max_gamma + 1)))
        return policy
