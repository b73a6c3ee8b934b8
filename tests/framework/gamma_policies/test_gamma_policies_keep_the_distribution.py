"""No gamma policy changes the output distribution: whole generations, enumerated and sampled from the engine."""

import copy
import io
import math
import pickle
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from experiments.config.builders import build
from experiments.config.resolvers import register_resolvers
from experiments.proof.tiny_drafters import NAMES, tiny_factory
from framework.conformance.goodness_of_fit import Fit, continuation_distribution
from framework.conformance.tiny_models import NARROW, tiny_target
from framework.conformance.toy_distributions import random_tables
from framework.core.draft import Draft, DraftedNode, TargetRows
from framework.core.drafter import Drafter
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.drafting.chain_builder import ChainBuilder
from framework.gamma_policies.gamma_policy import Costs, GammaPolicy
from framework.gamma_policies.round_profile import give_costs
from framework.models.target import Target
from framework.verifiers.speculative_sampling import SpeculativeSampling
from tests.support.rounds import readout
from tests.support.slow_cases import mostly_slow

pytestmark = pytest.mark.usefixtures("narrow_buffers")

FOLDER = Path(__file__).parents[3] / "conf" / "gamma"
POLICIES = sorted({path.stem for path in FOLDER.glob("*.yaml")} - {"fixed_8"})  # fixed with another number
register_resolvers()  # one yaml refers to an embedded head
GREEDY = Sampling(temperature=0)
RAGGED = [[5, 6, 7, 8, 5, 6], [9], [3, 4], [1, 2, 1, 2, 1, 2, 1], [30], [7] * 20, [11, 12, 13], [2, 40, 2, 40]]
# Options under which gamma changes within a few tokens of a tiny model; other policies keep their yaml.
LIVELY = {
    "heuristic": {"initial": 2, "max_gamma": 4},
    "expected_speedup": {"max_gamma": 4, "forgetting": 0.5, "probe_every": 2},
    "draft_exit": {"max_gamma": 4, "threshold": 0.3, "alpha_target": 0.6, "b2": 0.0, "eps": 0.1},
    "confidence_threshold": {"max_gamma": 4, "threshold": 0.6},
    "entropy_bound": {"max_gamma": 4, "threshold": 0.57},
    "stop_head": {"max_gamma": 4, "threshold": 0.4},
    "bandit": {"gammas": [1, 3, 0, 4]},
    "exp3": {"gammas": [1, 3, 0, 4]},
    "auto": {"candidates": [0, 1, 2, 4], "prior_weight": 1, "forgetting": 0.5},
}


def policy_of(name: str, *, c: float = 0.2) -> GammaPolicy:
    """Build a policy from its yaml, with the options above and, if used, fixed costs."""
    policy = build(OmegaConf.merge(OmegaConf.load(FOLDER / f"{name}.yaml"), LIVELY.get(name, {})))
    give_costs(policy, Costs(c=c, target_times=(1.0,) * (policy.max_gamma + 1)))
    return policy


def build_drafter(name: str, target: Target) -> Drafter:
    return tiny_factory(name, target.vocabulary_size)(target=target)


def engine(target: Target, drafter: Drafter, policy: GammaPolicy, sampling: Sampling = GREEDY) -> Engine:
    return Engine(target=target, drafter=drafter, gamma_policy=policy, sampling=sampling)


# Enumeration of whole generations

WIDTH, LENGTH = 2, 5
WEAK = torch.finfo(torch.float64).eps


def distribution_of_generations(policy: GammaPolicy, p: Tensor, q: Tensor) -> Tensor:
    """Distribution of generations, summed over every draft, stop and next token that a policy observes.

    Args:
        p, q: [V, V]: the distributions of the token after each token.

    Returns:
        [V ** LENGTH] float64: probabilities of the tokens after token 0.
    """
    policy.begin()
    return Play(p, q).on(policy, 0, LENGTH)


