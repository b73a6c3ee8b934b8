"""Errors of options, with their place in the yaml: what `build` and the commands add to a constructor's words."""

import pytest
from omegaconf import DictConfig, OmegaConf

from experiments.config.builders import build, build_with_target
from framework.core.option_error import MissingFileError, OptionError

PLAIN = "framework.prompts.plain_text.PlainText"


def config() -> DictConfig:
    return OmegaConf.create(
        {
            "gamma": {"_target_": "framework.gamma_policies.fixed.Fixed", "gamma": -1},
            "drafters": {
                "counting": {
                    "_target_": "drafters.ngram.NGram",
                    "_partial_": True,
                    "order": 3,
                    "smoothing": "kneser_ney",
                    "learn_from_context": True,
                    "corpus": None,
                },
                "reading": {
                    "_target_": "drafters.ngram.NGram",
                    "_partial_": True,
                    "order": 3,
                    "smoothing": "laplace",
                    "learn_from_context": True,
                    "corpus": {"_target_": PLAIN, "path": "nowhere", "glob": "*.txt", "split_on": "line"},
                },
            },
        }
    )


def test_what_is_built_at_once_is_named_with_its_node():
    with pytest.raises(OptionError, match=r"^gamma\.gamma is -1; allowed: a whole number from 0 to 1000$"):
        build(config().gamma)


def test_a_node_inside_another_is_named_with_its_own_path():
    with pytest.raises(
        MissingFileError, match=r"^drafters\.reading\.corpus\.path is 'nowhere', no such file or folder"
    ):
        build(config().drafters.reading)


def test_what_needs_the_target_is_named_with_its_node():
    node = config().drafters.counting
    with pytest.raises(OptionError, match=r"^drafters\.counting\.smoothing is 'kneser_ney'; allowed: longest_context"):
        build_with_target(build(node), node, None)


def test_at_the_root_the_option_has_no_path():
    with pytest.raises(OptionError, match=r"^gamma is -1; "):
        build(OmegaConf.create({"_target_": "framework.gamma_policies.fixed.Fixed", "gamma": -1}))
