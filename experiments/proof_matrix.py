"""The cells of the proof: drafters, rules, gamma policies and samplings, enumerated and through the real path."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from torch import Tensor

from experiments.assemble import build, rules, yamls
from experiments.tiny_drafters import NAMES, tiny_factory
from framework.conformance.verifier_checks import ROUNDING, SAMPLINGS
from framework.draft import DraftedNode
from framework.engine import Engine
from framework.gamma_policies.fixed import Fixed
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.goodness_of_fit import continuation_law
from framework.sampling import Sampling
from framework.standard_cases import worst_total_variation
from framework.stopping import Stopping
from framework.tiny_models import tiny_target
from framework.verifiers.standard import standard_rule
from framework.verifiers.verifier import Guarantee, Verifier

PROMPT = [1, 2, 1, 1, 2]
ROWS_PER_BATCH = 5_000  # more are no faster: their buffers outgrow the caches
# What was accepted so far decides the next gamma, for all rows of a batch: few rows make it differ between batches,
# and are slow, so that one in so many of the samples must do.
ROWS_PER_ADAPTIVE_BATCH, SMALL_SHARE = 256, 10
LEAST_ADAPTIVE_SAMPLES = 5000
GREEDY_SAMPLES = 500  # at temperature 0 there is one continuation
# Knobs under which a policy moves within a few tokens, whatever the drafter's alpha: it begins in doubt, and drafting
# is cheap; the others are those of its yaml.
LIVELY = {
    "c": 0.1,
    "prior_accepted": 0.1,
    "prior_rejected": 2,
    "forgetting": 0.5,
    "probe_every": 2,
    "threshold": 0.9,
}
FALSE_ALARM = 1e-9  # of one chi-square test, if the law is right; seeds are fixed


@dataclass(frozen=True)
class Cell:
    """One drafter, rule, gamma policy and sampling setting.

    Attributes:
        exact: whether the rule claims to be, at this setting.
        total_variation: of the rule on drafts of this law and shape, by enumeration.
        p_value: of the chi-square test through engine, cache, sampling and draws; None where nothing is claimed.
        sampled: total variation of that sample from the law, its noise included; None likewise.
        samples: sequences drawn for it.
        gammas: every gamma that the policy chose, in ascending order.
        stopped: whether it ended a draft in between.
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
        """Whether a policy is to be shown that did nothing; what is always accepted gives it no cause at T=0."""
        return self.gamma_policy != "fixed" and self.sampling != "T=0" and len(self.gammas) < 2 and not self.stopped

    @property
    def holds(self) -> bool:
        """Whether a rule that claims to be exact is, under a policy that acts; of a lossy one nothing is claimed."""
        if self.p_value is None:
            return True
        return self.total_variation <= ROUNDING and self.p_value > FALSE_ALARM and not self.idle


class _Watched:
    """A gamma policy that keeps what it decided."""

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
    def keep_drafting(self) -> Callable[[DraftedNode], Tensor] | None:
        return None if self.policy.keep_drafting is None else self._asked

    def _asked(self, node: DraftedNode) -> Tensor:
        assert self.policy.keep_drafting is not None
        goes_on = self.policy.keep_drafting(node)
        self.stopped |= not bool(goes_on.all())
        return goes_on


class Prover:
    """Fills the matrix on a tiny random target, every part as its yaml describes it."""

    def __init__(self, *, samples: int, vocabulary: int, gamma: int, thorough: bool = True):
        self.samples, self.gamma, self.thorough = samples, gamma, thorough
        self.target = tiny_target(vocabulary=vocabulary)
        self.drafters = {name: tiny_factory(name, vocabulary)(target=self.target) for name in NAMES}
        self.verifiers: dict[str, Verifier] = rules()
        self.law = cache(lambda sampling, length: continuation_law(self.target, PROMPT, length, sampling))
        self.enumerated = cache(
            lambda verifier, law, shape, sampling: worst_total_variation(
                self.verifiers[verifier], law=law, shape=shape, sampling=sampling
            )[0]
        )

    def matrix(self) -> Iterator[Cell]:
        """Every drafter with every rule that takes its drafts, at every sampling setting.

        If not thorough, rules other than a drafter's usual one are met at T=1 and T=0 only: enumeration has them all.
        """
        for drafter, verifier, sampling in product(self.drafters, self.verifiers, SAMPLINGS):
            wanted = self.thorough or sampling in ("T=1", "T=0") or verifier == self.usual(drafter)
            if wanted and self.fits(verifier, drafter):
                yield self.cell(drafter, verifier, "fixed", sampling)

    def policies(self) -> Iterator[Cell]:
        """Every policy that is not fixed, with every drafter it can steer and its usual rule, drawing and greedy."""
        others = [policy for policy in yamls("gamma") if not isinstance(self._policy(policy), Fixed)]
        for drafter, policy, sampling in product(self.drafters, others, ("T=1", "T=0")):
            if self._policy(policy).keep_drafting is not None and not hasattr(self.drafters[drafter], "keep_drafting"):
                continue  # it is never asked
            yield self.cell(drafter, self.usual(drafter), policy, sampling)

    def usual(self, drafter: str) -> str:
        """The rule that is standard for what a drafter drafts."""
        standard = standard_rule(self.drafters[drafter].law, self.drafters[drafter].shape)
        return next(name for name, rule in self.verifiers.items() if type(rule) is type(standard))

    def fits(self, verifier: str, drafter: str) -> bool:
        """Whether a rule takes what a drafter drafts."""
        try:
            self.verifiers[verifier].check(self.drafters[drafter].law, self.drafters[drafter].shape)
        except ValueError:
            return False
        return True

    def cell(self, drafter: str, verifier: str, policy: str, sampling: str) -> Cell:
        """One enumeration and one chi-square test."""
        rule, built, setting = self.verifiers[verifier], self.drafters[drafter], SAMPLINGS[sampling]
        exact = rule.guarantee is Guarantee.EXACT or (rule.guarantee is Guarantee.GREEDY_EXACT and setting.greedy)
        watched = _Watched(self._policy(policy))
        samples = self._samples(policy, setting, is_standard=verifier == self.usual(drafter))
        tokens = self._sample(drafter, verifier, watched, setting, samples) if exact else []
        fit = self.law(setting, len(tokens[0])).fit(tokens) if exact else None
        return Cell(
            drafter=drafter,
            verifier=verifier,
            gamma_policy=policy,
            sampling=sampling,
            exact=exact,
            total_variation=self.enumerated(verifier, built.law, built.shape, setting),
            p_value=fit.p_value if fit else None,
            sampled=fit.total_variation if fit else None,
            samples=len(tokens),
            gammas=tuple(sorted(watched.gammas)),
            stopped=watched.stopped,
        )

    def _samples(self, policy: str, sampling: Sampling, *, is_standard: bool) -> int:
        """Sequences to draw: many for every drafter with its usual rule; its other rules see the same drafts."""
        if sampling.greedy:
            return min(self.samples, GREEDY_SAMPLES)
        if policy != "fixed":
            return max(LEAST_ADAPTIVE_SAMPLES, self.samples // SMALL_SHARE)
        in_full = is_standard and (self.thorough or sampling == Sampling())
        return self.samples if in_full else self.samples // SMALL_SHARE

    def _sample(
        self, drafter: str, verifier: str, policy: _Watched, sampling: Sampling, samples: int
    ) -> list[list[int]]:
        """Continuations of one prompt: prefill's token and a round, or where gamma may change two."""
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
        node.update({key: value for key, value in ours.items() if key in node})
        return build(node)
