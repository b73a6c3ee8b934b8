"""Every acceptance rule with a yaml keeps the contract and its guarantee; a new one is checked from then on."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from experiments.assemble import build
from framework.conformance import check_verifier

YAMLS = sorted((Path(__file__).parents[1] / "conf" / "verifier").glob("*.yaml"))


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_it_keeps_the_contract(path):
    check_verifier(lambda: build(OmegaConf.load(path))).require()
