"""Vector instructions of compiled code on a CPU, as PyTorch chooses them."""

import hashlib
from functools import cache
from pathlib import Path

import torch
from torch._inductor import config as inductor
from torch._inductor.cpp_builder import get_compiler_version_info, get_cpp_compiler
from torch._inductor.cpu_vec_isa import VecISA, pick_vec_isa, valid_vec_isa_list
from torch._inductor.runtime.cache_dir_utils import cache_dir

UNTESTED = {"cpp.vec_isa_ok": True}  # option of the compiler: all that the processor has can be compiled


@cache
def vector_instructions() -> VecISA:
    """Vector instructions that PyTorch's compiler uses.

    PyTorch compiles a test for each set of instructions that the processor has, and loads all of them in every process,
    which takes a second. The sets that passed are kept on the disk, so that later processes need no test.

    Raises:
        torch._inductor.exc.InvalidCxxCompiler: there is no C++ compiler.
    """
    passed = _folder() / f"instructions_{_compiler_key()}"
    with inductor.patch(UNTESTED):
        present = _names()
    if not passed.exists() or passed.read_text() != present:
        valid_vec_isa_list.cache_clear()
        if _names() == present:
            passed.parent.mkdir(parents=True, exist_ok=True)
            passed.write_text(present)
    return pick_vec_isa()


def _names() -> str:
    """Names of the sets of instructions that may be used; PyTorch keeps the list."""
    return "\n".join(map(str, valid_vec_isa_list()))


def _folder() -> Path:
    return Path(cache_dir()) / "outrider"


def _compiler_key() -> str:
    given = [torch.__version__, get_compiler_version_info(get_cpp_compiler())]
    return hashlib.sha256("\0".join(given).encode()).hexdigest()[:16]
