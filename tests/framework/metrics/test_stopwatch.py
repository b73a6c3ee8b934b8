"""Stages of a loop and the clock of their device."""

import time
from itertools import pairwise

import pytest
import torch

from framework.metrics.stopwatch import Stopwatch

CPU = torch.device("cpu")


def test_times_of_a_stage_add_up():
    stopwatch = Stopwatch(CPU)
    for _ in range(2):
        with stopwatch.stage("draft"):
            time.sleep(0.01)
    with stopwatch.stage("target"):
        pass
    once = stopwatch.seconds()
    assert once["draft"] >= 0.02 > once["target"] >= 0
    assert stopwatch.seconds() == once


def test_a_block_that_fails_is_not_noted():
    stopwatch = Stopwatch(CPU)
    with pytest.raises(ValueError), stopwatch.stage("draft"), stopwatch.stage("target"):
        raise ValueError
    with stopwatch.stage("verify"):
        pass
    assert list(stopwatch.seconds()) == ["verify"]


def test_blocks_and_rounds_have_their_moments():
    stopwatch = Stopwatch(CPU)
    stopwatch.end_round()
    for stage in ("draft", "target", "draft"):
        with stopwatch.stage(stage):
            time.sleep(0.002)
    stopwatch.end_round()
    blocks = stopwatch.blocks()
    assert [block.stage for block in blocks] == ["draft", "target", "draft"] and blocks[0].begin == 0
    assert all(before.end <= block.begin < block.end for before, block in pairwise(blocks))
    assert stopwatch.round_seconds[0] >= blocks[-1].end and len(stopwatch.round_seconds) == 1
    assert stopwatch.seconds() == stopwatch.seconds()
    assert abs(stopwatch.seconds()["target"] - (blocks[1].end - blocks[1].begin)) < 1e-6


def test_a_stopwatch_may_time_some_stages_only():
    stopwatch = Stopwatch(CPU, only=("prefill",))
    for stage in ("prefill", "draft"):
        with stopwatch.stage(stage):
            pass
    assert list(stopwatch.seconds()) == ["prefill"]


def test_seconds_of_another_process_add_up_with_its_own():
    stopwatch = Stopwatch(CPU, only=("prefill",))
    with stopwatch.stage("prefill"):
        pass
    for stage in ("prefill", "prefill", "draft"):
        stopwatch.add(stage, 2.0)
    seconds = stopwatch.seconds()
    assert list(seconds) == ["prefill"] and 4.0 <= seconds["prefill"] < 4.5