class Play:
    """Distributions of continuations, summed once per state of the policy, pending token and length."""

    def __init__(self, p: Tensor, q: Tensor):
        self.p, self.q = p, q
        self.found: dict[tuple[bytes, int, int], Tensor] = {}

    def on(self, policy: GammaPolicy, pending: int, remaining: int) -> Tensor:
        """[V ** remaining] float64: distribution of the tokens after the pending one."""
        if remaining == 0:
            return torch.ones(1, dtype=torch.float64)
        key = (state_of(policy), pending, remaining)
        if key not in self.found:
            self.found[key] = self._on(copy.deepcopy(policy), pending, remaining)
        return self.found[key]

    def _on(self, policy: GammaPolicy, pending: int, remaining: int) -> Tensor:
        probs = torch.zeros(WIDTH**remaining, dtype=torch.float64)
        gamma = min(policy.next_gamma(), remaining - 1)
        draft, weights = drafts(policy, self.q, pending, gamma)
        for row, weight in enumerate(weights.tolist()):
            one = draft.rows(torch.tensor([row]))
            nodes = one.tokens[0].tolist()
            target = TargetRows(self.p[[pending, *nodes]].log().unsqueeze(0), one, Sampling())
            verifier = SpeculativeSampling()
            for stop, chance in enumerate(verifier.stop_probs(target, one)[0].tolist()):
                if weight * chance <= WEAK:
                    continue
                after = copy.deepcopy(policy)
                after.observe(readout((int(one.offered_depth), stop)))
                for token, share in enumerate(verifier.next_token_probs(target, one, torch.tensor([stop]))[0].tolist()):
                    if share > 0:
                        committed = [*nodes[:stop], token]
                        then = self.on(after, token, remaining - len(committed))
                        first = sum(each * WIDTH**place for place, each in enumerate(reversed(committed))) * len(then)
                        probs[first : first + len(then)] += weight * chance * share * then
        return probs


class ByValue(pickle.Pickler):
    """Pickles tensors by their values: their own bytes contain a memory address."""

    def reducer_override(self, value: object) -> object:
        return (bytes, (value.detach().numpy().tobytes(),)) if isinstance(value, Tensor) else NotImplemented


def state_of(policy: GammaPolicy) -> bytes:
    """A policy's state as bytes: equal for policies with equal future behaviour."""
    written = io.BytesIO()
    ByValue(written).dump(vars(policy))
    return written.getvalue()


def drafts(policy: GammaPolicy, q: Tensor, pending: int, gamma: int) -> tuple[Draft, Tensor]:
    """Every chain that ChainBuilder may grow after a token, and the probability of each."""
    if gamma == 0:
        return Draft.empty(1, torch.device("cpu")), torch.ones(1, dtype=torch.float64)
    paths = torch.cartesian_prod(*[torch.arange(WIDTH)] * gamma).view(-1, gamma)
    read = torch.cat([torch.full((len(paths), 1), pending), paths[:, :-1]], 1)
    masses = q[read].gather(2, paths.unsqueeze(2)).squeeze(2)
    uniforms = q[read].cumsum(2).gather(2, paths.unsqueeze(2)).squeeze(2) - masses / 2  # they select these tokens
    chain = ChainBuilder(
        gamma=gamma,
        active=torch.ones(len(paths), dtype=torch.bool),
        sampling=Sampling(),
        uniforms=uniforms,
        should_continue=policy.should_continue,
    )
    logits = q[torch.full((len(paths),), pending)].log()
    while chain.add(logits):
        logits = q[chain.last].log()
    return chain.draft(), masses.prod(1)


@pytest.mark.parametrize("name", POLICIES)
def test_whole_generations_follow_the_targets_distribution(name: str) -> None:
    """Each round is exact given any past of the policy, and hence the whole generation."""
    for seed in range(3):
        tables, _ = random_tables("random", WIDTH, 2, torch.Generator().manual_seed(seed))
        p, q = tables[1], torch.tensor([[0.55, 0.45], [0.3, 0.7]], dtype=torch.float64)
        expected = torch.ones(1, dtype=torch.float64)
        for place in range(LENGTH):
            last = torch.arange(WIDTH**place) % WIDTH  # last token of every prefix; token 0 is pending at first
            expected = (expected.unsqueeze(1) * p[last]).flatten()
        probs = distribution_of_generations(policy_of(name), p, q)
        assert math.isclose(probs.sum().item(), 1, abs_tol=1e-12)
        assert (probs - expected).abs().sum() / 2 <= 1e-12, seed


