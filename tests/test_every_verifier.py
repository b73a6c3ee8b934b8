"""Every acceptance rule with a yaml keeps the contract and its guarantee; a new one is checked from then on."""

import pytest

from experiments.assemble import rules
from framework.conformance import check_verifier


@pytest.mark.parametrize("name", sorted(rules()))
def test_it_keeps_the_contract(name):
    check_verifier(lambda: rules()[name]).require()
