"""Construction of objects from a config; the only module that calls Hydra's instantiate."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from experiments.config.cli_errors import announce, status
from experiments.config.help_text import CONF
from experiments.config.loaded_models import NO_MODELS, LoadedModels
from experiments.config.option_checks import check_kind, check_options
from experiments.config.renamed_options import check_config
from experiments.measurement.multi_turn import with_next_turns
from experiments.measurement.plan import Arrivals, Candidate, Plan
from experiments.measurement.resource_cache import ResourceCache
from experiments.results.model_names import facts
from experiments.tracking.tracker import Mirror, Point
from framework.core.draft import SamplingScheme, Shape
from framework.core.drafter import Drafter, models_of, most_nodes
from framework.core.option_error import OptionError, options_under
from framework.core.sampling import Sampling
from framework.core.validation import check_number, check_whole
from framework.decoding.engine import Engine, why_no_graphs
from framework.decoding.stopping import Stopping
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.kernels.compiled_graphs import why_not
from framework.models.pretrained import device_named
from framework.models.target import Target
from framework.prompts.prompt_set import PromptSet, make_prompts
from framework.verifiers.verifier import Verifier

FULL_KEY = "\nfull_key: "  # Hydra's prefix of the key in its messages
MOST = 2**62  # fits into int64
# Tokens per decoder. Compiling a graph takes 5 s per layer of a pass, and running it saves 0.3 ms
# (docs/performance.md).
GRAPHS_PAY_FROM = 16_000


def build(node: DictConfig) -> Any:
    """Build the object that a config node describes.

    Its lists and dicts are passed as plain Python objects.

    Raises:
        OptionError: an option has a wrong value; the message names its key.
        ValueError: the node names no class.
        InstantiationException: a constructor raises any other exception.
    """
    if "_target_" not in node:
        raise ValueError(f"{node._get_full_key('_target_')} is missing; allowed: the path of a class or function")
    check_options(node)
    try:
        return hydra.utils.instantiate(node, _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, OptionError):
            raise error.__cause__.under(_failed_key(error)) from error.__cause__
        raise


def build_with_target(factory: Callable[..., Any], node: DictConfig, target: Target) -> Any:
    """Call a factory built from a partial node with the target, its missing argument.

    Raises:
        OptionError: an option has a wrong value; the message names its key.
    """
    with options_under(node._get_full_key(None)):
        return factory(target=target)


def _failed_key(error: InstantiationException) -> str:
    """Key of the node that could not be built, from Hydra's message; "" for the root."""
    return str(error).rpartition(FULL_KEY)[2] if FULL_KEY in str(error) else ""


@cache
def yamls(group: str) -> dict[str, DictConfig]:
    """All yamls of a Hydra group by name."""
    return {path.stem: OmegaConf.load(path) for path in sorted((CONF / group).glob("*.yaml"))}  # type: ignore[misc]


def rules() -> dict[str, Verifier]:
    """All acceptance rules with a yaml, by name, without `default`, which only selects another rule."""
    return {name: build(node) for name, node in yamls("verifier").items() if not node.get("_partial_")}


# An override of a part's option, or of a group that selects a task's draft model.
OPTION = re.compile(r"\+?(?:(?:drafter|verifier|gamma)\.(?P<option>.*?)|(?P<group>paper_drafter))=(?P<value>.*)")
DrafterFactory = Callable[..., Drafter]


def prepare(
    cfg: DictConfig,
    drafters: Mapping[str, DictConfig],
    resources: ResourceCache,
    models: LoadedModels = NO_MODELS,
) -> tuple[Target, Plan, dict[str, Drafter]]:
    """Check the config, then build the parts shared by all points of a run: target, plan, and each drafter once.

    Args:
        resources: cache of a previously loaded target and its derived objects; objects of this run are added.
        models: loaded models, in place of those that the config names.

    Raises:
        ValueError, OSError: the message names the yaml key. Checks that need no model run before one is loaded.
    """
    target, plan, factories = build_shared(cfg, drafters, resources, models)
    return (
        target,
        plan,
        {
            name: build_drafter(name, each, drafters[name], target, resources, models)
            for name, each in factories.items()
        },
    )


