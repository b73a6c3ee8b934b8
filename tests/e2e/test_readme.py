"""The README's example drafter and the code it shows run; the pages list every choice of conf/."""

import re
from pathlib import Path

import pytest
import yaml

from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.verifiers.speculative_sampling import SpeculativeSampling

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
UNLISTED = {"default"}  # it only selects another rule


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_example_drafter_is_exact_and_short():
    (source,) = [block for block in blocks("python") if "class Echo" in block]
    namespace: dict = {}
    exec(source, namespace)
    assert len([line for line in source.splitlines() if line.strip()]) <= 30
    target, greedy, stopping = tiny_target(), Sampling(temperature=0), Stopping(max_new_tokens=40)
    prompts = [[1, 2, 3, 1, 2, 3, 1], [5], [7, 8, 7, 8, 9]]
    decoder = Engine(
        target=target,
        drafter=namespace["Echo"](target=target),
        verifier=SpeculativeSampling(),
        gamma_policy=Fixed(gamma=4),
        sampling=greedy,
    )
    seeds = [0, 1, 2]
    expected = Autoregressive(target=target, sampling=greedy).generate(prompts, stopping=stopping, seeds=seeds)
    got = decoder.generate(prompts, stopping=stopping, seeds=seeds)
    assert got.tokens == expected.tokens
    assert sum(got.tally.accepted_by_position) > 0  # it does propose something useful on repetitive text
    (config,) = blocks("yaml")
    assert yaml.safe_load(config)["_target_"] == "drafters.echo.Echo"


@pytest.mark.slow
def test_its_code_is_short_and_runs_as_it_stands(capsys):
    (source,) = [block for block in blocks("python") if "class Echo" not in block]
    assert len([line for line in source.splitlines() if line]) <= 10
    namespace: dict = {}
    exec(source, namespace)
    assert repr(namespace["completion"].text) in capsys.readouterr().out
    assert namespace["completion"].tau > 1


@pytest.mark.parametrize(
    ("group", "page"),
    [
        ("drafter", "components.md"),
        ("verifier", "components.md"),
        ("gamma", "components.md"),
        ("prompts", "components.md"),
        ("study", "sweeps.md"),
    ],
)
def test_every_choice_is_listed(group, page):
    listed = {
        name
        for row in re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    choices = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}
    assert choices - listed - UNLISTED == set()
