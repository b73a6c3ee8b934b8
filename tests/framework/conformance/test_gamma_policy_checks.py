"""The check of gamma policies: those of the repository pass, and every broken example is named."""

import random
import re
import time
from time import perf_counter

import pytest
import torch

from experiments.config.builders import build, yamls
from experiments.config.resolvers import register_resolvers
from framework.conformance import check_gamma_policy
from framework.gamma_policies.confidence_threshold import ConfidenceThreshold
from framework.gamma_policies.heuristic import Heuristic

register_resolvers()


class Halving:
    """Honest: halves gamma after a rejection."""

    should_continue = None
    max_gamma = 8

    def begin(self):
        self.gamma = self.max_gamma

    def next_gamma(self):
        return self.gamma

    def observe(self, readout):
        self.gamma = max(1, self.gamma // 2) if any(readout.rejected) else self.max_gamma


class WithoutBound(Halving):
    max_gamma = None


class WithoutObserve(Halving):
    observe = None


class WithoutShouldContinue:
    max_gamma, begin, next_gamma, observe = 8, Halving.begin, Halving.next_gamma, Halving.observe


class Grows(Halving):
    def observe(self, readout):
        self.gamma += not any(readout.rejected)


class Fraction(Halving):
    def next_gamma(self):
        return self.gamma / 2


class Shrinks(Halving):
    def next_gamma(self):
        self.max_gamma = 4
        return self.gamma


class Dices(Halving):
    def next_gamma(self):
        return random.randrange(self.max_gamma)


class DicesAlone(Halving):
    def __init__(self):
        self.random = random.Random()

    def next_gamma(self):
        return self.random.randrange(self.max_gamma)


class Remembers(Halving):
    gamma = 8

    def begin(self):
        pass


class Times(Halving):
    def observe(self, readout):
        self.started = time.monotonic()
        super().observe(readout)


class TimesByName(Halving):
    def begin(self):
        super().begin()
        self.started = perf_counter()


class Edits(Halving):
    def observe(self, readout):
        super().observe(readout)
        readout.accepted[0] = 0


class Stops(Halving):
    """Honest: ends drafts after a weak token."""

    def should_continue(self, node):
        return node.confidence > 0.3


class OneForAll(Stops):
    def should_continue(self, node):
        return super().should_continue(node).any()


class Numbers(Stops):
    def should_continue(self, node):
        return super().should_continue(node).float()


class MeanOfRows(Stops):
    def should_continue(self, node):
        return node.confidence > node.confidence.mean() - 1e-6


class TimesNodes(Stops):
    def should_continue(self, node):
        return super().should_continue(node) & torch.tensor(time.time() > 0)


BROKEN = [
    (WithoutBound, "are there", "max_gamma is None; set it to a whole number from 0 to 1000"),
    (WithoutObserve, "are there", "observe is not there; add the method"),
    (WithoutShouldContinue, "are there", "should_continue is not there; set it to None"),
    (Grows, "gamma is a whole number", "next_gamma gives 9 in round 2"),
    (Fraction, "gamma is a whole number", "next_gamma gives 4.0 in round 1"),
    (Shrinks, "gamma is a whole number", "max_gamma changed from 8 to 4"),
    (Dices, "the same outcomes", "drew from Python's global generator"),
    (DicesAlone, "the same outcomes", r"next_gamma gives \d instead of \d"),
    (Remembers, "begin forgets", "begin must forget it"),
    (Times, "no clock", "it reads time.monotonic"),
    (TimesByName, "no clock", "it reads time.perf_counter"),
    (TimesNodes, "no clock", "it reads time.time"),
    (Edits, "observe only reads", "observe changed the Readout"),
    (OneForAll, r"gives [B] bool", r"for 4 rows; a \[B\] bool tensor is required"),
    (Numbers, r"gives [B] bool", r"for 4 rows; a \[B\] bool tensor is required"),
    (MeanOfRows, "for the row alone", "in a batch and True alone"),
]


@pytest.mark.parametrize(("policy", "rule", "message"), BROKEN, ids=[case[0].__name__ for case in BROKEN])
def test_a_broken_policy_is_named_with_its_fault(policy, rule, message):
    report = check_gamma_policy(policy)
    shown = [finding.breach for finding in report.breaches if rule in finding.rule]
    assert shown and re.search(message, shown[0]), report


def test_the_clocks_run_again_after_a_check():
    assert not check_gamma_policy(Halving).breaches
    assert time.monotonic() > 0 and perf_counter() > 0 and time.perf_counter is perf_counter


@pytest.mark.parametrize("factory", [Halving, Stops, lambda: Heuristic(initial=2, max_gamma=5)])
def test_an_honest_policy_passes(factory):
    check_gamma_policy(factory).require()


def test_a_policy_of_single_tokens_ends_no_draft():
    report = check_gamma_policy(lambda: ConfidenceThreshold(max_gamma=1, threshold=0.5))
    report.require()
    assert "shows nothing" in str(report)


@pytest.mark.parametrize("name", yamls("gamma"))
def test_every_policy_with_a_yaml_keeps_the_contract(name):
    check_gamma_policy(lambda: build(yamls("gamma")[name])).require()