def build_shared(
    cfg: DictConfig, drafters: Mapping[str, DictConfig], resources: ResourceCache, models: LoadedModels = NO_MODELS
) -> tuple[Target, Plan, dict[str, DrafterFactory]]:
    """As `prepare`, with the drafters' factories in place of the drafters."""
    factories = check_before_loading(cfg, drafters)
    target = cached_target(cfg, resources, models)
    with status("reading the prompts"):
        plan = build_plan(cfg, target, resources)
    return target, plan, factories


def cached_target(cfg: DictConfig, resources: ResourceCache, models: LoadedModels) -> Target:
    """The target of a config from the cache, or made of a loaded model, or built."""
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    make = partial(build_target, cfg) if models.target is None else partial(models.target_of, cfg.target)
    with status("loading the target"):
        # Compiled graphs depend on the number of threads.
        return resources.main(_text(cfg.target, torch.get_num_threads()), make)


def build_drafter(
    name: str,
    factory: DrafterFactory,
    node: DictConfig,
    target: Target,
    resources: ResourceCache,
    models: LoadedModels = NO_MODELS,
) -> Drafter:
    """Build a drafter from its factory, with a loaded model if given, or take it from the cache.

    Raises:
        ValueError, OSError: it does not fit the target, or its files cannot be read.
    """
    with status(f"building {name}"):
        make = partial(build_with_target, models.with_draft_model(factory, node), node, target)
        return _drafter_resources(resources).main(_text(node), make)


def _drafter_resources(resources: ResourceCache) -> ResourceCache:
    return resources.derived("drafter", ResourceCache)


def _text(*made_of: Any) -> str:
    """Cache key of config nodes and plain values, with interpolations resolved."""
    return json.dumps(
        [OmegaConf.to_container(each, resolve=True) if OmegaConf.is_config(each) else each for each in made_of]
    )


def check_before_loading(cfg: DictConfig, drafters: Mapping[str, DictConfig]) -> dict[str, DrafterFactory]:
    """Run all checks that need no model: numbers, device, and compatibility of verifier and drafters.

    Returns:
        Drafter factories by name: a drafter's yaml is a partial, which has its options and still needs the target.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    numbers = {"batch_size": 1, "repeats": 1, "seed": 0, "max_new_tokens": 1}
    check_basics(cfg, numbers, or_null=("prompts.count", "prompts.max_prompt_tokens", "target.context"))
    for key in ("hugging_face", "multi_turn", "refill", "run_completions", "teacher_forced_alpha"):
        check_kind(key, cfg[key], [bool])
    build_arrivals(cfg)
    build(cfg.prompts.source)
    return check_parts(cfg, drafters)


def check_parts(cfg: DictConfig, drafters: Mapping[str, DictConfig]) -> dict[str, DrafterFactory]:
    """Check the options of the decoding loop and its parts without a model.

    Returns:
        Drafter factories by name.

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
            "engine.compile is true, and target.device_map is not null; a round over several GPUs cannot be compiled: "
            "set engine.compile=false, or target.device_map=null"
        )
    if cfg.engine.compile is False:
        _refuse_compiled_prefill(cfg)
    check_sharing(cfg)
    if not OmegaConf.is_list(cfg.stop_strings) or not all(isinstance(text, str) for text in cfg.stop_strings):
        raise ValueError(f"stop_strings is {cfg.stop_strings!r}; allowed: a list of texts, such as ['...'] or []")
    build(cfg.gamma)
    factories: dict[str, DrafterFactory] = {name: build(node) for name, node in drafters.items()}
    for factory in factories.values():
        drafter = getattr(factory, "func", factory)
        if hasattr(drafter, "scheme") and hasattr(drafter, "shape"):  # else the engine's constructor checks
            build_verifier(cfg, drafter.scheme, drafter.shape).check(drafter.scheme, drafter.shape)
    return factories


def compile_is_true(cfg: DictConfig) -> bool:
    """Whether engine.compile is true, for commands in which auto means false.

    Raises:
        ValueError: prefills are to be compiled, and nothing is.
    """
    if cfg.engine.compile is not True:
        _refuse_compiled_prefill(cfg)
    return cfg.engine.compile is True


