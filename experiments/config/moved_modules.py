"""Dotted paths in yaml files and checkpoints of earlier versions, mapped to the current ones."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

MOVED = {
    "framework.gamma_policies.best_expected_speed": "framework.gamma_policies.expected_speedup",
    "framework.gamma_policies.additive": "framework.gamma_policies.heuristic",
    "drafters.parallel": "drafters.dart",
    "experiments.by_category": "experiments.reporting.tables.by_category",
    "experiments.output_folder": "experiments.results.output_folder",
    "experiments.over_time": "experiments.reporting.plots.domain_switch",
    "experiments.paper.callback": "experiments.reporting.paper.callback",
    "experiments.training_data": "experiments.trainer.training_data",
    "experiments.trainings": "experiments.trainer.trainings",
    "experiments.wandb_tracker": "experiments.tracking.wandb_tracker",
    "framework.acceptance_training": "framework.training.acceptance_training",
    "framework.distillation": "framework.training.distillation",
    "framework.eagle_training": "framework.training.eagle_training",
    "framework.medusa_training": "framework.training.medusa_training",
    "framework.pretrained": "framework.models.pretrained",
    "framework.prompts.digits": "experiments.corpora.digits",
    "framework.prompts.docstrings": "experiments.corpora.docstrings",
    "framework.prompts.grammar_pairs": "experiments.corpora.grammar_pairs",
    "framework.prompts.in_turn": "framework.prompts.source_sequence",
    "framework.prompts.standard_library": "experiments.corpora.standard_library",
    "framework.prompts.typos": "experiments.corpora.typos",
    "framework.sampling": "framework.core.sampling",
    "framework.tracker": "experiments.tracking.tracker",
    "framework.verifiers.standard": "framework.verifiers.default_verifier",
}

# Former paths of renamed classes and functions, each within the current module.
RENAMED = {
    "drafters.dart.Parallel": "Dart",
    "experiments.reporting.plots.domain_switch.AlphaOverTime": "DomainSwitchPicture",
    "framework.gamma_policies.expected_speedup.BestExpectedSpeed": "ExpectedSpeedup",
    "framework.gamma_policies.heuristic.Additive": "Heuristic",
    "framework.prompts.source_sequence.InTurn": "SourceSequence",
    "framework.verifiers.default_verifier.standard_rule": "default_verifier",
}


def current(path: str) -> str:
    """Return the current dotted path of a class or a function."""
    module, _, name = path.rpartition(".")
    module = MOVED.get(module, module)
    return f"{module}.{RENAMED.get(f'{module}.{name}', name)}" if module else name


def with_current_targets(value: Any) -> Any:
    """Return a plain config value with every `_target_` replaced by its current path."""
    if isinstance(value, dict):
        return {
            key: current(item) if key == "_target_" and isinstance(item, str) else with_current_targets(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [with_current_targets(item) for item in value]
    return value


def check_current(node: DictConfig) -> None:
    """
    Raises:
        ValueError: a `_target_` in the node or a nested node has moved.
    """
    _check(OmegaConf.to_container(node, resolve=False), node._get_full_key(None))


def _check(value: Any, key: str) -> None:
    if isinstance(value, dict):
        target = value.get("_target_")
        if isinstance(target, str) and current(target) != target:
            name = f"{key}._target_" if key else "_target_"
            raise ValueError(f"{name} is {target!r}, which has moved; set {name}={current(target)}")
        for name, item in value.items():
            _check(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check(item, f"{key}[{index}]")
