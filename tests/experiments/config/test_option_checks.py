"""A yaml's options against their constructor, before anything is built."""

import pytest
import torch
from omegaconf import OmegaConf

from experiments.config import builders
from experiments.config.option_checks import check_options


class Part:
    """Stands for a drafter that somebody wrote: types as people write them."""

    def __init__(self, target, *, order: int, name: str = "x", rate: float | None = 0.5, top: int = None):  # noqa: RUF013
        pass


PART = {"_target_": f"{__name__}.Part", "_partial_": True, "order": 3}


def checked(**options: object) -> None:
    check_options(OmegaConf.create({"drafter": {**PART, **options}}).drafter)


@pytest.mark.parametrize(
    "options",
    [{}, {"rate": None}, {"rate": 1}, {"top": None}, {"top": 4}, {"name": "y"}],
    ids=lambda options: str(options),
)
def test_options_of_the_right_kind_pass(options):
    checked(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 1.5}, r"drafter\.top is 1\.5; allowed: a whole number, or null"),
        ({"order": None}, r"drafter\.order is None; allowed: a whole number$"),
        ({"order": "three"}, r"drafter\.order is 'three'; allowed: a whole number$"),
        ({"order": "???"}, r"drafter\.order has no value yet; set drafter\.order=\.\.\."),
        ({"name": 3}, r"drafter\.name is 3; allowed: text"),
        ({"rate": "much"}, r"drafter\.rate is 'much'; allowed: a number, or null"),
        ({"ordre": 3}, r"drafter\.ordre is unknown; allowed: order, name, rate, top"),
    ],
    ids=lambda case: str(case),
)
def test_others_are_refused_by_their_key(options, message):
    with pytest.raises(ValueError, match=message):
        checked(**options)


def test_numbers_of_a_part_that_is_made_at_once_are_left_to_its_constructor():
    check_options(OmegaConf.create({"_target_": f"{__name__}.Part", "target": None, "order": "three"}))


def test_the_number_of_threads_is_set_before_the_target_is_loaded(monkeypatch):
    """For every command, since all of them load a target here, or in `build_shared`."""
    done = []
    monkeypatch.setattr(torch, "set_num_threads", lambda number: done.append(number))
    monkeypatch.setattr(builders, "build", lambda node: done.append(node))
    builders.build_target(OmegaConf.create({"threads": 3, "target": "the target"}))
    builders.build_target(OmegaConf.create({"threads": None, "target": "the target"}))
    assert done == [3, "the target", "the target"]
