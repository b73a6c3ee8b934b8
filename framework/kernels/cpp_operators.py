"""Operators in C++ next to this module, compiled once per machine, for decoders with compiled graphs on a CPU."""

import ctypes
import hashlib
import os
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch._inductor.cpp_builder import BuildOptionsBase, CppBuilder, CppTorchOptions
from torch._inductor.exc import CppCompileError, InvalidCxxCompiler
from torch._inductor.runtime.cache_dir_utils import cache_dir

from framework.kernels.vector_instructions import vector_instructions

CALLS_DIRECTLY = sys.platform == "linux"  # other linkers reject symbols that another library defines
# C functions of the sources by operator, as compiled graphs declare them.
DECLARATIONS = {
    "outrider.packed_linear.default": "AOTITorchError aoti_torch_cpu_packed_linear(AtenTensorHandle x, "
    "AtenTensorHandle packed, int64_t num_outputs, AtenTensorHandle* result)",
    "outrider.small_attention.default": "AOTITorchError aoti_torch_cpu_small_attention(AtenTensorHandle query, "
    "AtenTensorHandle key, AtenTensorHandle value, const AtenTensorHandle* mask, const AtenTensorHandle* sinks, "
    "double scale, double softcap, AtenTensorHandle* result)",
}


@cache
def operators(name: str) -> Any:
    """Load the operators of NAME.cpp, compiled unless the cache holds them; returns their namespace.

    Raises:
        torch._inductor.exc.CppCompileError: the compiler rejects the source.
    """
    library = str(_library(name))
    torch.ops.load_library(library)
    if CALLS_DIRECTLY:
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    return torch.ops.outrider


class _Declarations(dict[str, list[str]]):
    """Declarations by operator name; `in` also takes the operator itself, which the compiler's cache cannot pickle."""

    def __contains__(self, kernel: object) -> bool:
        return super().__contains__(str(kernel))


def direct_call_options() -> dict[str, Any]:
    """Compiler options for calls of our operators as C functions, without PyTorch's dispatcher."""
    if not CALLS_DIRECTLY:
        return {}
    return {"aot_inductor.custom_ops_to_c_shims": _Declarations({name: [text] for name, text in DECLARATIONS.items()})}


@cache
def is_available(name: str) -> bool:
    """Whether the source NAME.cpp can be compiled on this machine; warns once if it cannot."""
    try:
        operators(name)
    except (CppCompileError, InvalidCxxCompiler) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = next((line for line in lines if "error:" in line), lines[-1])
        message = f"compiled passes use PyTorch's own kernels, since {name}.cpp fails to compile: {reason}"
        warnings.warn(message, stacklevel=2)
        return False
    return True


def source_of(name: str) -> Path:
    """Path of NAME.cpp."""
    return Path(__file__).with_name(f"{name}.cpp")


def _library(name: str) -> Path:
    source = source_of(name)
    options = CppTorchOptions(vec_isa=vector_instructions(), extra_flags=("-ffp-contract=fast",))
    folder = Path(cache_dir()) / "outrider"
    command = _builder(source, folder, options).get_command_line()
    key = hashlib.sha256("\0".join([source.read_text(), torch.__version__, command]).encode()).hexdigest()[:16]
    library = folder / f"{name}_{key}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as unfinished:  # another process may compile it, too
            builder = _builder(source, Path(unfinished), options)
            builder.build()
            os.replace(builder.get_target_file_path(), library)
    return library


def _builder(source: Path, folder: Path, options: BuildOptionsBase) -> CppBuilder:
    return CppBuilder(name=source.stem, sources=str(source), output_dir=str(folder), BuildOption=options)
