"""The acceptance head: its labels, its training, and the path from training to policy."""

import itertools
import sys

import pytest
import torch

from drafters.small_transformer import SmallTransformer
from experiments import train
from framework.conformance.tiny_models import save_tiny, tiny_target
from framework.core.draft import DraftedNode
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.stop_head import StopHead
from framework.heads.acceptance_head import AcceptanceHead, features_of, load_head
from framework.models.pretrained import load_draft_model
from framework.training.acceptance_training import AcceptanceTraining, ranked_right
from framework.training.target_states import output_layer_input
from framework.verifiers.speculative_sampling import SpeculativeSampling


@pytest.fixture(scope="module")
def drafter(tmp_path_factory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("small"), seed=2))


def training(drafter: str, **options) -> AcceptanceTraining:
    model = load_draft_model(path=drafter, dtype="float32", attention="sdpa")
    return AcceptanceTraining(
        tiny_target(),
        model=model,
        **({"rejection_weight": 6, "width": 8, "num_blocks": 2, "hidden_state": False} | options),
    )


def windows(seed: int, number: int = 8) -> torch.Tensor:
    return torch.randint(0, 50, (number, 24), generator=torch.Generator().manual_seed(seed))


def test_features_are_what_they_are_called() -> None:
    probs = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    node = DraftedNode(probs, torch.tensor([1, 1]), depth=1)
    assert features_of(node) == pytest.approx(
        torch.tensor([[0.25, 0.5, 2.0], [1, 1, 1]]).log() * torch.tensor([1, 1, 1.5]), abs=1e-6
    )


def test_labels_are_the_probabilities_with_which_the_rule_keeps_a_token(drafter: str) -> None:
    """Probabilities identify drafted tokens: at every place, one token has both q and label."""
    fitted, tokens = training(drafter), windows(0, number=2)
    with torch.no_grad():
        p, q = (
            served.model(input_ids=tokens).logits[:, :-1].flatten(0, 1).softmax(1)
            for served in (fitted._target.model, fitted._model)
        )
    labels = {"T=1": (p / q).clamp(max=1), "T=0": (p.argmax(1) == q.argmax(1)).float().unsqueeze(1)}
    for kind, label in labels.items():
        features, kept = fitted._drafted(tokens)[kind]
        same = (features[:, :1].exp() - q).abs() < 1e-6
        if kind == "T=0":
            assert (q.gather(1, q.argmax(1, keepdim=True))[:, 0] - features[:, 0].exp()).abs().max() < 1e-6
        assert (same & ((label - kept.unsqueeze(1)).abs() < 1e-4)).any(1).all()
        assert torch.equal(kept, fitted._drafted(tokens)[kind][1])  # the same windows give the same drafts


def test_what_is_ranked_right_is_counted_pair_by_pair() -> None:
    scores, kept = torch.tensor([0.1, 0.4, 0.4, 0.9]), torch.tensor([0.2, 0.5, 0.9, 1.0])
    right = total = 0.0
    for (s, a), (t, b) in itertools.product(zip(scores, kept, strict=True), repeat=2):
        pairs = float(a * (1 - b))
        right += pairs * (float(s > t) + float(s == t) / 2)
        total += pairs
    assert ranked_right(scores, kept) == pytest.approx(right / total)


@pytest.mark.slow
def test_it_learns_which_tokens_are_kept_and_a_weight_on_rejections_makes_it_cautious(drafter: str) -> None:
    def fitted(weight: float) -> AcceptanceTraining:
        torch.manual_seed(0)
        trainable = training(drafter, rejection_weight=weight)
        optimizer = torch.optim.AdamW(trainable.module.parameters(), lr=1e-2)
        for step in range(80):
            optimizer.zero_grad()
            trainable.loss(windows(step)).backward()
            optimizer.step()
        return trainable

    even, cautious = fitted(1), fitted(6)
    features, kept = even._drafted(windows(999, number=16))["T=1"]
    with torch.no_grad():
        chances = [each.module(features).sigmoid().mean().item() for each in (even, cautious)]
    assert chances[0] == pytest.approx(kept.mean().item(), abs=0.1) and chances[1] < 0.7 * chances[0]
    assert even.evaluate(windows(999))["auc(T=1)"] > 0.6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rejection_weight": 0}, r"^rejection_weight is 0; allowed: a number > 0"),
        ({"width": 0}, r"^width is 0; allowed: a whole number >= 1"),
    ],
)
def test_a_wrong_option_is_named(drafter: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        training(drafter, **options)


@pytest.mark.slow
def test_the_command_trains_a_head_that_the_policy_loads(drafter: str, tmp_path, monkeypatch, capfd) -> None:
    save_tiny(tmp_path / "target", seed=1)
    (tmp_path / "text.txt").write_text("".join(f"ab ca cab {'ba' * (i % 3)} b\n" for i in range(60)))
    sources = [f"{key}.source.path={tmp_path}/text.txt" for key in ("prompts", "held_out")]
    arguments = [
        "training=stop_head", "target=pretrained", f"target.path={tmp_path}/target", "target.dtype=float32",
        "device=cpu", "prompts=plain_text", "prompts@held_out=plain_text", *sources, "training.steps=4",
        "training.window=24", "training.warmup=2", "held_out_windows=4", "samples.new_tokens=40", "threads=1",
        f"training.trainable.model.path={drafter}", f"folder={tmp_path}/head", "tracker=jsonl",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["train", *arguments])
    train.main()
    assert f"gamma=stop_head gamma.path={tmp_path}/head" in capfd.readouterr().out
    policy = StopHead(max_gamma=4, path=f"{tmp_path}/head", threshold=0.5)
    assert policy._head.state_dict().keys() == load_head(f"{tmp_path}/head").state_dict().keys()


def test_a_head_with_the_hidden_state_learns_from_it_and_reads_the_same_state_while_drafting(
    drafter: str, tmp_path
) -> None:
    """Uncached in training, cached in the loop: equal states at the first drafted position."""
    trainable = training(drafter, hidden_state=True)
    head, small = trainable.module, trainable._model
    assert isinstance(head, AcceptanceHead) and head.state_size == small.model.config.hidden_size
    trainable.loss(windows(0)).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in head.parameters())
    trainable.save(tmp_path, windows(1))
    policy = StopHead(max_gamma=3, path=str(tmp_path), threshold=0.0)
    seen: list[DraftedNode] = []
    asked = policy.should_continue

    def watched(node: DraftedNode) -> torch.Tensor:
        seen.append(node)
        return asked(node)

    policy.should_continue = watched
    target = tiny_target()
    model = load_draft_model(path=drafter, dtype="float32", attention="sdpa")
    engine = Engine(
        target=target, drafter=SmallTransformer(target, model=model), verifier=SpeculativeSampling(),
        gamma_policy=policy, sampling=Sampling(),
    )  # fmt: skip
    prompt = [5, 6, 7, 8]
    (tokens,) = engine.generate([prompt], stopping=Stopping(max_new_tokens=6), seeds=[0]).tokens
    with torch.no_grad():
        states = output_layer_input(small.model, torch.tensor([prompt + tokens[:1]]))
    assert torch.allclose(seen[0].hidden, states[:, -1], atol=1e-5)
    with pytest.raises(
        ValueError, match=r"^path is .*reads a hidden state of size \d+, and the drafter shows none; allowed"
    ):
        asked(DraftedNode(seen[0].probs, seen[0].entry, depth=1))