def test_the_sum_over_generations_sees_a_weak_token_that_is_dropped() -> None:
    class Drops:
        """Decides about a node after drawing it, which ChainBuilder never does."""

        max_gamma = 3

        def should_continue(self, node: DraftedNode) -> Tensor:
            return node.confidence >= 0.5

        def begin(self) -> None:
            pass

        def next_gamma(self) -> int:
            return 3

        def observe(self, outcome: object) -> None:
            pass

    honest = ChainBuilder.draft

    def dropping(chain: ChainBuilder) -> Draft:
        draft = honest(chain)
        return draft.offered((draft.prob_of_tokens() >= 0.5).cumprod(1).bool())

    p = torch.tensor([[0.7, 0.3], [0.4, 0.6]], dtype=torch.float64)
    q = torch.tensor([[0.55, 0.45], [0.3, 0.7]], dtype=torch.float64)
    exact = distribution_of_generations(Drops(), p, q)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChainBuilder, "draft", dropping)
        biased = distribution_of_generations(Drops(), p, q)
    assert (exact - biased).abs().sum() / 2 > 1e-2


# Samples from the engine

KINDS = ("medusa", "ngram", "small_transformer", "transformer_tree")  # tree and chain, chosen and drawn
ANY_DRAFTER = ("confidence_threshold", "expected_speedup")  # the first ends drafts, the second changes gamma
PAIRS = [pair for pair in product(NAMES, POLICIES) if pair[0] in KINDS or pair[1] in ANY_DRAFTER]


@pytest.mark.parametrize(
    ("name", "policy"),
    mostly_slow(PAIRS, fast=[pair for pair in PAIRS if pair[0] == "small_transformer"]),
)
def test_greedy_tokens_equal_plain_decoding(name: str, policy: str) -> None:
    target, stopping = tiny_target(), Stopping(max_new_tokens=30, eos_ids=(0,))
    seeds = list(range(len(RAGGED)))
    expected = Autoregressive(target=target, sampling=GREEDY).generate(RAGGED, stopping=stopping, seeds=seeds)
    decoder = engine(target, build_drafter(name, target), policy_of(policy))
    together = decoder.generate(RAGGED, stopping=stopping, seeds=seeds)
    assert together.tokens == expected.tokens and together.finish_reasons == expected.finish_reasons
    for row in (0, 3, 5):
        assert decoder.generate(RAGGED[row : row + 1], stopping=stopping, seeds=[row]).tokens[0] == expected.tokens[row]


PROMPT, NEW_TOKENS, SAMPLES = [1, 2, 1, 0, 2], 5, 8000
STEPWISE = ["ngram", "small_transformer"]


def fit_of(decoder: Engine, rows_together: int = SAMPLES, samples: int = SAMPLES) -> tuple[Fit, np.ndarray]:
    """Fit of generations to a three-token model's distribution, and the passes by number of nodes."""
    generated, passes = [], np.zeros(5)
    for first in range(0, samples, rows_together):
        seeds = list(range(first, first + rows_together))
        generation = decoder.generate([PROMPT] * rows_together, stopping=Stopping(NEW_TOKENS), seeds=seeds)
        generated += generation.tokens
        passes[: len(generation.tally.passes)] += generation.tally.passes
    probs = continuation_distribution(decoder.target, PROMPT, NEW_TOKENS, decoder.sampling)
    return probs.fit(generated), passes


