"""From configuration to objects: the one place that calls Hydra's instantiate."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from experiments.dialogues import with_later_turns
from experiments.entry_point import status
from experiments.help_text import register_help
from experiments.kept import Kept
from experiments.knobs import check_kind, check_knobs
from experiments.measurement import Plan, Subject
from experiments.ranks import begun
from framework.compiled import why_not
from framework.draft import Law, Shape
from framework.drafter import Drafter, keys_as, learns, most_nodes
from framework.engine import Engine
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.pretrained import device_named
from framework.prompts.prompt_set import PromptSet, make_prompts
from framework.sampling import Sampling
from framework.stopping import Stopping
from framework.target import Target
from framework.tracker import Point, Tracker
from framework.verifiers.verifier import Verifier
from framework.whole_numbers import check_whole

MOST = 2**62  # what fits into the machine's integers
# Tokens per decoder. Making a program takes 5 s per layer of a pass, and running it saves 0.3 ms (docs/performance.md).
PROGRAMS_PAY_FROM = 16_000
REPOSITORY = Path(__file__).parents[1]
ZOO = REPOSITORY / "experiments" / "zoo"


def register_resolvers() -> None:
    """Let yaml name what is embedded, ${zoo:target}, and a time that all ranks share; let --help name its parts."""
    register_help()
    OmegaConf.register_new_resolver("begun", begun, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("zoo", lambda name: str(ZOO / name), replace=True)


def build(node: DictConfig) -> Any:
    """Build the object a config node describes; lists and dicts in it arrive as plain Python."""
    check_knobs(node)
    return hydra.utils.instantiate(node, _convert_="all")


@cache
def yamls(group: str) -> dict[str, DictConfig]:
    """Every yaml of a Hydra group, by name."""
    return {path.stem: OmegaConf.load(path) for path in sorted((REPOSITORY / "conf" / group).glob("*.yaml"))}  # type: ignore[misc]


def rules() -> dict[str, Verifier]:
    """Every acceptance rule with a yaml; one that only chooses among others is none."""
    return {name: build(node) for name, node in yamls("verifier").items() if not node.get("_partial_")}


# An override of a part's knob, or of a group that chooses among a task's draft models.
KNOB = re.compile(r"\+?(?:(?:drafter|verifier|gamma)\.(?P<knob>.*?)|(?P<group>paper_drafter))=(?P<value>.*)")
DrafterFactory = Callable[..., Drafter]


def prepare(cfg: DictConfig, drafters: Mapping[str, DictConfig], kept: Kept) -> tuple[Target, Plan, dict[str, Drafter]]:
    """Check, load and build what every point of a run shares: the target, the plan, and each drafter once.

    Args:
        kept: the target and what was made for it, as far as they were loaded before; gets those of this run.

    Raises:
        ValueError, OSError: the message names the yaml key; before a model is loaded where that needs none.
    """
    factories = check_before_loading(cfg, drafters)
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    with status("loading the target"):
        # Programs are written for a number of threads.
        target = kept.thing(_text(cfg.target, torch.get_num_threads()), lambda: build_target(cfg))
        plan = build_plan(cfg, target, kept)
    built = {}
    for name, factory in factories.items():
        with status(f"building {name}"), _keys_of(cfg, name):
            built[name] = _kept_drafter(kept).thing(_text(drafters[name]), partial(factory, target=target))
    return target, plan, built


def _kept_drafter(kept: Kept) -> Kept:
    return kept.part("drafter", Kept)


def _text(*made_of: Any) -> str:
    """What config nodes and plain values say, interpolations resolved: equal texts make equal things."""
    return json.dumps(
        [OmegaConf.to_container(each, resolve=True) if OmegaConf.is_config(each) else each for each in made_of]
    )


@contextmanager
def _keys_of(cfg: DictConfig, name: str) -> Iterator[None]:
    """Let a drafter's errors name its keys as they are where there are several drafters: drafters.NAME.top_k."""
    if "drafters" not in cfg:
        yield
        return
    with keys_as(f"drafters.{name}"):
        try:
            yield
        except InstantiationException as error:
            if not isinstance(error.__cause__, (ValueError, OSError)):
                raise
            raise error.__cause__ from None


