"""Every acceptance rule with a yaml, new ones included, keeps the contract and its guarantee."""

import pytest

from experiments.config.builders import rules
from framework.conformance import check_verifier
from framework.conformance.verifier_checks import SAMPLINGS
from tests.support.slow_cases import mostly_slow

# Sampling options change p and q before verification: these cover every kind of change.
FEW = {words: SAMPLINGS[words] for words in ("T=1", "top-k 2", "T=0")}

NAMES = sorted(rules())
SLOWEST = ("block", "k_seq", "recursive_rejection", "teacher_forced", "traversal", "typical")


@pytest.mark.parametrize("name", mostly_slow(NAMES, fast=[name for name in NAMES if name not in SLOWEST]))
def test_it_keeps_the_contract(name):
    check_verifier(lambda: rules()[name], samplings=FEW).require()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(rules()))
def test_it_keeps_its_guarantee_at_other_settings(name):
    others = {words: sampling for words, sampling in SAMPLINGS.items() if words not in FEW}
    check_verifier(lambda: rules()[name], samplings=others).require()