TRUNCATED = (
    "confidence_threshold",
    Sampling(temperature=0.7, top_p=0.9),
)  # its confidence is that of the truncated distribution


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "sampling"), [*((policy, Sampling()) for policy in POLICIES), TRUNCATED], ids=str)
@pytest.mark.parametrize("name", STEPWISE)
def test_output_follows_the_targets_distribution(name: str, policy: str, sampling: Sampling) -> None:
    """Chi-square over all continuations of 5 tokens; false-alarm rate 1e-7 each; fixed seeds."""
    target = tiny_target(vocabulary=3, **NARROW)
    fit, passes = fit_of(engine(target, build_drafter(name, target), policy_of(policy), sampling))
    assert passes[2:].sum() > 0
    assert fit.p_value > 1e-7, f"total variation {fit.total_variation:.3f}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"), [("ngram", "heuristic"), ("small_transformer", "expected_speedup"), ("ngram", "bandit")]
)
def test_output_follows_the_targets_distribution_in_small_batches(name: str, policy: str) -> None:
    """Batches of sixteen rows, whose outcomes together decide gamma; false-alarm rate 1e-7 each."""
    target = tiny_target(vocabulary=3, **NARROW)
    decoder = engine(target, build_drafter(name, target), policy_of(policy), Sampling())
    fit, passes = fit_of(decoder, rows_together=16)
    assert (passes > 0).sum() >= 3  # different draft sizes
    assert fit.p_value > 1e-7, f"total variation {fit.total_variation:.3f}"


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPWISE)
def test_dropping_the_weak_token_itself_is_caught(name: str) -> None:
    """Negative control: the same stop one node earlier, without the weak token."""
    target, policy = tiny_target(vocabulary=3, **NARROW), policy_of("confidence_threshold")
    drafter = build_drafter(name, target)
    honest = drafter.propose

    def propose(sequences, gamma, uniforms, should_continue):
        draft = honest(sequences, gamma, uniforms, should_continue)
        return draft.offered((draft.prob_of_tokens() >= policy.threshold).cumprod(1).bool())

    drafter.propose = propose
    fit, _ = fit_of(engine(target, drafter, policy, Sampling()))
    assert fit.p_value < 1e-7


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=["T=0", "T=1"])
@pytest.mark.parametrize("name", STEPWISE)
def test_rows_stop_for_themselves(name: str, sampling: Sampling) -> None:
    """Under a threshold, a row's tokens depend on its prompt and seed alone."""
    target, stopping = tiny_target(), Stopping(max_new_tokens=20, eos_ids=(0,))
    decoder = engine(target, build_drafter(name, target), policy_of("confidence_threshold"), sampling)
    together = decoder.generate(RAGGED, stopping=stopping, seeds=list(range(len(RAGGED))))
    for row, prompt in enumerate(RAGGED):
        assert decoder.generate([prompt], stopping=stopping, seeds=[row]).tokens[0] == together.tokens[row]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_call_gives_the_same_tokens(policy: str) -> None:
    """Generations in between, by any engine, change nothing."""
    target, stopping = tiny_target(), Stopping(max_new_tokens=20)
    drafter = build_drafter("small_transformer", target)
    one, other = (engine(target, drafter, policy_of(policy), Sampling()) for _ in range(2))
    first = one.generate(RAGGED, stopping=stopping, seeds=list(range(8)))
    for decoder in (one, other):
        decoder.generate([[7] * 30], stopping=stopping, seeds=[9])
    for decoder in (one, other):
        again = decoder.generate(RAGGED, stopping=stopping, seeds=list(range(8)))
        assert again.tokens == first.tokens and again.tally.counts() == first.tally.counts()


class Scripted:
    """Cycles through given gammas and stops a row after a weak token."""

    def __init__(self, gammas: list[int], threshold: float):
        self.max_gamma, self._gammas, self._threshold = max(gammas), gammas, threshold

    def should_continue(self, node: DraftedNode) -> Tensor:
        return node.confidence >= self._threshold

    def begin(self) -> None:
        self._round = -1

    def next_gamma(self) -> int:
        self._round += 1
        return self._gammas[self._round % len(self._gammas)]

    def observe(self, outcome: object) -> None:
        pass


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.3])
def test_a_stopped_drafter_has_read_what_it_thinks_it_has(threshold: float) -> None:
    """Every draft equals that of a drafter without a past: no stale or missing slot."""
    target = tiny_target()
    drafter, fresh, clone = (build_drafter("small_transformer", target) for _ in range(3))
    honest, depths = drafter.propose, set()

    def propose(sequences, gamma, uniforms, should_continue):
        draft = honest(sequences, gamma, uniforms, should_continue)
        fresh.begin(sequences, None, Sampling())
        expected = fresh.propose(sequences, gamma, uniforms, should_continue)
        active = sequences.active
        assert torch.equal(draft.tokens[active], expected.tokens[active])
        assert torch.equal(draft.valid[active], expected.valid[active])
        assert torch.allclose(draft.probs[active], expected.probs[active], rtol=0, atol=1e-5)
        depths.add((gamma, draft.num_nodes))
        return draft

    drafter.propose = propose
    policy = Scripted([3, 0, 1, 4, 4, 0, 0, 2], threshold)
    # The target rejects early; its clone, where the drafter is always right, accepts whole drafts.
    for model in (target, Target(clone.model, target.tokenizer, target.vocabulary_size, "clone")):
        decoder = engine(model, drafter, policy, Sampling())
        decoder.generate(RAGGED[:3], stopping=Stopping(max_new_tokens=40), seeds=[0, 1, 2])
    assert {gamma for gamma, _ in depths} >= {1, 2, 3, 4}
    assert any(nodes < gamma for gamma, nodes in depths) == (threshold > 0)