def check_before_loading(cfg: DictConfig, drafters: Mapping[str, DictConfig]) -> dict[str, DrafterFactory]:
    """Everything that can be wrong without a model: numbers, device, and whether the verifier suits the drafters.

    Returns:
        the drafters' factories: a drafter's yaml is a partial, its knobs now and its target later.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    numbers = {"batch_size": 1, "repeats": 1, "seed": 0, "max_new_tokens": 1}
    check_basics(cfg, numbers, or_null=("prompts.count", "prompts.first_tokens", "target.context"))
    for key in ("hugging_face", "later_turns"):
        check_kind(key, cfg[key], [bool])
    build(cfg.prompts.source)
    return check_parts(cfg, drafters)


def check_parts(cfg: DictConfig, drafters: Mapping[str, DictConfig]) -> dict[str, DrafterFactory]:
    """What can be wrong with the loop and its parts without a model; returns the drafters' factories.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    check_kind("stop_at_eos", cfg.stop_at_eos, [bool])
    if not isinstance(cfg.engine.compile, bool) and cfg.engine.compile != "auto":
        raise ValueError(f"engine.compile is {cfg.engine.compile!r}; allowed: true, false, auto")
    if cfg.engine.compile is True and (reason := why_not(device_named(cfg.device))):
        raise ValueError(f"engine.compile is true, but {reason}; or set engine.compile=false")
    if cfg.engine.compile is True and cfg.target.get("device_map"):
        raise ValueError(
            "engine.compile is true, and target.device_map is not null; a round over several GPUs is no program: set "
            "engine.compile=false, or target.device_map=null"
        )
    if not OmegaConf.is_list(cfg.stop_strings) or not all(isinstance(text, str) for text in cfg.stop_strings):
        raise ValueError(f"stop_strings is {cfg.stop_strings!r}; allowed: a list of texts, such as ['...'] or []")
    build(cfg.gamma)
    factories: dict[str, DrafterFactory] = {}
    for name, node in drafters.items():
        with _keys_of(cfg, name):
            factories[name] = build(node)
    for factory in factories.values():
        drafter = getattr(factory, "func", factory)
        if hasattr(drafter, "law") and hasattr(drafter, "shape"):  # else the engine checks, once it is built
            build_verifier(cfg, drafter.law, drafter.shape).check(drafter.law, drafter.shape)
    return factories


def check_basics(cfg: DictConfig, least: Mapping[str, int], or_null: Iterable[str]) -> None:
    """What every command that loads a target checks first.

    Args:
        least: the whole numbers of the config, each with its smallest.
        or_null: those that may be null instead, and else are 1 or more; threads is known to be one.

    Raises:
        ValueError: the message names the yaml key.
    """
    for key, smallest in least.items():
        check_whole(key, OmegaConf.select(cfg, key), least=smallest, most=MOST)
    for key in or_null:
        check_whole(key, OmegaConf.select(cfg, key), least=1, most=MOST, or_null=True)
    check_whole("threads", cfg.threads, least=1, most=4096, or_null=True)
    check_knobs(cfg.target)
    check_kind("device", cfg.device, [str])
    device_named(cfg.device)


def build_target(cfg: DictConfig) -> Target:
    return build(cfg.target)


def build_sampling(cfg: DictConfig) -> Sampling:
    return build(cfg.sampling)


def build_tracker(cfg: DictConfig, kept: Kept) -> Tracker:
    """The tracker of all points of a process: a server that did not answer one of them is not waited for again."""
    return kept.beside("tracker").thing(_text(cfg.tracker), partial(build, cfg.tracker))


def build_verifier(cfg: DictConfig, law: Law, shape: Shape) -> Verifier:
    """The rule that the config names, or the standard one for such drafts."""
    built = build(cfg.verifier)
    return built(law=law, shape=shape) if isinstance(built, partial) else built


def check_tree(drafter: Drafter, gamma: int, context: int) -> None:
    """
    Raises:
        ValueError: the drafter's tree is deeper than gamma, or its nodes do not fit into the target's context.
    """
    depth = getattr(drafter, "depth", 0)
    if depth > gamma:
        raise ValueError(
            f"the drafter's tree is {depth} deep, and gamma is {gamma}; allowed: at most gamma deep. Shorten it "
            "(drafter.branching, drafter.depth), or raise gamma.gamma (gamma.max_gamma)"
        )
    num_nodes = most_nodes(drafter, gamma)
    if num_nodes >= context:
        raise ValueError(
            f"a draft of depth {gamma} holds {num_nodes} nodes; allowed: fewer than the target's context of {context}. "
            "Lower gamma.gamma (gamma.max_gamma), or make the tree smaller (drafter.nodes, drafter.branching)"
        )


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
    # A source is read by the encoder, and leaves the context to the text.
    taken = max(1, len(target.model.text_start))
    room = target.model.context - cfg.max_new_tokens
    if room < taken:
        raise ValueError(
            f"max_new_tokens is {cfg.max_new_tokens}; allowed: at most {target.model.context - taken}, which is what "
            "the target's context leaves"
        )
    return make_prompts(
        build(cfg.prompts.source),
        target.tokenizer,
        count=cfg.prompts.count,
        first_tokens=cfg.prompts.first_tokens,
        max_tokens=target.model.context if target.model.text_start else room,
        too_long=cfg.prompts.too_long,
        vocabulary_size=target.vocabulary_size,
        chat=cfg.prompts.chat,
        system=cfg.prompts.system,
    )