def _refuse_compiled_prefill(cfg: DictConfig) -> None:
    if cfg.target.get("compile_prefill"):
        given = OmegaConf.select(cfg, "engine.compile")
        says = "nothing is compiled here" if given is None else f"engine.compile is {_as_yaml(given)}"
        allowed = "false" if given is None else "false, or true with engine.compile=true"
        raise ValueError(f"target.compile_prefill is true, and {says}; allowed: {allowed}")


def _as_yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def check_sharing(cfg: DictConfig) -> None:
    """
    Raises:
        ValueError: processes share a target, and its rounds are to be compiled, or the command is not `measure`.
    """
    given = cfg.target.get("tensor_parallel")
    if given and cfg.engine.compile is True:
        raise ValueError(f"engine.compile is true, and target.tensor_parallel is {given!r}; allowed: false")
    if given and HydraConfig.initialized() and (name := HydraConfig.get().job.name) != "measure":
        raise ValueError(f"target.tensor_parallel is {given!r}, and {name} runs in one process; allowed: null")


def check_basics(cfg: DictConfig, least: Mapping[str, int], or_null: Iterable[str]) -> None:
    """Run the checks common to all commands that load a target.

    Args:
        least: keys of whole numbers in the config, each with its minimum.
        or_null: keys of whole numbers >= 1 that may also be null; `threads` is always checked so.

    Raises:
        ValueError: the message names the yaml key.
    """
    check_config(cfg)
    for key, smallest in least.items():
        check_whole(key, OmegaConf.select(cfg, key), least=smallest, most=MOST)
    for key in or_null:
        check_whole(key, OmegaConf.select(cfg, key), least=1, most=MOST, or_null=True)
    check_whole("threads", cfg.threads, least=1, most=4096, or_null=True)
    check_options(cfg.target)
    if "engine" not in cfg:
        _refuse_compiled_prefill(cfg)
    check_kind("device", cfg.device, [str])
    device_named(cfg.device)


def build_target(cfg: DictConfig) -> Target:
    """Set the number of threads and build the target."""
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    return build(cfg.target)


def build_sampling(cfg: DictConfig) -> Sampling:
    return build(cfg.sampling)


def build_tracker(cfg: DictConfig, resources: ResourceCache) -> Mirror:
    """Build one tracker for all points of a process, so that an unreachable server is waited for only once."""
    return resources.separate("tracker").main(_text(cfg.tracker), partial(build, cfg.tracker))


def build_verifier(cfg: DictConfig, scheme: SamplingScheme, shape: Shape) -> Verifier:
    """Build the config's acceptance rule; `default` selects it by the drafts' scheme and shape."""
    built = build(cfg.verifier)
    return built(scheme=scheme, shape=shape) if isinstance(built, partial) else built


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
    """Build the stopping criteria; end-of-text ids are those of the tokenizer and of the model's generation config."""
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
    # An encoder-decoder's prompt goes to the encoder and takes no room in the decoder's context.
    taken = max(1, len(target.model.text_start))
    room = target.model.context - cfg.max_new_tokens
    if room < taken:
        raise ValueError(
            f"max_new_tokens is {cfg.max_new_tokens}; allowed: at most {target.model.context - taken}, the room that "
            "the target's context leaves"
        )
    source = build(cfg.prompts.source)
    with options_under("prompts"):
        return make_prompts(
            source,
            target.tokenizer,
            count=cfg.prompts.count,
            max_prompt_tokens=cfg.prompts.max_prompt_tokens,
            max_tokens=target.model.context if target.model.text_start else room,
            overflow=cfg.prompts.overflow,
            vocabulary_size=target.vocabulary_size,
            chat=cfg.prompts.chat,
            system=cfg.prompts.system,
        )


