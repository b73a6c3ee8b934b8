"""Tensor parallelism: every process that torchrun started holds a part of the target, and runs the same rounds.

Draft models, uniforms and verification are the same in every process, since all of them follow from the same logits
and seeds. Values that depend on the clock come from the first process.
"""

import os
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from framework.core.option_error import OptionError

T = TypeVar("T")
AUTO = "auto"  # the plan of the model's architecture
KEY = "tensor_parallel"


def check_tensor_parallel(tensor_parallel: str | None, device_map: object, device: str) -> None:
    """Check that a target can be sharded, before anything is loaded.

    Raises:
        ValueError: the value is unknown, a device_map or another device is set, or this process was started alone.
        ImportError: the package accelerate, which places the parts, is not installed.
    """
    if tensor_parallel is None:
        return
    if tensor_parallel != AUTO:
        raise OptionError(KEY, tensor_parallel, f"{AUTO}, or null")
    if device_map is not None:
        raise OptionError(KEY, AUTO, "null with a device_map", f"and device_map is {device_map!r}")
    accelerator = (torch.accelerator.current_accelerator() or torch.device("cpu")).type
    if device not in ("auto", accelerator):
        raise OptionError(KEY, AUTO, f"null, or device=auto or {accelerator}", f"and device is {device!r}")
    if num_processes() < 2:
        problem = "and this process was started alone"
        raise OptionError(KEY, AUTO, "null, or processes started by torchrun", problem)
    if find_spec("accelerate") is None:
        raise ImportError(
            "target.tensor_parallel is 'auto', which needs the package accelerate: "
            "pip install -e '.[tensor-parallel]'; or set it to null"
        )


def sharding(config: PretrainedConfig) -> dict[str, Any]:
    """Arguments of `from_pretrained` that load this process's part of a model.

    Raises:
        ValueError: the architecture has no plan, or the processes cannot have equal parts of its attention.
    """
    text, processes = config.get_text_config(), num_processes()
    if not getattr(text, "base_model_tp_plan", None):
        raise OptionError(KEY, AUTO, "null", f"for which transformers has no plan of {text.model_type}")
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    if heads % processes:
        allowed = f"null, or a number of processes that divides its {heads} key-value heads"
        raise OptionError(KEY, AUTO, allowed, f"and {processes} processes share the target")
    from transformers.distributed import DistributedConfig  # not in the first versions of transformers 5

    return {"distributed_config": DistributedConfig(tp_plan=AUTO)}


def is_sharded(model: PreTrainedModel) -> bool:
    """Whether this process holds only parts of the model's weights."""
    return any(hasattr(each, "full_tensor") for each in model.parameters())


def whole(weight: Tensor) -> Tensor:
    """The full weight, gathered from all processes; each must call this."""
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def num_processes() -> int:
    """Number of processes that were started together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def agreed(value: T, *, sharded: bool) -> T:
    """The first process's value where processes share a sharded model, else the value itself.

    Args:
        value: an object that can be pickled and that may differ, since it depends on the clock.
        sharded: whether they share one; every process then has to call this.
    """
    if not sharded:
        return value
    values = [value]
    torch.distributed.broadcast_object_list(values)
    return values[0]
