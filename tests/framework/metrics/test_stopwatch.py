"""Stages of a loop and the clock of their device."""

import time

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
