"""Speculative execution of two functions: exact by enumeration of its random numbers, and faster by the formula."""

import threading
from collections import Counter
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import product

import pytest
import torch

from framework.core.uniforms import RoundUniforms
from framework.decoding import speculative_execution
from framework.decoding.speculative_execution import execute, execute_plainly
from framework.verifiers.block import BlockVerification
from framework.verifiers.lenience import Lenience

# q is a multiple of 1/4, p / q one of 1/2, and residuals are one-hot: these grids enumerate every draw exactly.
Q = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]], dtype=torch.float64)
P = torch.tensor([[0.25, 0.5, 0.25], [0.25, 0.5, 0.25]], dtype=torch.float64)
GRID = list(product([0.25, 0.75], [0.25, 0.75], [0.125, 0.375, 0.625, 0.875]))  # stop, next, draft


class Inline(Executor):
    """Computes at once, or only when the result is asked for."""

    def __init__(self, *, late: bool):
        self.late = late

    def submit(self, function, /, *arguments):
        if self.late:
            return Late(function, arguments)
        future: Future = Future()
        future.set_result(function(*arguments))
        return future


class Late(Future):
    def __init__(self, function, arguments):
        super().__init__()
        self.compute = lambda: function(*arguments)

    def result(self, timeout=None):
        return self.compute()


def step(state: int, value: int, number: int) -> int:
    return 3 * state + value + 1  # a history, by which every policy may differ


def run(numbers: list[tuple[float, ...]], monkeypatch, *, ahead: int, late: bool, **options):
    monkeypatch.setattr(
        speculative_execution,
        "_numbers",
        lambda seed, steps: [RoundUniforms(torch.tensor([each], dtype=torch.float64)) for each in numbers],
    )
    return execute(
        0, slow=lambda state: P[state % 2], fast=lambda state: Q[state % 2], step=step, num_steps=len(numbers),
        ahead=ahead, seed=0, workers=Inline(late=late), **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ahead", "late", "rule"), [(1, True, None), (2, True, None), (2, False, None), (2, True, BlockVerification())]
)
def test_values_and_states_have_the_slow_policys_distribution(monkeypatch, ahead, late, rule):
    """All random numbers of two steps on the grid, each equally likely."""
    found: Counter = Counter()
    for numbers in product(GRID, repeat=2):
        done = run(list(numbers), monkeypatch, ahead=ahead, late=late, verifier=rule)
        assert done.states == [0, done.values[0] + 1, 3 * done.states[1] + done.values[1] + 1]
        found[tuple(done.values)] += 1
    expected = {
        (first, second): P[0, first].item() * P[(first + 1) % 2, second].item() * 16**2
        for first, second in product(range(3), repeat=2)
    }
    assert found == expected


def test_neither_the_steps_ahead_nor_the_time_of_a_policy_changes_a_value():
    dice = torch.Generator().manual_seed(0)
    p, q = (torch.rand(50, 5, generator=dice, dtype=torch.float64).softmax(1) for _ in range(2))
    runs = []
    for ahead, late in ((1, True), (3, True), (3, False), (8, True)):
        runs.append(
            execute(
                7, slow=lambda state: p[state], fast=lambda state: q[state], num_steps=40, ahead=ahead, seed=3,
                step=lambda state, value, number: (7 * state + value + number) % 50, workers=Inline(late=late),
            )
        )  # fmt: skip
    assert all(run == runs[0] for run in runs)
    assert 0 < sum(runs[0].accepted) < 40
    exact = [torch.minimum(p[state], q[state]).sum().item() for state in runs[0].states[:-1]]
    assert runs[0].overlap == pytest.approx(exact, abs=1e-12)


def test_f_and_g_run_at_the_same_time():
    """f waits for the beginning of g, and g for that of f: neither ends if one follows the other."""
    meeting = threading.Barrier(2, timeout=30)
    row = torch.tensor([1.0, 0.0])

    def slow(state):
        meeting.wait()
        return row

    def world(state, value, number):
        meeting.wait()
        return state + 1

    with ThreadPoolExecutor(1) as workers:
        done = execute(
            0, slow=slow, fast=lambda state: row, step=world, num_steps=5, ahead=1, seed=0, workers=workers
        )  # fmt: skip
    assert done.states == list(range(6)) and all(done.accepted)


def test_g_runs_again_only_after_a_replacement():
    calls = Counter()

    def world(state, value, number):
        calls[number] += 1
        return (3 * state + value) % 2

    done = execute(
        0, slow=lambda state: P[state], fast=lambda state: Q[state], step=world, num_steps=60, ahead=1, seed=1,
        workers=Inline(late=True),
    )  # fmt: skip
    assert [calls[number] for number in range(60)] == [1 if kept else 2 for kept in done.accepted]
    plain = execute_plainly(0, slow=lambda state: P[state], step=world, num_steps=60, seed=1)
    assert len(plain.values) == 60 and not any(plain.accepted)


def test_what_is_wrong_is_told():
    with pytest.raises(ValueError, match="ahead is 0; allowed: a whole number"):
        execute(0, slow=None, fast=None, step=step, num_steps=1, ahead=0, seed=0, workers=None)
    with pytest.raises(ValueError, match="verifier is Lenience, which is LOSSY"):
        execute(
            0, slow=None, fast=None, step=step, num_steps=1, ahead=1, seed=0, workers=None,
            verifier=Lenience(lenience=0.5),
        )  # fmt: skip
