"""One program in place of many calls: no Python runs, and nothing waits, between its parts."""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config as inductor
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.exc import InvalidCxxCompiler
from torch.fx import Graph, GraphModule
from torch.fx.experimental.sym_node import DynamicInt

from framework.device_round import Decoding, DeviceRound
from framework.draft import Draft
from framework.drafter import Drafter, drafts_on_host
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.sequences import Sequences

# On a CPU the options matter more than the compiler: constant weights are packed, products of few rows get kernels of
# their own, and what calls the kernels is C++ as well.
CPU_OPTIONS = {
    "freezing": True,
    "max_autotune": True,
    "max_autotune_gemm_backends": "CPP,ATEN",
    "cpp_wrapper": True,
    "realize_opcount_threshold": 8,  # else rotated queries are rotated again for every key they meet
}
GPU_OPTIONS = {"triton.cudagraphs": True}
MOST_NUMBERS = 64  # programs of one shape, which differ in a number that is not in a tensor


def why_not(device: torch.device) -> str | None:
    """Why no programs can be made for a device on this machine, or None if they can."""
    if device.type != "cpu":
        return None
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "there is no C++ compiler; install g++ or clang++, or name one in CXX"
    return None


class Compiled:
    """A function of tensors as a program for each of their shapes (torch.compile)."""

    def __init__(self, run: Callable[..., Any], device: torch.device):
        self._run = run
        self._on_cpu = device.type == "cpu"
        self._programs: dict[Hashable, Callable[..., Any]] = {}

    def __call__(self, shape: Hashable, *arguments: Any) -> Any:
        """Run the program of that shape; it is made when it is first asked for, which takes a minute.

        Args:
            shape: the shapes of all tensors, or what they follow from.
            arguments: tensors, and objects that hold them; whatever numbers it finds in them are looked at again, and
                where one has changed another program is made.
        """
        if shape not in self._programs:
            self._programs[shape] = torch.compile(  # type: ignore[call-overload]
                self._run,
                fullgraph=True,
                dynamic=False,
                isolate_recompiles=True,
                recompile_limit=MOST_NUMBERS,
                backend=BACKENDS["cpu" if self._on_cpu else "cuda"],
                options={"guard_filter_fn": _numbers_only},
            )
        with _constant_weights() if self._on_cpu else nullcontext():
            return self._programs[shape](*arguments)


@contextmanager
def _constant_weights() -> Iterator[None]:
    # Weights are constants only where tracing begins with this set; among a backend's options it comes too late.
    was, inductor.freezing = inductor.freezing, True
    try:
        yield
    finally:
        inductor.freezing = was


def _on_cpu(graph: GraphModule, examples: list[Tensor]) -> Any:
    """Let the compiler write every matrix product that it can; a library computes the rest."""
    from torch._inductor.compile_fx import compile_fx  # takes seconds
    from torch._inductor.select_algorithm import add_preprocessing_fn, clear_preprocessing_fns

    # What oneDNN packs cannot be kept in the cache on disk; what the compiler packs can.
    was = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns of GPUs that nobody asked for
    add_preprocessing_fn(_written)
    weights = _Weights([*graph.parameters(), *graph.buffers()])
    try:
        return compile_fx(graph, examples, config_patches={**CPU_OPTIONS, "post_grad_custom_pre_pass": weights})
    finally:
        clear_preprocessing_fns()
        torch._C._set_mkldnn_enabled(was)


class _Weights(CustomGraphPass):
    """Changes nothing, but names the constant weights of a program to the compiler's cache.

    The cache itself looks at the shapes of constants only, and would give a second model of the same shapes a program
    with the weights of the first one packed into it.
    """

    def __init__(self, weights: Sequence[Tensor]):
        digest = hashlib.sha256()
        for each in weights:
            digest.update(each.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
        self._digest = digest.hexdigest()

    def __call__(self, graph: Graph) -> None:
        pass

    def uuid(self) -> str:
        return self._digest


def _written(choices: list[Any]) -> list[Any]:
    # To time all choices takes long, and on a busy machine gives another answer every time.
    from torch._inductor.select_algorithm import ExternKernelCaller

    return [choice for choice in choices if not isinstance(choice, ExternKernelCaller)] or choices


def _on_gpu(graph: GraphModule, examples: list[Tensor]) -> Any:
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, examples, config_patches=GPU_OPTIONS)


BACKENDS: dict[str, Any] = {"cpu": _on_cpu, "cuda": _on_gpu}


def _numbers_only(guards: Sequence[Any]) -> list[bool]:
    """What is looked at before a program runs again; to look at a model's every tensor takes as long as its pass."""
    return [
        guard.guard_type == "SHAPE_ENV"  # what was found out about inputs that are numbers
        or (
            guard.guard_type in ("EQUALS_MATCH", "CONSTANT_MATCH")
            and type(guard.value) in (int, float, bool)
            and not guard.orig_guard.source.is_unspecialized_nn_module()
        )
        for guard in guards
    ]


class CompiledRound:
    """The device's share of a round as one program; where the host has its say about the draft, all that follows it."""

    def __init__(self, on_device: DeviceRound, gamma_policy: GammaPolicy):
        self._on_device = on_device
        self._drafts_outside = drafts_outside(on_device.drafter, gamma_policy)
        run = self._judge if self._drafts_outside else self._draft_and_judge
        self._program = Compiled(run, on_device.target.device)

    def run(self, decoding: Decoding, gamma: int, uniforms: Tensor) -> Tensor:
        """Do the device's share of a round; returns what the host is to read (`DeviceRound.read`)."""
        sequences, stage = decoding.sequences, decoding.stopwatch.stage
        if not self._drafts_outside:
            with stage("round"), reach_as_input(sequences):
                return self._program((gamma, *sequences.shape), decoding, gamma, uniforms)
        with stage("draft"):
            draft = self._on_device.propose(decoding, gamma, uniforms)
            if draft.num_nodes:  # one program for all that gamma allows, and one for a round without a draft
                draft = draft.padded(gamma)
        with stage("judge"), reach_as_input(sequences):
            return self._program((draft.num_nodes, *sequences.shape), decoding, draft, uniforms)

    def _draft_and_judge(self, decoding: Decoding, gamma: int, uniforms: Tensor) -> Tensor:
        return self._judge(decoding, self._on_device.propose(decoding, gamma, uniforms), uniforms)

    def _judge(self, decoding: Decoding, draft: Draft, uniforms: Tensor) -> Tensor:
        return self._on_device.judge(decoding, draft, uniforms)[1]


def drafts_outside(drafter: Drafter, gamma_policy: GammaPolicy) -> bool:
    """Whether the host has its say about drafts: it finds them itself, or ends them while they grow."""
    ends_them = gamma_policy.keep_drafting is not None and hasattr(drafter, "keep_drafting")
    return ends_them or drafts_on_host(drafter)


@contextmanager
def reach_as_input(sequences: Sequences) -> Iterator[None]:
    """Keep how far rows reach, which changes with every round, from becoming a number of the program.

    On a CPU it is an input. On a GPU a program is recorded with all its shapes, and passes see every slot there is.
    """
    reach = sequences.longest
    sequences.longest = DynamicInt(reach) if sequences.tokens.device.type == "cpu" else sequences.tokens.shape[1]
    try:
        yield
    finally:
        sequences.longest = reach
