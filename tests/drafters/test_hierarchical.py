"""A speculative loop as a drafter.

q is the middle model's distribution, and the states of both levels follow the target.
"""

from functools import partial

import pytest
import torch

from drafters.hierarchical import Hierarchical
from drafters.prompt_lookup import PromptLookup
from drafters.small_transformer import SmallTransformer
from drafters.transformer_tree import TransformerTree
from framework.conformance import check_drafter
from framework.conformance.tiny_models import tiny_model, tiny_target
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.metrics.stopwatch import Stopwatch
from framework.models.cached_lm import CachedLM
from framework.verifiers.speculative_sampling import SpeculativeSampling

PROMPTS = [[5, 6, 7, 8, 5, 6], [9], [1, 2, 1, 2, 1, 2, 1]]


def model(seed):
    return lambda target: CachedLM(
        tiny_model(vocabulary=target.vocabulary_size, seed=seed), vocabulary_size=target.vocabulary_size
    )


def small(seed):
    return lambda target: SmallTransformer(target, model=model(seed))


def tree(seed):
    return lambda target: TransformerTree(target, model=model(seed), branching=[2, 2], children="iid")


def three_levels(target, *, middle=7, smallest=8, gamma=2, inner=small):
    return Hierarchical(target, model=model(middle), drafter=inner(smallest), gamma=gamma)


class InTurns:
    """Repeats a list of gammas; 0 is a round without a draft."""

    should_continue = None

    def __init__(self, gammas):
        self.gammas, self.max_gamma, self.rounds = gammas, max(gammas), 0

    def begin(self):
        self.rounds = 0

    def next_gamma(self):
        self.rounds += 1
        return self.gammas[(self.rounds - 1) % len(self.gammas)]

    def observe(self, readout):
        pass


def generate(target, drafter, sampling, policy, on_round=None):
    rule = SpeculativeSampling()
    decoder = Engine(target=target, drafter=drafter, verifier=rule, gamma_policy=policy, sampling=sampling)
    stopping = Stopping(max_new_tokens=30)
    return decoder.generate(PROMPTS, stopping=stopping, seeds=[0, 1, 2], on_round=on_round)


@pytest.mark.slow
@pytest.mark.parametrize("inner", [small, tree])
def test_q_is_the_middle_models_distribution_of_every_token(inner):
    target, sampling = tiny_target(), Sampling(temperature=0.8, top_k=20)
    drafter = three_levels(target, inner=inner)
    middle = model(7)(target)
    seen = []

    def on_round(outcome):
        seen.append((outcome.draft.tokens.tolist(), outcome.draft.probs, outcome.num_committed.tolist()))

    tokens = generate(target, drafter, sampling, Fixed(gamma=4), on_round).tokens
    texts = [prompt + new[:1] for prompt, new in zip(PROMPTS, tokens, strict=True)]
    compared = 0
    for drafted, q, committed in seen:
        for row, text in enumerate(texts):
            if q is not None and committed[row]:
                logits = middle.uncached(torch.tensor([text + drafted[row]]))[0, len(text) - 1 : -1]
                assert torch.allclose(q[row], sampling.probs(logits), atol=1e-5)
                compared += len(drafted[row])
            done = len(text) - len(PROMPTS[row])
            text += tokens[row][done : done + committed[row]]
    assert compared > 100
    assert 0 < drafter.inner_tally.metrics()["alpha/empirical"] < 1  # accepted, replaced and bonus tokens occur


@pytest.mark.parametrize("inner", [small, tree])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0)], ids=["drawing", "greedy"])
def test_clones_of_the_target_are_always_right_also_behind_rounds_without_a_draft(sampling, inner):
    """A stale or missing slot of either level causes a rejection; seed 0 is the target's."""
    target = tiny_target()
    drafter = three_levels(target, middle=0, smallest=0, inner=inner)
    tally = generate(target, drafter, sampling, InTurns([3, 0, 1, 0, 0, 4])).tally
    assert sum(tally.accepted_by_position) == sum(tally.tested_by_position) > 20
    inside = drafter.inner_tally.metrics()["alpha/empirical"]
    assert inside == 1 if inner is small or sampling.greedy else inside > 0.5


def test_middle_rounds_are_fewer_than_the_tokens_they_bring():
    """With a clone at the bottom, an inner round yields gamma + 1 tokens: two rounds for 5 + 1."""
    target = tiny_target()
    drafter = three_levels(target, middle=7, smallest=7, gamma=2)
    seen = []
    generate(target, drafter, Sampling(), Fixed(gamma=5), lambda outcome: seen.append(outcome.draft.num_nodes))
    assert drafter.inner_tally.passes.sum() == sum(-(-(nodes + 1) // 3) for nodes in seen)


def test_nothing_is_drafted_for_rows_that_are_done():
    """Inner rounds continue as long as a decoding row needs them."""
    target = tiny_target()
    drafter = three_levels(target)
    decoder = Engine(
        target=target, drafter=drafter, verifier=SpeculativeSampling(), gamma_policy=Fixed(gamma=6),
        sampling=Sampling(temperature=0.2),
    )  # fmt: skip

    def drafted(rows):
        decoding = decoder.begin(
            [PROMPTS[0]] * 8, stopping=Stopping(max_new_tokens=30), seeds=list(range(8)), detailed=False,
            stopwatch=Stopwatch(target.device),
        )  # fmt: skip
        decoding.sequences.active = torch.tensor([row in rows for row in range(8)])
        uniforms = decoding.uniforms.next_round().numbers[:, : drafter.num_uniforms(6)]
        tokens = drafter.propose(decoding.sequences, 6, uniforms).tokens.tolist()
        assert drafter.inner_tally.committed == 7 * len(rows)
        return tokens, drafter.inner_tally.passes.sum()

    together, most = drafted(range(8))
    alone = [drafted([row]) for row in range(8)]
    assert [tokens[row] for row, (tokens, _) in enumerate(alone)] == together
    assert min(passes for _, passes in alone) < max(passes for _, passes in alone) == most


@pytest.mark.usefixtures("narrow_buffers")
@pytest.mark.slow
def test_four_levels_keep_the_contract():
    target = tiny_target(vocabulary=5)

    def factory(target):
        inside = partial(three_levels, middle=5, smallest=6)
        return Hierarchical(target, model=model(4), drafter=inside, gamma=2)

    check_drafter(factory, target=target, gamma=2, samples=2000).require()


def test_a_drafter_that_cannot_take_tokens_back_is_refused():
    def lookup(target):
        return PromptLookup(target=target, max_ngram=3, min_ngram=1, match="last", from_source=True)

    with pytest.raises(ValueError, match=r"^drafter is 'PromptLookup', .* allowed: drafters with `rewind`"):
        Hierarchical(tiny_target(), model=model(1), drafter=lookup, gamma=2)
    with pytest.raises(ValueError, match=r"^gamma is 0; allowed: a whole number from 1 to 1000"):
        three_levels(tiny_target(), gamma=0)
