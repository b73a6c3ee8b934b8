"""Progress without a terminal: lines with what is done and the time left."""

import logging
import threading
import time

import pytest

from experiments.config import progress
from experiments.config.cli_errors import announcing, status
from experiments.config.progress import Steps


def test_timed_steps_print_between_steps_and_start_no_thread(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    before = threading.active_count()
    with Steps(8, is_timed=True) as steps:
        assert threading.active_count() == before
        steps._bar.get_time = lambda: clock[0]
        for number in range(4):
            clock[0] += 20
            steps.update(f"step {number}", advance=1)
    # 20 s per step: lines after 40 and 80 s, when 6 and 4 steps are left.
    assert capsys.readouterr().err.splitlines() == [
        "step 1: 25% done, 0:02:00 left",
        "step 3: 50% done, 0:01:20 left",
    ]


def test_other_steps_print_however_long_a_step_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", 0.01)
    with status("loading the target") as doing:
        doing.update("loading the drafter")
        time.sleep(0.2)
    assert "loading the drafter: 0:00:00 so far" in capsys.readouterr().err.splitlines()
    time.sleep(0.05)
    assert not capsys.readouterr().err  # the thread has ended


def test_a_short_step_prints_nothing(capsys: pytest.CaptureFixture) -> None:
    with Steps(2, "reading"):
        pass
    with Steps(2, "reading", is_timed=True, is_hidden=True) as steps:
        steps.update("reading", advance=1)
    assert capsys.readouterr() == ("", "")


def test_messages_of_a_logger_are_printed_in_the_block(capsys: pytest.CaptureFixture) -> None:
    with announcing("announced"):
        logging.getLogger("announced.module").info("compiling %s", "a round")
    assert capsys.readouterr().err == "compiling a round\n"
    assert not logging.getLogger("announced").handlers