def build_plan(cfg: DictConfig, target: Target, resources: ResourceCache) -> Plan:
    stopping = build_stopping(cfg, target)
    turns = [cfg.batch_size, cfg.stop_at_eos, cfg.stop_strings] if cfg.multi_turn else []
    made_of = _text("prompts", cfg.prompts, cfg.max_new_tokens, *turns)
    prompts = resources.derived(made_of, lambda: _all_turns(cfg, target, stopping))
    have_tests = all(prompt.tests is not None for prompt in prompts.prompts)
    if cfg.run_completions and not have_tests:
        allowed = "false, or prompts with tests, such as prompts=function_tasks"
        raise ValueError(f"run_completions is True; allowed: {allowed}")
    is_cut = bool(prompts.num_truncated or cfg.prompts.max_prompt_tokens)
    if cfg.run_completions and (is_cut or prompts.chat or cfg.multi_turn):
        allowed = "whole code: prompts.chat=false multi_turn=false prompts.max_prompt_tokens=null prompts.overflow=skip"
        raise ValueError(f"run_completions is True, with prompts {'cut' if is_cut else 'of chats'}; allowed: {allowed}")
    if have_tests and not cfg.run_completions:
        announce("no pass rate: run_completions=true would run the model's code with the prompts' tests")
    return Plan(
        prompt_set=prompts,
        batch_size=cfg.batch_size,
        stopping=stopping,
        repeats=cfg.repeats,
        seed=cfg.seed,
        hugging_face=cfg.hugging_face,
        teacher_forced=cfg.teacher_forced_alpha,
        run_completions=cfg.run_completions,
        compiled=_compiles(cfg, target, num_tokens=len(prompts.prompts) * cfg.max_new_tokens * cfg.repeats),
        refill=cfg.refill,
        arrivals=build_arrivals(cfg),
    )


def build_arrivals(cfg: DictConfig) -> Arrivals | None:
    """The process by which requests arrive; None: the command has none, or its rate is null.

    Raises:
        OptionError: an option out of range, or a rate without refill.
    """
    if "arrivals" not in cfg or cfg.arrivals.rate is None:
        return None
    with options_under("arrivals"):
        for key in ("rate", "latency_bound"):
            check_number(key, cfg.arrivals[key], lambda value: 0 < value < math.inf, "a number > 0")
        if not cfg.refill:
            raise OptionError("rate", cfg.arrivals.rate, "null, or refill=true", "and refill is false")
        if cfg.target.get("tensor_parallel"):  # each process would take prompts by its own clock
            allowed = "null, or target.tensor_parallel=null"
            raise OptionError("rate", cfg.arrivals.rate, allowed, "and processes share the target")
    return Arrivals(rate=cfg.arrivals.rate, latency_bound=cfg.arrivals.latency_bound, seed=cfg.seed)


def _all_turns(cfg: DictConfig, target: Target, stopping: Stopping) -> PromptSet:
    prompts = build_prompts(cfg, target)
    if not cfg.multi_turn:
        return prompts
    room = target.model.context - cfg.max_new_tokens
    with status("answering the first turns"):
        return with_next_turns(
            prompts, target, stopping, batch_size=cfg.batch_size, system=cfg.prompts.system, room=room
        )


def _compiles(cfg: DictConfig, target: Target, *, num_tokens: int) -> bool:
    """Whether to compile rounds, given the number of tokens that each decoder generates."""
    if cfg.engine.compile != "auto":
        return bool(cfg.engine.compile)
    if cfg.target.get("device_map") or target.model.why_no_graphs is not None:
        return False
    return num_tokens >= GRAPHS_PAY_FROM and why_not(target.device) is None


def build_engine(cfg: DictConfig, drafter: Drafter, target: Target, sampling: Sampling, *, compiled: bool) -> Engine:
    """Build an engine from a drafter and the config's verifier and gamma policy.

    Raises:
        ValueError: the parts are incompatible.
    """
    gamma_policy: GammaPolicy = build(cfg.gamma)
    compiled = compiled and not (cfg.engine.compile == "auto" and why_no_graphs(drafter))
    check_tree(drafter, gamma_policy.max_gamma, target.model.context)
    return Engine(
        target=target,
        drafter=drafter,
        verifier=build_verifier(cfg, drafter.scheme, drafter.shape),
        gamma_policy=gamma_policy,
        sampling=sampling,
        compiled=compiled,
    )


