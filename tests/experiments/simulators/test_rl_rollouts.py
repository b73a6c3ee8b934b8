"""Rollouts whose target learns: its step, exactness for the weights of each step, and clear errors."""

import json
import sys

import pytest
import torch

from experiments import rl_rollouts
from experiments.simulators.rewards import comments, short_lines
from experiments.simulators.rollouts import Policy
from framework.conformance.tiny_models import save_tiny, tiny_target
from framework.models.cached_lm import CachedLM

PROMPTS, NEW = [[1, 2, 3], [4, 5]], [[6, 7], [8, 9, 10]]


def log_p(model, start: list[int], new: list[int], temperature: float) -> torch.Tensor:
    """Sum of the log-probabilities of new tokens after a start, unpadded."""
    logits = model(torch.tensor([start + new])).logits[0, len(start) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(new).unsqueeze(1)).sum()


def test_a_step_follows_the_gradient_of_reinforce():
    target, twin = tiny_target(), tiny_target().model.model.requires_grad_(True)
    policy = Policy(target, temperature=0.7, learning_rate=0.0)
    policy.learn(PROMPTS, NEW, [1.0, 0.0])
    with torch.enable_grad():
        sums = [log_p(twin, start, new, 0.7) for start, new in zip(PROMPTS, NEW, strict=True)]
        (-(0.5 * sums[0] - 0.5 * sums[1]) / 5).backward()
    torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
    for got, expected in zip(target.model.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad, rtol=1e-4, atol=1e-6)


def test_steps_make_rewarded_texts_likelier():
    target = tiny_target()
    policy = Policy(target, temperature=1.0, learning_rate=1e-2)
    before = log_p(target.model.model, PROMPTS[0], NEW[0], 1.0)
    for _ in range(3):
        policy.learn(PROMPTS, NEW, [1.0, 0.0])
    assert log_p(target.model.model, PROMPTS[0], NEW[0], 1.0) > before + 0.1


@pytest.fixture
def arguments(tmp_path) -> list[str]:
    """Overrides for a tiny target, whose drafters are an own small model and prompt lookup."""
    target, drafter = (save_tiny(tmp_path / name, seed=seed) for name, seed in (("target", 1), ("drafter", 2)))
    (tmp_path / "text.txt").write_text("ab ca cab ba b\n" * 8)
    small = "drafters.small_transformer.model.path"
    return ["target=pretrained", f"target.path={target}", "target.dtype=float32", "device=cpu", "prompts=plain_text",
            f"prompts.source.path={tmp_path}/text.txt", "prompts.max_prompt_tokens=8", f"{small}={drafter}",
            "~drafter@drafters.online_small_transformer", "steps=3", "batch_size=4", "checked=4", "max_new_tokens=12",
            "reward=experiments.simulators.rewards.short_lines", "threads=1",
            f"hydra.run.dir={tmp_path}"]  # fmt: skip


def run(monkeypatch, arguments: list[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["rl_rollouts", *arguments])
    rl_rollouts.main()


@pytest.mark.slow
def test_tokens_are_exact_for_the_weights_of_each_step(tmp_path, arguments, monkeypatch, capsys):
    found = []
    for rate in (0, 0.05):
        run(monkeypatch, [*arguments, f"learning_rate={rate}"])
        found.append(json.loads((tmp_path / "rollouts.json").read_text()))
    still, steps = found
    rewards = [[step["reward"] for step in each] for each in found]
    assert rewards[0][0] == rewards[1][0] and rewards[0][1:] != rewards[1][1:], "the weights change"
    assert len(steps) == 3 and all(list(step["rollouts"]) == ["small_transformer", "prompt_lookup"] for step in steps)
    assert all(each["equal"] == 1 for step in (*still, *steps) for each in step["rollouts"].values())
    assert (tmp_path / "rollouts.png").exists() and "small_transformer" in capsys.readouterr().out


@pytest.mark.slow
def test_a_drafter_does_not_learn_from_the_checked_texts(tmp_path, arguments, monkeypatch):
    online = "drafters.online_small_transformer"
    given = [each for each in arguments if not each.startswith("~")]
    given += [f"{online}.drafter.model.path={tmp_path}/drafter", f"{online}.update_interval=8", "learning_rate=0"]
    alphas = []
    for checked in (1, 4):
        run(monkeypatch, [*given, f"checked={checked}"])
        steps = json.loads((tmp_path / "rollouts.json").read_text())
        alphas.append([step["rollouts"]["online_small_transformer"]["alpha"] for step in steps])
    assert alphas[0] == alphas[1]


@pytest.mark.slow
def test_an_engine_with_stale_weights_is_caught(tmp_path, arguments, monkeypatch):
    """Negative control: speculation, whose passes read several tokens, sees the weights of the first step alone."""
    forward, old = CachedLM.forward, {}

    def stale(self, tokens, start, **options):
        weights = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        first = old.setdefault(id(self), weights)
        if start is None or tokens.shape[1] == 1:
            return forward(self, tokens, start, **options)
        with torch.no_grad():
            for name, value in self.model.named_parameters():
                value.copy_(first[name])
            output = forward(self, tokens, start, **options)
            for name, value in self.model.named_parameters():
                value.copy_(weights[name])
        return output

    monkeypatch.setattr(CachedLM, "forward", stale)
    run(monkeypatch, [*arguments, "learning_rate=0.05"])
    *_, last = json.loads((tmp_path / "rollouts.json").read_text())
    assert last["rollouts"]["small_transformer"]["equal"] < 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("steps=0", "steps is 0; allowed: a whole number"),
        ("batch_size=1", "batch_size is 1; allowed: a whole number"),
        ("checked=5", "checked is 5; allowed: a whole number"),
        ("temperature=0", "temperature is 0; allowed: a number > 0"),
        ("learning_rate=x", "learning_rate is 'x'; allowed: a number in [0, 1]"),
        ("engine.compile=true", "engine.compile is True; allowed: false, since the weights change"),
        ("reward=comments", "reward is 'comments'; allowed: the path of a function from a text to a number"),
        ("gamma.gamma=-1", "gamma.gamma is -1"),
    ],
)
def test_wrong_options_are_one_line_before_a_model_is_loaded(arguments, monkeypatch, capsys, wrong, says):
    monkeypatch.setattr(rl_rollouts, "build_target", lambda cfg: pytest.fail("the target was loaded"))
    with pytest.raises(SystemExit):
        run(monkeypatch, [*arguments, wrong])
    assert says in capsys.readouterr().err


def test_rewards():
    assert comments("# a\n\n  # b\nx = 1\n") == pytest.approx(2 / 3) and comments("\n") == 0
    assert short_lines("ab\nabcd") == pytest.approx(-0.3) and short_lines("") == 0
