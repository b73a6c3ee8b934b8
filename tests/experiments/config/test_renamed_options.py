"""Options of earlier versions: one line names today's, on the command line and in a yaml."""

import sys

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from experiments import measure
from experiments.config.builders import yamls
from experiments.config.help_text import CONF
from experiments.config.renamed_options import (
    CHOICES,
    KEYS,
    VALUES,
    check_arguments,
    check_config,
    with_current_options,
)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("unpruned=3", "unpruned is called startup_trials now; set startup_trials=3"),
        ("+later_turns=true", "later_turns is called multi_turn now; set multi_turn=true"),
        ("over.gamma.gamma=[1,2]", "over is called search_space now; set search_space.gamma.gamma=[1,2]"),
        ("~over.gamma.gamma", "over is called search_space now; set search_space.gamma.gamma"),
        (
            "drafters.a.every=3",
            "drafters.a.every is called drafters.a.update_interval now; set drafters.a.update_interval=3",
        ),
        ("vary.over=[1]", "vary.over is called vary.values now; set vary.values=[1]"),
        ("verifier=standard", "verifier=standard is called verifier=default now; set verifier=default"),
        (
            "objective=attainable",
            "objective=attainable is called objective=zero_overhead now; set objective=zero_overhead",
        ),
        ("gamma=additive", "gamma=additive is called gamma=heuristic now; set gamma=heuristic"),
        ("gamma=fixed,additive", "gamma=additive is called gamma=heuristic now; set gamma=heuristic"),
        (
            "drafter@drafters.mine=parallel",
            "drafter=parallel is called drafter=dart now; set drafter@drafters.mine=dart",
        ),
    ],
)
def test_an_old_argument_gets_todays_name(argument: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        check_arguments(["gamma.gamma=3", argument])
    assert str(raised.value) == message


def test_what_is_not_renamed_passes() -> None:
    check_arguments(["-m", "gamma.gamma=1,2", "prompt=over the hills", "drafter=medusa", "overall=1", "--help"])


@pytest.mark.parametrize("old", KEYS)
def test_a_yaml_with_an_old_key_gets_todays_name(old: str) -> None:
    cfg, key, new = OmegaConf.create(), old.replace("*", "mine"), KEYS[old].replace("*", "mine")
    OmegaConf.update(cfg, key, 1)
    with pytest.raises(ValueError, match=f"^{key} is called {new} now; rename it in the yaml$"):
        check_config(cfg)


def test_checkpoints_and_searches_of_an_earlier_version_go_on() -> None:
    made_of = {
        "objective": "attainable",
        "drafter": {"_target_": "drafters.online.Online", "every": 2},
        "prompts": {"count": 3, "first_tokens": 128, "too_long": "error"},
        "later_turns": False,
    }
    assert with_current_options(made_of) == {
        "objective": "zero_overhead",
        "drafter": {"_target_": "drafters.online.Online", "update_interval": 2},
        "prompts": {"count": 3, "max_prompt_tokens": 128, "overflow": "error"},
        "multi_turn": False,
    }


def test_no_choice_has_two_names() -> None:
    for (group, old), new in CHOICES.items():
        assert new in yamls(group) and old not in yamls(group)
    assert not KEYS.keys() & KEYS.values() and not {value for _, value in VALUES} & set(VALUES.values())


def test_no_command_knows_an_old_key() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for old in ("prompts.first_tokens", "prompts.too_long", "later_turns"):
            with pytest.raises(ConfigCompositionException):
                compose("measure", [f"{old}=1"])


def test_a_command_says_it_in_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["measure", "gamma=additive"])
    with pytest.raises(SystemExit) as stopped:
        measure.main()
    assert stopped.value.code == 1
    assert capfd.readouterr().err == "ValueError: gamma=additive is called gamma=heuristic now; set gamma=heuristic\n"
