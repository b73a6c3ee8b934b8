"""From configuration to objects: the one place that calls Hydra's instantiate."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from experiments.entry_point import status
from experiments.knobs import check_kind, check_knobs, check_whole
from experiments.measurement import Plan, Subject
from framework.drafter import Drafter
from framework.engine import Engine
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.pretrained import device_named
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
    check_knobs(node)
    return hydra.utils.instantiate(node, _convert_="all")


DrafterFactory = Callable[..., Drafter]


def prepare(cfg: DictConfig, drafters: Mapping[str, DictConfig]) -> tuple[Target, Plan, dict[str, Drafter]]:
    """Check, load and build what every point of a run shares: the target, the plan, and each drafter once.

    Raises:
        ValueError, OSError: the message names the yaml key; before a model is loaded where that needs none.
    """
    factories = check_before_loading(cfg, drafters)
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    with status("loading the target"):
        target = build_target(cfg)
        plan = build_plan(cfg, target)
    built = {}
    for name, factory in factories.items():
        with status(f"building {name}"):
            built[name] = factory(target=target)
    return target, plan, built


def check_before_loading(cfg: DictConfig, drafters: Mapping[str, DictConfig]) -> dict[str, DrafterFactory]:
    """Everything that can be wrong without a model: numbers, device, and whether the verifier suits the drafters.

    Returns:
        the drafters' factories: a drafter's yaml is a partial, its knobs now and its target later.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    _check_numbers(cfg)
    for key, kind in {"device": str, "stop_at_eos": bool, "hugging_face": bool}.items():
        check_kind(key, cfg[key], [kind])
    check_knobs(cfg.target)
    device_named(cfg.device)
    if not OmegaConf.is_list(cfg.stop_strings) or not all(isinstance(text, str) for text in cfg.stop_strings):
        raise ValueError(f"stop_strings is {cfg.stop_strings!r}; allowed: a list of texts, such as ['...'] or []")
    build(cfg.gamma)
    build(cfg.prompts.source)
    verifier: Verifier = build(cfg.verifier)
    factories: dict[str, DrafterFactory] = {name: build(node) for name, node in drafters.items()}
    for factory in factories.values():
        drafter = getattr(factory, "func", factory)
        if hasattr(drafter, "law") and hasattr(drafter, "shape"):  # else the engine checks, once it is built
            verifier.check(drafter.law, drafter.shape)
    return factories


def _check_numbers(cfg: DictConfig) -> None:
    numbers = {"batch_size": 1, "repeats": 1, "seed": 0, "max_new_tokens": 1}
    or_null = {"threads": 1, "prompts.count": 1, "prompts.first_tokens": 1, "target.context": 1}
    for key, least in (numbers | or_null).items():
        most = 4096 if key == "threads" else 2**62  # what fits into the machine's integers
        check_whole(key, OmegaConf.select(cfg, key), least=least, most=most, or_null=key in or_null)


def build_target(cfg: DictConfig) -> Target:
    return build(cfg.target)


def build_sampling(cfg: DictConfig) -> Sampling:
    return build(cfg.sampling)


def build_tracker(cfg: DictConfig) -> Tracker:
    return build(cfg.tracker)


def build_stopping(cfg: DictConfig, target: Target) -> Stopping:
    """What ends a row; end-of-text is whatever the tokenizer or the model's generation config says it is."""
    stated = target.model.model.generation_config.eos_token_id
    stated = stated if isinstance(stated, list) else [stated]
    eos_ids = {token for token in [target.tokenizer.eos_token_id, *stated] if token is not None}
    return Stopping(
        max_new_tokens=cfg.max_new_tokens,
        eos_ids=tuple(sorted(eos_ids)) if cfg.stop_at_eos else (),
        stop_strings=tuple(cfg.stop_strings),
        tokenizer=target.tokenizer,
    )


def build_prompts(cfg: DictConfig, target: Target) -> PromptSet:
    room = target.model.context - cfg.max_new_tokens
    if room < 1:
        raise ValueError(
            f"max_new_tokens is {cfg.max_new_tokens}; allowed: at most {target.model.context - 1}, one less than the "
            "target's context"
        )
    return make_prompts(
        build(cfg.prompts.source),
        target.tokenizer,
        count=cfg.prompts.count,
        first_tokens=cfg.prompts.first_tokens,
        max_tokens=room,
        too_long=cfg.prompts.too_long,
        vocabulary_size=target.vocabulary_size,
        chat=cfg.prompts.chat,
        system=cfg.prompts.system,
    )


def build_plan(cfg: DictConfig, target: Target) -> Plan:
    return Plan(
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
    verifier: Verifier = build(cfg.verifier)
    gamma_policy: GammaPolicy = build(cfg.gamma)
    choices, knobs = HydraConfig.get().runtime.choices, _knobs()
    settings = {
        "drafter": drafter_name,
        "knobs": knobs,
        "verifier": choices["verifier"],
        "guarantee": verifier.guarantee.value,
        "gamma_policy": choices["gamma"],
        "gamma": gamma_policy.max_gamma,
        **asdict(sampling),
        "batch_size": cfg.batch_size,
        "max_new_tokens": cfg.max_new_tokens,
        "prompts": choices["prompts"],
        "target": choices["target"],
        "target_fingerprint": target.fingerprint,
        "device": target.device.type,
        "dtype": cfg.target.dtype,
    }
    policy = [] if choices["gamma"] == "fixed" else [choices["gamma"]]
    words = [
        drafter_name,
        *re.findall(r"[\w.]+", knobs),
        f"T{sampling.temperature:g}",
        *policy,
        f"g{settings['gamma']}",
    ]
    point = Point(
        folder=folder,
        name="-".join(words)[:150],
        study=study,
        settings=settings,
        config=OmegaConf.to_container(cfg, resolve=True),  # type: ignore[arg-type]
    )
    engine = Engine(target=target, drafter=drafter, verifier=verifier, gamma_policy=gamma_policy, sampling=sampling)
    return Subject(point, engine)


def _knobs() -> str:
    """The drafter's and the gamma policy's knobs that were set on the command line: what tells a sweep's points apart.

    Gamma itself is a setting of its own. Paths are left out: they say where something lies, not what it is.
    """
    overrides = [re.match(r"(?:drafter|gamma)\.(.*?)=(.*)", override) for override in HydraConfig.get().overrides.task]
    pairs = [found.groups() for found in overrides if found]
    return " ".join(f"{key}={value}" for key, value in pairs if key not in ("gamma", "max_gamma") and "/" not in value)
