"""Every drafter with a yaml keeps the contract; a new one is checked as soon as its yaml is there."""

import pytest

from experiments.tiny_drafters import NAMES, tiny_factory
from framework.conformance import check_drafter
from framework.tiny_models import tiny_target

VOCABULARY = 5


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_the_contract(name):
    target = tiny_target(vocabulary=VOCABULARY)
    check_drafter(tiny_factory(name, VOCABULARY), target=target, samples=3000).require()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_the_contract_for_other_targets(name, family):
    """The same with deeper drafts, more samples, and a vocabulary too large to count continuations."""
    target = tiny_target(family, vocabulary=50)
    check_drafter(tiny_factory(name, 50), target=target, gamma=5, samples=50_000).require()
