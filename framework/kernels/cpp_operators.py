"""Operators in C++ next to this module, compiled once per machine, for compiled graphs on a CPU."""

import hashlib
import os
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch._inductor.cpp_builder import BuildOptionsBase, CppBuilder, CppTorchOptions
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.exc import CppCompileError, InvalidCxxCompiler
from torch._inductor.runtime.cache_dir_utils import cache_dir


@cache
def operators(name: str) -> Any:
    """Load the operators of NAME.cpp, compiled unless the cache holds them; returns their namespace.

    Raises:
        torch._inductor.exc.CppCompileError: the compiler rejects the source.
    """
    torch.ops.load_library(str(_library(name)))
    return torch.ops.outrider


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


def _library(name: str) -> Path:
    source = Path(__file__).with_name(f"{name}.cpp")
    options = CppTorchOptions(vec_isa=pick_vec_isa(), extra_flags=("-ffp-contract=fast",))
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
