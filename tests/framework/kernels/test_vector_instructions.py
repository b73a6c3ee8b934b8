from pathlib import Path

import pytest
from torch._inductor import config as inductor

from framework.kernels import vector_instructions as module
from framework.kernels.vector_instructions import vector_instructions


class Processor:
    """Stand-in for PyTorch's list: a processor with two sets of instructions, of which the compiler knows some."""

    def __init__(self, known: list[str]):
        self.known, self.num_tests, self._list = known, 0, None

    def __call__(self) -> list[str]:
        if self._list is None:
            self.num_tests += not inductor.cpp.vec_isa_ok
            self._list = ["wide", "narrow"] if inductor.cpp.vec_isa_ok else self.known
        return self._list

    def cache_clear(self) -> None:
        self._list = None


def in_new_process(monkeypatch: pytest.MonkeyPatch, known: list[str]) -> Processor:
    """Choose the instructions of a processor, as a process does that has not chosen any before."""
    processor = Processor(known)
    with monkeypatch.context() as patch:
        patch.setattr(module, "valid_vec_isa_list", processor)
        patch.setattr(module, "pick_vec_isa", lambda: processor()[0])
        assert vector_instructions.__wrapped__() == known[0]
    return processor


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "cache_dir", lambda: str(tmp_path))


def test_instructions_are_tested_once_per_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_new_process(monkeypatch, ["wide", "narrow"]).num_tests == 1
    assert in_new_process(monkeypatch, ["wide", "narrow"]).num_tests == 0


def test_instructions_that_fail_are_tested_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_new_process(monkeypatch, ["narrow"]).num_tests == 1
    assert in_new_process(monkeypatch, ["narrow"]).num_tests == 1


def test_another_compiler_is_tested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    in_new_process(monkeypatch, ["wide", "narrow"])
    monkeypatch.setattr(module, "get_compiler_version_info", lambda compiler: "version 2")
    assert in_new_process(monkeypatch, ["wide", "narrow"]).num_tests == 1
