"""Engines that a benchmark may time beside its own decoders: installation, conversion, processes and arms."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from experiments.config.cli_errors import announce
from experiments.measurement.plan import Plan
from experiments.peers.engine_process import EngineDecoder, EngineProcess
from experiments.peers.gguf_export import why_no_gguf, write_gguf
from experiments.peers.openvino_export import why_no_openvino, write_openvino
from experiments.results.cache_folder import cache_folder
from framework.core.option_error import OptionError
from framework.core.sampling import Sampling
from framework.models.cached_lm import CachedLM
from framework.models.pretrained import device_named, fingerprint
from framework.models.target import Target

PLAIN = "plain"
LOOKUP = "prompt_lookup"
DRAFT_MODEL = "draft_model"


@dataclass(frozen=True)
class Peer:
    """An engine of another project.

    Attributes:
        extra: extra of this project that installs it.
        distribution: its main package, whose version is that of its conversions.
        packages: modules without which it is left out.
        process: module of its process.
        write: writes a model with the target's tokenizer to a path.
        arms: name of its decoder for every arm; `draft_model` needs a converted draft model.
        why_not: reason why a target cannot be converted; empty: it can.
    """

    extra: str
    distribution: str
    packages: tuple[str, ...]
    process: str
    write: Callable[[PreTrainedModel, PreTrainedTokenizerBase, Path], None]
    arms: Mapping[str, str]
    why_not: Callable[[PreTrainedModel], str]


PEERS: dict[str, Peer] = {
    "openvino": Peer(
        extra="openvino",
        distribution="openvino-genai",
        packages=("openvino", "openvino_genai", "openvino_tokenizers"),
        process="experiments.peers.openvino_worker",
        write=write_openvino,
        arms={PLAIN: "openvino", DRAFT_MODEL: "openvino_draft_model", LOOKUP: "openvino_prompt_lookup"},
        why_not=why_no_openvino,
    ),
    "llama_cpp": Peer(
        extra="llama-cpp",
        distribution="llama-cpp-python",
        packages=("llama_cpp", "gguf"),
        process="experiments.peers.llama_cpp_worker",
        write=write_gguf,
        arms={PLAIN: "llama_cpp", LOOKUP: "llama_cpp_prompt_lookup"},
        why_not=why_no_gguf,
    ),
}


def check_peers(cfg: DictConfig) -> None:
    """Check `peers`, and the settings that they need, before anything is loaded.

    Raises:
        ValueError: the message names the yaml key.
    """
    given = cfg.peers
    if not OmegaConf.is_list(given) or len(set(given)) < len(given) or not set(given) <= set(PEERS):
        raise ValueError(f"peers is {given!r}; allowed: a list of {', '.join(PEERS)}, each at most once")
    drafted = cfg.peers_gamma
    if not OmegaConf.is_list(drafted) or not all(type(gamma) is int and gamma > 0 for gamma in drafted):
        raise ValueError(f"peers_gamma is {drafted!r}; allowed: a list of whole numbers >= 1")
    if not given:
        return
    needed = {"batch_size": 1, "refill": False, "stop_strings": [], "target.dtype": "float32"}
    for key, allowed in needed.items():
        if (value := OmegaConf.select(cfg, key)) != allowed:
            raise OptionError(key, value, f"{allowed} with peers")
    if device_named(cfg.device).type != "cpu":
        raise OptionError("device", cfg.device, "cpu with peers")


@dataclass(frozen=True)
class Arm:
    """A decoder of an engine: its name, its kind (PLAIN, LOOKUP, DRAFT_MODEL), and the tokens it drafts per round."""

    name: str
    kind: str
    gamma: int = 0


@dataclass(frozen=True)
class RunningPeer:
    """A loaded engine, with the arms that it can run."""

    process: EngineProcess
    arms: Sequence[Arm]


@contextmanager
def running_peers(
    names: Sequence[str], target: Target, drafter: CachedLM | None, plan: Plan, *, gammas: Sequence[int]
) -> Iterator[list[RunningPeer]]:
    """Convert the models for engines that are installed, and run these until the block ends.

    A line is printed for each engine that is not installed.

    Args:
        names: engines, of PEERS.
        drafter: draft model of one of the benchmark's drafters; None: there is none.
        plan: prompts and numbers of new tokens.
        gammas: numbers of tokens drafted per round, each by arms of its own; 0 gets none.

    Raises:
        ValueError: the target cannot be converted, or its logits are processed.
        ConnectionError: an engine cannot be loaded.
    """
    with ExitStack() as started:
        running = []
        for name in names:
            peer = PEERS[name]
            if not all(map(find_spec, peer.packages)):
                print(f"{name} is left out: it is not installed; pip install -e '.[{peer.extra}]'", flush=True)
                continue
            _check_target(name, target)
            arms = _arms(peer, gammas, has_draft_model=drafter is not None)
            longest = max(len(prompt.tokens) for prompt in plan.prompt_set.prompts)
            settings = {
                "target": str(_converted(name, target.model.model, target.tokenizer)),
                "drafter": None,
                "most_drafted": max(gammas),
                "threads": torch.get_num_threads(),
                "context": longest + plan.stopping.max_new_tokens,
            }
            if drafter is not None and any(arm.kind == DRAFT_MODEL for arm in arms):
                settings["drafter"] = str(_converted(name, drafter.model, target.tokenizer))
            announce(f"loading {name}")
            process = started.enter_context(closing(EngineProcess(name, peer.process, settings)))
            running.append(RunningPeer(process, arms))
        yield running


def _arms(peer: Peer, gammas: Sequence[int], *, has_draft_model: bool) -> list[Arm]:
    """Arms of an engine, plain decoding first; the names of several gammas end in them."""
    kinds = [kind for kind in peer.arms if kind == LOOKUP or (kind == DRAFT_MODEL and has_draft_model)]
    suffixes = {gamma: f"_{gamma}" if len(gammas) > 1 else "" for gamma in gammas if gamma}
    drafting = [Arm(peer.arms[kind] + suffix, kind, gamma) for kind in kinds for gamma, suffix in suffixes.items()]
    return [Arm(peer.arms[PLAIN], PLAIN), *drafting]


def _check_target(name: str, target: Target) -> None:
    """
    Raises:
        OptionError: the engine cannot decode the target's distribution.
    """
    problem = PEERS[name].why_not(target.model.model)
    if target.processors.options:
        problem = f"a model whose generation_config changes its logits ({', '.join(target.processors.options)})"
    if any(tensor.dtype != torch.float32 for tensor in target.model.model.state_dict().values()):
        problem = "a model whose weights are not in float32"
    if problem:
        raise OptionError("peers", name, "[] for this target", f"but the target is {problem}")


def _converted(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Path of a model converted for an engine, which is made once per weights and version of the engine."""
    peer = PEERS[name]
    path = cache_folder() / "peers" / f"{name}-{version(peer.distribution)}" / fingerprint(model)
    if not path.exists():
        announce(f"converting a model for {name}")
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        peer.write(model, tokenizer, partial)
        partial.rename(path)
    return path


def decoders_at(running: Sequence[RunningPeer], sampling: Sampling) -> Iterator[tuple[str, EngineDecoder]]:
    """Names and decoders of the arms that can decode with these sampling settings: above temperature 0 plain ones."""
    if not sampling.greedy and sampling != Sampling(temperature=sampling.temperature):
        if running:
            print(
                f"T={sampling.temperature:g}: peers are left out: they sample with no option but temperature",
                flush=True,
            )
        return
    for peer in running:
        for arm in peer.arms:
            if sampling.greedy or arm.kind == PLAIN:
                yield arm.name, EngineDecoder(peer.process, arm.kind, sampling, gamma=arm.gamma)
