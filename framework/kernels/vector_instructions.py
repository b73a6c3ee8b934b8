"""Vector instructions of compiled code on a CPU, as PyTorch chooses them."""

import hashlib
import platform
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch._inductor import config as inductor
from torch._inductor.cpp_builder import get_compiler_version_info, get_cpp_compiler
from torch._inductor.cpu_vec_isa import (
    VecISA,
    pick_vec_isa,
    supported_vec_isa_list,
    valid_vec_isa_list,
    x86_isa_checker,
)
from torch._inductor.runtime.cache_dir_utils import cache_dir

# Option of PyTorch's compiler: all sets of instructions in its list have passed their tests. On other architectures it
# tests a set when it uses it.
TESTED: dict[str, Any] = {"cpp.vec_isa_ok": True} if platform.machine() in ("x86_64", "AMD64") else {}


@cache
def vector_instructions() -> VecISA:
    """Vector instructions that PyTorch's compiler uses.

    PyTorch compiles a test for each set of instructions that the processor has, and loads it again in every process,
    which takes a second for all sets. Once all pass, a file records it, and later processes leave these tests out.

    Raises:
        torch._inductor.exc.InvalidCxxCompiler: there is no C++ compiler.
    """
    if TESTED and inductor.cpp.vec_isa_ok is None:
        present = _present()
        passed = _record_of(present)
        if passed.exists():
            with patch.object(VecISA, "check_build", lambda isa, code: True):
                valid_vec_isa_list()  # PyTorch keeps the list
        elif _all_pass(present):
            passed.parent.mkdir(parents=True, exist_ok=True)
            passed.touch()
    return pick_vec_isa()


def _present() -> list[str]:
    """Names of the sets of instructions that the processor has."""
    flags = x86_isa_checker()
    return [name for name in map(str, supported_vec_isa_list) if all(flag in flags for flag in name.split())]


def _all_pass(present: list[str]) -> bool:
    """Whether these sets, and the additions to them that the processor has, pass PyTorch's tests."""
    passed = valid_vec_isa_list()
    tests = [f"is_{name}_supported" for name in _additions()]
    return list(map(str, passed)) == present and all(
        getattr(each, test)() for test in tests for each in passed if hasattr(each, test)
    )


def _additions() -> list[str]:
    """Names of the instructions that PyTorch adds to a set of the processor once it has tested them."""
    return [name for name in ("avx512_bf16", "amx_fp16") if getattr(torch.cpu, f"_is_{name}_supported")()]


def _record_of(present: list[str]) -> Path:
    """File that exists if these sets have passed with this compiler and PyTorch."""
    names = [*present, "with", *_additions()]
    given = [torch.__version__, get_compiler_version_info(get_cpp_compiler()), *names]
    key = hashlib.sha256("\0".join(given).encode()).hexdigest()[:16]
    return Path(cache_dir()) / "outrider" / f"vectors_{key}"
