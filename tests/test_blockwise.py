"""Blockwise acceptance: top-k, distance and minimum block size by hand, and greedy decoding by exact match."""

import pytest
import torch
from omegaconf import OmegaConf

from experiments.tiny_drafters import FOLDER, tiny_factory_of
from framework.autoregressive import Autoregressive
from framework.conformance import check_verifier
from framework.draft import Draft, Law, TargetRows
from framework.engine import Engine
from framework.gamma_policies.fixed import Fixed
from framework.sampling import Sampling
from framework.stopping import Stopping
from framework.tiny_models import tiny_target
from framework.verifiers.blockwise import BlockwiseAcceptance
from framework.verifiers.verifier import Guarantee

EXACT_MATCH = {"top_k": 1, "distance": 0, "min_block": 1}
LAW = [0.1, 0.4, 0.3, 0.05, 0.15]  # from the best on: 1, 2, 4, 0, 3
GREEDY = Sampling(temperature=0)


def kept(tokens: list[int], *, sampling: Sampling = GREEDY, law: list[float] = LAW, offered: int = 9, **knobs) -> int:
    """How many of some chosen tokens are kept, all of them after the same law."""
    rule = BlockwiseAcceptance(**(EXACT_MATCH | knobs))
    valid = torch.arange(len(tokens)).unsqueeze(0) < offered
    draft = Draft.chain(torch.tensor([tokens]), Law.ONE_HOT, valid=valid)
    rows = TargetRows(torch.tensor(law).log().expand(1, len(tokens) + 1, -1), draft, sampling)
    (stop_law,) = rule.stop_law(rows, draft).tolist()
    assert sorted(stop_law)[-2:] == [0, 1]  # nothing is drawn
    stop = stop_law.index(1)
    assert torch.equal(rule.replacement(rows, draft, torch.tensor([stop])), rows.probs(torch.tensor([stop])))
    return stop


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(temperature=0.3, top_k=1)], ids=str)
@pytest.mark.parametrize(("tokens", "knobs", "expected"), [
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
def test_what_is_good_enough_is_kept(tokens, knobs, expected, sampling):
    assert kept(tokens, sampling=sampling, **knobs) == expected


def test_of_equally_good_tokens_the_smallest_is_the_best():
    assert kept([1], law=[0.2, 0.4, 0.4]) == 1 and kept([2], law=[0.2, 0.4, 0.4]) == 0


@pytest.mark.parametrize("knobs", [{}, {"top_k": 3}, {"distance": 1}, {"min_block": 2}], ids=str)
def test_only_exact_match_promises_something_and_keeps_it(knobs):
    rule = BlockwiseAcceptance(**(EXACT_MATCH | knobs))
    assert rule.guarantee is (Guarantee.LOSSY if knobs else Guarantee.GREEDY_EXACT)
    check_verifier(lambda: rule).require()


@pytest.mark.parametrize("key", ["top_k", "distance", "min_block"])
@pytest.mark.parametrize("value", [-1, 0.5, True])
def test_numbers_are_checked(key, value):
    with pytest.raises(ValueError, match=rf"verifier.{key} is {value}; allowed: a whole number >= "):
        BlockwiseAcceptance(**(EXACT_MATCH | {key: value}))


def test_blocks_are_as_large_as_promised_and_exact_match_is_greedy_decoding():
    target, stopping, prompts = tiny_target(), Stopping(max_new_tokens=30), [[1, 2, 3], [9] * 5]
    heads = OmegaConf.merge(OmegaConf.load(FOLDER / "medusa.yaml"), {"form": "greedy_chain"})
    drafter = tiny_factory_of(heads, target.vocabulary_size)(target=target)
    greedy = Autoregressive(target=target, sampling=GREEDY).generate(prompts, stopping=stopping, seeds=[0, 1])

    def decoded(**knobs):
        rule = BlockwiseAcceptance(**(EXACT_MATCH | knobs))
        engine = Engine(target=target, drafter=drafter, verifier=rule, gamma_policy=Fixed(gamma=3), sampling=GREEDY)
        return engine.generate(prompts, stopping=stopping, seeds=[0, 1])

    exact, forced = decoded(), decoded(min_block=3)
    assert exact.tokens == greedy.tokens and forced.tokens != greedy.tokens
    fewest = {offered: row.nonzero()[0].min() for offered, row in enumerate(forced.tally.accepted) if row.any()}
    assert all(kept == min(2, offered) for offered, kept in fewest.items()) and 3 in fewest
