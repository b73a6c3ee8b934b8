"""Blockwise acceptance: top-k, distance and minimum block by hand, and exact match as greedy decoding."""

import pytest
import torch
from omegaconf import OmegaConf

from experiments.proof.tiny_drafters import FOLDER, tiny_factory_of
from framework.conformance import check_verifier
from framework.conformance.tiny_models import tiny_target
from framework.core.draft import Draft, SamplingScheme, TargetRows
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.verifiers.blockwise import BlockwiseAcceptance
from framework.verifiers.verifier import Guarantee

EXACT_MATCH = {"top_k": 1, "distance": 0, "min_block": 1}
PROBS = [0.1, 0.4, 0.3, 0.05, 0.15]  # best to worst: 1, 2, 4, 0, 3
GREEDY = Sampling(temperature=0)


def kept(
    tokens: list[int], *, sampling: Sampling = GREEDY, probs: list[float] = PROBS, offered: int = 9, **options
) -> int:
    """Number of accepted chosen tokens, all after the same distribution."""
    rule = BlockwiseAcceptance(**(EXACT_MATCH | options))
    valid = torch.arange(len(tokens)).unsqueeze(0) < offered
    draft = Draft.chain(torch.tensor([tokens]), SamplingScheme.ONE_HOT, valid=valid)
    rows = TargetRows(torch.tensor(probs).log().expand(1, len(tokens) + 1, -1), draft, sampling)
    (stop_probs,) = rule.stop_probs(rows, draft).tolist()
    assert sorted(stop_probs)[-2:] == [0, 1]  # stops are certain
    stop = stop_probs.index(1)
    assert torch.equal(rule.next_token_probs(rows, draft, torch.tensor([stop])), rows.probs(torch.tensor([stop])))
    return stop


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(temperature=0.3, top_k=1)], ids=str)
@pytest.mark.parametrize(("tokens", "options", "expected"), [
    ([1, 1, 2], {}, 2),
    ([1, 2, 2, 4, 1], {"top_k": 2}, 3),
    ([4, 2, 1, 0, 1], {"top_k": 3}, 3),
    ([0, 2, 1, 3, 1], {"distance": 1}, 3),
    ([3, 0, 2, 4], {"distance": 2}, 3),
    ([4, 3, 1], {"distance": 2, "top_k": 3}, 3),
    ([0, 3, 1, 1, 2], {"min_block": 3}, 4),
    ([0, 3, 2, 1], {"min_block": 3}, 2),
    ([0, 0], {"min_block": 9}, 2),
    ([0, 0, 0], {"min_block": 9, "offered": 1}, 1),
])  # fmt: skip
def test_what_is_good_enough_is_kept(tokens, options, expected, sampling):
    assert kept(tokens, sampling=sampling, **options) == expected


def test_of_equally_good_tokens_the_smallest_is_the_best():
    assert kept([1], probs=[0.2, 0.4, 0.4]) == 1 and kept([2], probs=[0.2, 0.4, 0.4]) == 0


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=str)
@pytest.mark.parametrize("wrong", [0, 1])
def test_a_node_judged_by_logits_with_nan_leaves_no_probabilities(wrong, sampling):
    """Comparisons with NaN are false: without a check the node would pass as best."""
    logits = torch.zeros(1, 3, 5)
    logits[0, wrong, 3] = torch.nan
    draft = Draft.chain(torch.zeros(1, 2, dtype=torch.int64), SamplingScheme.ONE_HOT)
    rule = BlockwiseAcceptance(**EXACT_MATCH)
    assert rule.stop_probs(TargetRows(logits, draft, sampling), draft).isnan().any()


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"distance": 1}, {"min_block": 2}], ids=str)
def test_only_exact_match_promises_something_and_keeps_it(options):
    rule = BlockwiseAcceptance(**(EXACT_MATCH | options))
    assert rule.guarantee is (Guarantee.LOSSY if options else Guarantee.GREEDY_EXACT)
    check_verifier(lambda: rule).require()


@pytest.mark.parametrize("key", ["top_k", "distance", "min_block"])
@pytest.mark.parametrize("value", [-1, 0.5, True])
def test_numbers_are_checked(key, value):
    with pytest.raises(ValueError, match=rf"^{key} is {value}; allowed: a whole number >= "):
        BlockwiseAcceptance(**(EXACT_MATCH | {key: value}))


def test_blocks_are_as_large_as_promised_and_exact_match_is_greedy_decoding():
    target, stopping, prompts = tiny_target(), Stopping(max_new_tokens=30), [[1, 2, 3], [9] * 5]
    heads = OmegaConf.merge(OmegaConf.load(FOLDER / "medusa.yaml"), {"form": "greedy_chain"})
    drafter = tiny_factory_of(heads, target.vocabulary_size)(target=target)
    greedy = Autoregressive(target=target, sampling=GREEDY).generate(prompts, stopping=stopping, seeds=[0, 1])

    def decoded(**options):
        rule = BlockwiseAcceptance(**(EXACT_MATCH | options))
        engine = Engine(target=target, drafter=drafter, verifier=rule, gamma_policy=Fixed(gamma=3), sampling=GREEDY)
        return engine.generate(prompts, stopping=stopping, seeds=[0, 1])

    exact, forced = decoded(), decoded(min_block=3)
    assert exact.tokens == greedy.tokens and forced.tokens != greedy.tokens
    fewest = {offered: row.nonzero()[0].min() for offered, row in enumerate(forced.tally.accepted) if row.any()}
    assert all(kept == min(2, offered) for offered, kept in fewest.items()) and 3 in fewest
