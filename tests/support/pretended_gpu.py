"""A GPU that does not exist: its tensors are computed on the CPU, and all operations on them are checked and counted.

Its device type, `pretended`, is the one that PyTorch reserves for extensions. Code that asks whether a device is a CPU
therefore treats it as a GPU, in every build of PyTorch.
"""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "pretended"
ROOT = Path(__file__).parents[2]
COPYING = {"_to_copy", "copy_"}
# Their results are numbers for the host, or tensors whose size depends on the entries.
ASKING = {
    "_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim",
    "unique_consecutive", "bincount", "repeat_interleave",
}  # fmt: skip
INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}  # these ask if an index is a mask


class MixedDevicesError(RuntimeError):
    """One operation on tensors of the GPU and of the CPU."""


class PretendedTensor(Tensor):
    """A tensor of the pretended GPU.

    Attributes:
        content: its entries, on the CPU.
    """

    content: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # saves time

    @staticmethod
    def __new__(cls, content: Tensor) -> "PretendedTensor":
        with torch.inference_mode(False):  # a view in inference mode of a tensor from outside is an ordinary tensor
            made = Tensor._make_wrapper_subclass(
                cls,
                content.size(),
                strides=content.stride(),
                storage_offset=content.storage_offset(),
                dtype=content.dtype,
                device=torch.device(NAME, 0),
            )
        made.content = content
        return made

    def __repr__(self) -> str:
        return f"on a pretended GPU: {self.content!r}"

    def tolist(self) -> Any:
        """The entries as lists; PyTorch refuses this for tensors of other classes."""
        return self.cpu().tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        """The memory of the entries; safetensors compares its addresses."""
        return self.content.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{operation} on a pretended GPU runs within `pretended_gpu` only")


class PretendedGPU(TorchDispatchMode):
    """Runs all operations on tensors of the pretended GPU.

    As on a GPU, tensors without axes may be on the CPU. PyTorch also allows indices on the CPU, and copies them in
    every call; here they are refused.

    Attributes:
        waits: lines of the project that wait until the device has computed a tensor, once per wait.
        uploads: lines that copy a tensor from the host to the device, once per copy. On a GPU, such a copy waits too,
            unless it begins in pinned memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.uploads: list[str] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = [*_leaves([args, *kwargs.values()])]
        ours = {id(leaf.content): leaf for leaf in leaves if isinstance(leaf, PretendedTensor)}
        device = next((leaf.type for leaf in leaves if isinstance(leaf, torch.device)), NAME if ours else "cpu")
        if not ours and device != NAME:
            return operation(*args, **kwargs)
        name = operation.overloadpacket.__name__
        if name == "copy_":
            device = args[0].device.type
        elsewhere = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, PretendedTensor)]
        if name in COPYING:
            if ours and device != NAME:
                self.waits.append(_line())
            if elsewhere and device == NAME:
                self.uploads.append(_line())
        elif sizes := [list(each.shape) for each in elsewhere if each.dim()]:
            raise MixedDevicesError(
                f"{_line()}: {operation} takes tensors of the GPU, and of the CPU, of sizes {sizes}"
            )
        elif name in ASKING or (name in INDEXING and any(map(_is_mask, args[1]))):
            self.waits.append(_line())
        result = operation(*_replaced(args, _on_cpu), **{key: _replaced(each, _on_cpu) for key, each in kwargs.items()})
        if device != NAME:
            return result
        # An operation in place returns the tensor it was given.
        return _replaced(result, lambda leaf: ours[id(leaf)] if id(leaf) in ours else _on_gpu(leaf))


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    """Answers to the questions of PyTorch's C++ code; to tests that run later in this process, there is no GPU."""

    def is_available(self) -> bool:
        return False

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, device: int) -> bool:
        return False


class _Module:
    """The module that PyTorch asks about the device type, as `torch.cuda` for CUDA, with its events."""

    def is_available(self) -> bool:
        return False

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def manual_seed_all(self, seed: int) -> None:
        pass

    def current_stream(self, device: torch.device) -> None:
        pass

    def synchronize(self, device: torch.device) -> None:
        pass

    class Event:
        """A point in time."""

        def __init__(self, *, enable_timing: bool):
            assert enable_timing, "the event is made to be timed"

        def record(self, stream: None) -> None:
            self.seconds = perf_counter()

        def elapsed_time(self, later: "_Module.Event") -> float:
            """Milliseconds from this event to a later one."""
            return (later.seconds - self.seconds) * 1000


@contextmanager
def pretended_gpu() -> Iterator[PretendedGPU]:
    """Run the block with a pretended GPU, whose tensors outlive the block and can be used in a later one."""
    _register()
    future, overwrite = torch.__future__, torch.__future__.get_overwrite_module_params_on_conversion()
    lift = torch._C._only_lift_cpu_tensors()
    future.set_overwrite_module_params_on_conversion(True)  # `Module.to` cannot change the class of a parameter
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` copies to the device in an operation of its own
    try:
        with PretendedGPU() as gpu:
            yield gpu
    finally:
        torch._C._set_only_lift_cpu_tensors(lift)
        future.set_overwrite_module_params_on_conversion(overwrite)


@cache
def _register() -> None:
    """Give PyTorch's device type for extensions a name; a process can do this once."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module(), hook=_Hooks())


def _leaves(nested: Any) -> Iterator[Any]:
    """Entries of nested lists and tuples."""
    if isinstance(nested, list | tuple):
        for each in nested:
            yield from _leaves(each)
    else:
        yield nested


def _replaced(nested: Any, change: Callable[[Any], Any]) -> Any:
    """Nested lists and tuples with other entries."""
    if isinstance(nested, list | tuple):
        return type(nested)(_replaced(each, change) for each in nested)
    return change(nested)


def _on_cpu(leaf: Any) -> Any:
    if isinstance(leaf, PretendedTensor):
        return leaf.content
    return torch.device("cpu") if isinstance(leaf, torch.device) else leaf


def _on_gpu(leaf: Any) -> Any:
    return PretendedTensor(leaf) if isinstance(leaf, Tensor) else leaf


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _line() -> str:
    """The innermost line of the project that is running."""
    for frame, number in traceback.walk_stack(None):
        file = Path(frame.f_code.co_filename)
        installed = "site-packages" in file.parts  # the environment may lie in the project's folder
        if file.is_relative_to(ROOT) and file != Path(__file__) and not installed:
            return f"{file.relative_to(ROOT)}:{number}"
    return "unknown"
