"""Every suite composes as its own command says, and what its drafters load was made for the suite's target."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from experiments.config.resolvers import register_resolvers

CONF = Path(__file__).parents[2] / "conf"
SUITES = sorted(path.stem for path in (CONF / "suite").glob("*.yaml"))
register_resolvers()


def composed(suite: str) -> tuple[DictConfig, list[str]]:
    """The config that the command in a suite's yaml gives, and its overrides."""
    lines = (CONF / "suite" / f"{suite}.yaml").read_text().splitlines()
    command = next(line for line in lines if line.startswith("# python -m experiments.compare "))
    overrides = shlex.split(command)[4:]
    with initialize(version_base="1.3", config_path="../../conf"):
        return compose("compare", overrides, return_hydra_config=True), overrides


def embedded(value: Any, folder: Path) -> Iterator[Path]:
    """All that a config node names below a folder."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from embedded(each, folder)
    elif isinstance(value, str) and folder in Path(value).parents:
        yield Path(value)


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_is_what_its_command_says(suite: str) -> None:
    register_resolvers()  # other tests put theirs in its place
    cfg, overrides = composed(suite)
    assert overrides[0] == f"+suite={suite}"
    chosen = {
        group.removeprefix("drafter@drafters."): choice
        for group, choice in cfg.hydra.runtime.choices.items()
        if re.fullmatch(r"drafter@drafters\.\w+", group)
    }
    left_out = {each.removeprefix("~drafters.") for each in overrides[1:]}
    assert set(cfg.drafters) == set(chosen) - left_out and left_out < set(chosen)
    zoo = Path(OmegaConf.create({"path": "${zoo:target}"}).path).parent
    beside = Path(cfg.target.path).parent
    for name, node in cfg.drafters.items():
        yaml = OmegaConf.load(CONF / "drafter" / f"{chosen[str(name)]}.yaml")
        assert get_class(node._target_) is get_class(yaml._target_)
        for path in embedded(OmegaConf.to_container(node, resolve=True), zoo):
            assert path.exists() and path.parent == beside, f"{name}: {path}"