def build_plan(cfg: DictConfig, target: Target, kept: Kept) -> Plan:
    stopping = build_stopping(cfg, target)
    turns = [cfg.batch_size, cfg.stop_at_eos, cfg.stop_strings] if cfg.later_turns else []
    made_of = _text("prompts", cfg.prompts, cfg.max_new_tokens, *turns)
    prompts = kept.part(made_of, lambda: _all_turns(cfg, target, stopping))
    return Plan(
        prompt_set=prompts,
        batch_size=cfg.batch_size,
        stopping=stopping,
        repeats=cfg.repeats,
        seed=cfg.seed,
        hugging_face=cfg.hugging_face,
        compiled=_compiles(cfg, target, num_tokens=len(prompts.prompts) * cfg.max_new_tokens * cfg.repeats),
    )


def _all_turns(cfg: DictConfig, target: Target, stopping: Stopping) -> PromptSet:
    prompts = build_prompts(cfg, target)
    if not cfg.later_turns:
        return prompts
    room = target.model.context - cfg.max_new_tokens
    with status("answering the first turns"):
        return with_later_turns(
            prompts, target, stopping, batch_size=cfg.batch_size, system=cfg.prompts.system, room=room
        )


def _compiles(cfg: DictConfig, target: Target, *, num_tokens: int) -> bool:
    """Whether rounds become programs; num_tokens is how many every decoder is to make."""
    if cfg.engine.compile != "auto":
        return bool(cfg.engine.compile)
    if cfg.target.get("device_map"):
        return False
    return num_tokens >= PROGRAMS_PAY_FROM and why_not(target.device) is None


def build_engine(cfg: DictConfig, drafter: Drafter, target: Target, sampling: Sampling, *, compiled: bool) -> Engine:
    """The loop around this drafter, with the config's verifier and gamma policy.

    Raises:
        ValueError: they do not fit one another.
    """
    gamma_policy: GammaPolicy = build(cfg.gamma)
    compiled = compiled and not (cfg.engine.compile == "auto" and learns(drafter))
    check_tree(drafter, gamma_policy.max_gamma, target.model.context)
    return Engine(
        target=target,
        drafter=drafter,
        verifier=build_verifier(cfg, drafter.law, drafter.shape),
        gamma_policy=gamma_policy,
        sampling=sampling,
        compiled=compiled,
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
    compiled: bool = False,
    kept: Kept | None = None,
) -> Subject:
    """One point to measure: this drafter with the config's verifier and gamma policy.

    Args:
        kept: what prepare was given; the loop is then kept with the drafter, and with it the programs it was made into.
    """
    make = partial(build_engine, cfg, drafter, target, sampling, compiled=compiled)
    made_of = _text(cfg.verifier, cfg.gamma, cfg.sampling, compiled, cfg.stop_at_eos)
    engine = _kept_drafter(kept).part(made_of, make) if kept else make()
    choices, knobs = HydraConfig.get().runtime.choices, _knobs()
    settings = {
        "drafter": drafter_name,
        "knobs": knobs,
        "verifier": _yaml_name(engine.verifier) if choices["verifier"] == "standard" else choices["verifier"],
        "guarantee": engine.verifier.guarantee.value,
        "gamma_policy": choices["gamma"],
        "gamma": engine.gamma_policy.max_gamma,
        **asdict(sampling),
        "batch_size": cfg.batch_size,
        "max_new_tokens": cfg.max_new_tokens,
        "prompts": choices["prompts"],
        "target": choices["target"],
        "target_fingerprint": target.fingerprint,
        "device": target.device.type,
        "dtype": cfg.target.dtype,
        "compiled": compiled,
    }
    unusual = [
        choices[group] for group, usual in (("verifier", "standard"), ("gamma", "fixed")) if choices[group] != usual
    ]
    words = [
        drafter_name,
        *re.findall(r"[\w.]+", knobs),
        f"T{sampling.temperature:g}",
        *unusual,
        f"g{settings['gamma']}",
    ]
    point = Point(
        folder=folder,
        name="-".join(words)[:150],
        study=study,
        settings=settings,
        config=OmegaConf.to_container(cfg, resolve=True),  # type: ignore[arg-type]
    )
    return Subject(point, engine)


def _yaml_name(part: object) -> str:
    """As its yaml is called: RecursiveRejection is recursive_rejection."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(part).__name__).lower()


def _knobs() -> str:
    """What was set of drafter, verifier and gamma policy on the command line: what tells a sweep's points apart.

    Gamma itself is a setting of its own. Of a path only the last part is kept: the rest says where something lies, not
    what it is.
    """
    overrides = [KNOB.fullmatch(override) for override in HydraConfig.get().overrides.task]
    pairs = [(found["knob"] or found["group"], found["value"]) for found in overrides if found]
    return " ".join(f"{key}={value.split('/')[-1]}" for key, value in pairs if key not in ("gamma", "max_gamma"))
