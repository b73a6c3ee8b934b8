"""The host's bound on unread tokens: never too small, few values in compiled graphs."""

import random

import pytest
import torch

from framework.core.backlog import Backlog

LIMIT = 50


@pytest.mark.parametrize("compiling", [False, True])
def test_a_pass_reads_at_least_what_was_added_and_at_most_what_there_is(monkeypatch, compiling):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    dice, backlog, added, sizes, bounds = random.Random(0), Backlog(LIMIT, 0), 0, set(), set()
    for _ in range(300):
        number = dice.randint(0, 3)
        backlog.add(number)
        added += number
        least = dice.randint(1, 9)
        assert min(max(added, least), LIMIT) <= backlog.size_of_pass(least) <= LIMIT
        sizes.add(backlog.size_of_pass(least))
        bounds.add(backlog.most)
        if dice.random() < 0.1:
            backlog.most = added = 0
    assert sizes <= {1, 2, 4, 8, 16, 32, LIMIT}
    assert not compiling or bounds <= {1, 2, 4, 8, 16, 32, LIMIT, 0}


def test_what_is_unknown_stays_unknown():
    backlog = Backlog(LIMIT, None)
    backlog.add(2)
    assert backlog.most is None
    backlog.most = 2
    backlog.add(1)
    assert backlog.most == 3 and backlog.size_of_pass() == 4