def check_engine(cfg: DictConfig, key: str, drafter: Drafter, target: Target) -> None:
    """
    Args:
        key: the drafter's key in the config, for errors.

    Raises:
        ValueError: the drafter does not fit the config's verifier or gamma policy.
    """
    try:
        build_engine(cfg, drafter, target, build_sampling(cfg), compiled=False)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def build_candidate(
    cfg: DictConfig,
    drafter_name: str,
    drafter: Drafter,
    target: Target,
    sampling: Sampling,
    *,
    study: str,
    folder: Path,
    compiled: bool = False,
    resources: ResourceCache | None = None,
) -> Candidate:
    """Build a point to measure from a drafter and the config's verifier and gamma policy.

    Args:
        resources: the cache passed to `prepare`, which then keeps the engine and its compiled graphs with the
            drafter; None: no caching.
    """
    make = partial(build_engine, cfg, drafter, target, sampling, compiled=compiled)
    made_of = _text(cfg.verifier, cfg.gamma, cfg.sampling, compiled, cfg.stop_at_eos)
    engine = _drafter_resources(resources).derived(made_of, make) if resources else make()
    if cfg.refill:
        engine.require_refillable()
    settings = _settings(cfg, drafter_name, engine, compiled=compiled)
    point = Point(
        folder=folder,
        name=_point_name(settings),
        study=study,
        settings=settings,
        config=OmegaConf.to_container(cfg, resolve=True),  # type: ignore[arg-type]
        models={"target": facts([target.model.model]), "drafter": facts(models_of(drafter))},
    )
    return Candidate(point, engine)


def _settings(cfg: DictConfig, drafter_name: str, engine: Engine, *, compiled: bool) -> dict[str, Any]:
    """Flat settings that distinguish a point from others."""
    choices, target = HydraConfig.get().runtime.choices, engine.target
    return {
        "drafter": drafter_name,
        "options": _options(),
        "verifier": _yaml_name(engine.verifier) if choices["verifier"] == "default" else choices["verifier"],
        "guarantee": engine.verifier.guarantee.value,
        "gamma_policy": choices["gamma"],
        "gamma": engine.gamma_policy.max_gamma,
        **asdict(engine.sampling),
        "batch_size": cfg.batch_size,
        **_refilling(cfg),
        "max_new_tokens": cfg.max_new_tokens,
        "prompts": choices["prompts"],
        "target": choices["target"],
        "target_fingerprint": target.fingerprint,
        "device": target.device.type,
        "dtype": cfg.target.dtype,
        "generation": _assignments(target.processors.options),
        "compiled": compiled,
    }


def _refilling(cfg: DictConfig) -> dict[str, Any]:
    """Settings of continuous batching; empty without it, as in records of earlier versions."""
    arrivals = build_arrivals(cfg)
    if arrivals is None:
        return {"refill": True} if cfg.refill else {}
    return {"refill": True, "arrival_rate": arrivals.rate, "latency_bound": arrivals.latency_bound}


def _point_name(settings: Mapping[str, Any]) -> str:
    """Folder name of at most 150 characters: drafter, options, temperature, gamma, and non-default choices."""
    choices = HydraConfig.get().runtime.choices
    usual = {"verifier": "default", "gamma": "fixed"}
    words = [
        settings["drafter"],
        *re.findall(r"[\w.]+", settings["options"]),
        f"T{settings['temperature']:g}",
        *(choices[group] for group in usual if choices[group] != usual[group]),
        f"g{settings['gamma']}",
    ]
    return "-".join(words)[:150]


def _assignments(options: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={json.dumps(value, default=str)}" for name, value in options.items())


def _yaml_name(part: object) -> str:
    """Class name in snake case, as its yaml: RecursiveRejection is recursive_rejection."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(part).__name__).lower()


def _options() -> str:
    """Command-line overrides of drafter, verifier and gamma policy, which distinguish the points of a sweep.

    Gamma is left out, since it is a separate setting. A path is shortened to its last component.
    """
    overrides = [OPTION.fullmatch(override) for override in HydraConfig.get().overrides.task]
    pairs = [(found["option"] or found["group"], found["value"]) for found in overrides if found]
    return " ".join(f"{key}={value.split('/')[-1]}" for key, value in pairs if key not in ("gamma", "max_gamma"))
