"""PyTorch's tests of vector instructions are run until all pass once, for each compiler and processor."""

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._inductor import cpu_vec_isa
from torch._inductor.cpu_vec_isa import VecAMX, VecAVX512, VecAVX512VNNI, VecISA, valid_vec_isa_list

from framework.kernels import vector_instructions as module

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="PyTorch tests no list here")


ADDITIONS = {VecAVX512._avx512_bf16_code: "avx512_bf16", VecAMX._amx_fp16_code: "amx_fp16"}  # by the code of their test


def forget() -> None:
    """Forget the results of tests, as a new process does."""
    results = [VecISA._VecISA__bool__impl, VecAVX512.is_avx512_bf16_supported, VecAMX.is_amx_fp16_supported]
    results += [each.__bool__ for each in (VecAVX512, VecAVX512VNNI, VecAMX)]
    for kept in (valid_vec_isa_list, *results):
        kept.cache_clear()
    for each in cpu_vec_isa.supported_vec_isa_list:
        for addition in ADDITIONS.values():
            vars(each).pop(f"_is_{addition}_supported", None)


class Machine:
    """A processor and a compiler, with a cache of compiled code that its processes share.

    Attributes:
        flags: sets of instructions of the processor.
        fails: set, or addition to a set, that the compiler rejects; None: it accepts all.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path):
        self.flags: list[str] = ["avx2", "avx512"]
        self.fails: str | None = None
        self._tested: list[str] = []
        for where in (cpu_vec_isa, module):
            monkeypatch.setattr(where, "x86_isa_checker", lambda: self.flags)
        monkeypatch.setattr(VecISA, "check_build", lambda isa, code: self._passes(str(isa), code))
        monkeypatch.setattr(module, "cache_dir", lambda: str(folder))

    def _passes(self, name: str, code: str) -> bool:
        if code == VecISA._avx_code:
            self._tested.append(name)
        return self.fails is None or self.fails not in (name, ADDITIONS.get(code))

    def new_process(self) -> tuple[str, list[str]]:
        """Instructions that a new process chooses, and the sets that it tests."""
        forget()
        self._tested = []
        return str(module.vector_instructions.__wrapped__()), self._tested


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    with monkeypatch.context() as patch:
        yield Machine(patch, tmp_path)
    forget()


def test_instructions_are_tested_in_the_first_process_alone(machine: Machine) -> None:
    assert machine.new_process() == ("avx512", ["avx512", "avx2"])
    assert machine.new_process() == ("avx512", [])


def test_instructions_that_fail_are_neither_used_nor_recorded(machine: Machine) -> None:
    machine.fails = "avx512"
    assert machine.new_process() == machine.new_process() == ("avx2", ["avx512", "avx2"])


@pytest.mark.parametrize(
    ("addition", "flags"),
    [("avx512_bf16", ["avx2", "avx512"]), ("amx_fp16", ["avx2", "avx512", "avx512_vnni", "amx_tile"])],
)
def test_failed_additions_are_tested_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, addition: str, flags: list[str]
) -> None:
    for name in ("vnni", "amx_tile", addition):
        monkeypatch.setattr(module.torch.cpu, f"_is_{name}_supported", lambda: True)
    monkeypatch.setattr(module.torch.cpu, "_init_amx", lambda: True)
    machine.flags, machine.fails = flags, addition
    name, tested = machine.new_process()
    assert tested and machine.new_process() == (name, tested)
    machine.fails = None
    assert machine.new_process() == (name, tested)
    assert machine.new_process() == (name, [])
    assert getattr(valid_vec_isa_list()[0], f"is_{addition}_supported")()


def test_another_processor_is_tested_anew(machine: Machine) -> None:
    machine.new_process()
    machine.flags = ["avx2"]
    assert machine.new_process() == ("avx2", ["avx2"])
    machine.flags = ["avx2", "avx512"]
    assert machine.new_process() == ("avx512", [])


def test_another_compiler_or_pytorch_is_tested_anew(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.new_process()
    monkeypatch.setattr(module, "get_compiler_version_info", lambda compiler: "version 2")
    assert machine.new_process()[1]
    monkeypatch.setattr(module.torch, "__version__", "3")
    assert machine.new_process()[1]


def test_a_choice_of_the_user_stands(machine: Machine) -> None:
    machine.new_process()
    with module.inductor.patch({"cpp.vec_isa_ok": False}):
        assert machine.new_process()[0] == "INVALID_VEC_ISA"
