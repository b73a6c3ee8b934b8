"""What the README promises: its example drafter runs, and the files and settings it names exist."""

import re
from pathlib import Path

import yaml

from framework.autoregressive import Autoregressive
from framework.engine import Engine
from framework.gamma_policies.fixed import Fixed
from framework.sampling import Sampling
from framework.stopping import Stopping
from framework.tiny_models import tiny_target
from framework.verifiers.speculative_sampling import SpeculativeSampling

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_example_drafter_is_exact_and_short():
    (source,) = blocks("python")
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


def test_linked_files_exist():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("http")]
    assert len(links) >= 4
    for link in links:
        assert (ROOT / link).exists(), link


def test_every_drafter_is_listed():
    for path in (ROOT / "conf" / "drafter").glob("*.yaml"):
        assert f"| `{path.stem}` |" in README, path.stem
