"""From configuration to objects: the one place that calls Hydra's instantiate."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from experiments.measurement import Protocol, Subject
from framework.drafter import Drafter
from framework.engine import Engine
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.prompts.prompt_set import PromptSet, make_prompts
from framework.sampling import Sampling
from framework.stopping import Stopping
from framework.target import Target
from framework.tracker import Point, Tracker
from framework.verifiers.verifier import Verifier

ZOO = Path(__file__).parent / "zoo"


def register_resolvers() -> None:
    """Let yaml name the embedded models: ${zoo:target} is the folder of the target."""
    OmegaConf.register_new_resolver("zoo", lambda name: str(ZOO / name), replace=True)


def build(node: DictConfig) -> Any:
    """Build the object a config node describes; lists and dicts in it arrive as plain Python."""
    return hydra.utils.instantiate(node, _convert_="all")


def build_target(cfg: DictConfig) -> Target:
    return build(cfg.target)


def build_drafter(node: DictConfig, target: Target) -> Drafter:
    """A drafter's yaml is a partial: its knobs now, its target here."""
    factory: Callable[..., Drafter] = build(node)
    return factory(target=target)


def build_verifier(cfg: DictConfig) -> Verifier:
    return build(cfg.verifier)


def build_gamma_policy(cfg: DictConfig) -> GammaPolicy:
    return build(cfg.gamma)


def build_sampling(cfg: DictConfig) -> Sampling:
    return build(cfg.sampling)


def build_tracker(cfg: DictConfig) -> Tracker:
    return build(cfg.tracker)


def build_stopping(cfg: DictConfig, target: Target) -> Stopping:
    if isinstance(cfg.stop_strings, str):
        raise ValueError(f"stop_strings is the text {cfg.stop_strings!r}; allowed: a list of texts, ['...']")
    eos = target.tokenizer.eos_token_id
    return Stopping(
        max_new_tokens=cfg.max_new_tokens,
        eos_ids=(eos,) if cfg.stop_at_eos and eos is not None else (),
        stop_strings=tuple(cfg.stop_strings),
        tokenizer=target.tokenizer,
    )


def build_prompts(cfg: DictConfig, target: Target) -> PromptSet:
    return make_prompts(
        build(cfg.prompts.source),
        target.tokenizer,
        count=cfg.prompts.count,
        first_tokens=cfg.prompts.first_tokens,
        max_tokens=target.model.context - cfg.max_new_tokens,
        too_long=cfg.prompts.too_long,
        vocabulary_size=target.vocabulary_size,
    )


def build_protocol(cfg: DictConfig, target: Target) -> Protocol:
    return Protocol(
        prompt_set=build_prompts(cfg, target),
        batch_size=cfg.batch_size,
        stopping=build_stopping(cfg, target),
        repeats=cfg.repeats,
        seed=cfg.seed,
        hugging_face=cfg.hugging_face,
    )


def build_subject(
    cfg: DictConfig,
    drafter_name: str,
    drafter: Drafter,
    target: Target,
    sampling: Sampling,
    *,
    study: str,
    folder: Path,
) -> Subject:
    """One point to measure: this drafter with the config's verifier and gamma policy."""
    verifier, gamma_policy = build_verifier(cfg), build_gamma_policy(cfg)
    choices = HydraConfig.get().runtime.choices
    settings = {
        "drafter": drafter_name,
        "verifier": choices["verifier"],
        "guarantee": verifier.guarantee.value,
        "gamma_policy": choices["gamma"],
        "gamma": gamma_policy.max_gamma,
        **asdict(sampling),
        "batch_size": cfg.batch_size,
        "target": choices["target"],
        "target_fingerprint": target.fingerprint,
        "device": target.device.type,
        "dtype": cfg.target.dtype,
    }
    point = Point(
        folder=folder,
        name=f"{drafter_name}-T{sampling.temperature:g}-g{gamma_policy.max_gamma}",
        study=study,
        settings=settings,
        config=OmegaConf.to_container(cfg, resolve=True),  # type: ignore[arg-type]
    )
    engine = Engine(target=target, drafter=drafter, verifier=verifier, gamma_policy=gamma_policy, sampling=sampling)
    return Subject(point, engine)


def prepare_machine(cfg: DictConfig) -> None:
    """Check the device and set the number of CPU threads.

    Raises:
        ValueError: no such device, or not a number of threads.
    """
    if cfg.threads is not None:
        if not isinstance(cfg.threads, int) or cfg.threads < 1:
            raise ValueError(f"threads is {cfg.threads!r}; allowed: a whole number >= 1, or null")
        torch.set_num_threads(cfg.threads)
    if cfg.device != "auto":
        try:
            torch.empty(0, device=cfg.device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"device is {cfg.device!r}; allowed: auto, cpu, or a GPU such as cuda ({reason})"
            ) from None
