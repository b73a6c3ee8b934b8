"""Mixtures of experts: what their routers choose, and passes that are timed over text."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from drafters.layer_skip import LayerSkip
from experiments.measurement.bench import measure
from experiments.measurement.experts import NO_EXPERTS, ExpertCounter, TouchedExperts
from experiments.measurement.plan import Candidate, Plan
from experiments.measurement.resource_cache import ResourceCache
from experiments.measurement.timing import PartTimer, time_parts_amid
from experiments.reporting.tables.comparison_table import markdown_table
from experiments.tracking.tracker import Point
from framework.conformance.tiny_models import tiny_model, tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.target import Target
from framework.prompts.prompt_set import Prompt, PromptSet

GREEDY = Sampling(temperature=0)
FEW_OF_MANY = {"num_experts_per_tok": 2, "num_local_experts": 8, "num_experts": 8}
MIXTURES = {
    "qwen3_moe": FEW_OF_MANY | {"moe_intermediate_size": 16, "head_dim": 8},
    "mixtral": FEW_OF_MANY,
    "gpt_oss": FEW_OF_MANY | {"head_dim": 8, "attention": "eager"},
}


def chosen(model: torch.nn.Module, text: list[int], num_last: int) -> list[int]:
    """How many distinct experts each layer chooses for the last tokens of a text, by its routers' logits."""
    logits = model(input_ids=torch.tensor([text]), use_cache=False, output_router_logits=True).router_logits
    each = [layer.reshape(len(text), -1)[-num_last:] for layer in logits]
    return [len(set(layer.topk(FEW_OF_MANY["num_experts_per_tok"]).indices.flatten().tolist())) for layer in each]


def engine_of(target: Target, gamma: int) -> Engine:
    drafter = LayerSkip(target, layers=None, skip_attention=[0], skip_mlp=None, exit_after=None)
    return Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=gamma), sampling=GREEDY)


@pytest.mark.parametrize("family", MIXTURES)
def test_distinct_experts_are_those_with_the_largest_router_logits(family: str) -> None:
    model, text = tiny_model(family, **MIXTURES[family]), [5, 6, 7, 8, 9, 10]
    for num_tokens in (1, 2, 6):
        with ExpertCounter(model) as counter:
            model(input_ids=torch.tensor([text[:num_tokens]]))
        expected = chosen(model, text[:num_tokens], num_tokens)
        assert counter.latest_pass() == TouchedExperts(sum(expected), len(expected))
    assert counter.latest_pass().per_layer > 2
    assert not any(module._forward_pre_hooks for name, module in model.named_modules() if name.endswith("experts"))


def test_a_dense_model_touches_none() -> None:
    model = tiny_model()
    with ExpertCounter(model) as counter:
        model(input_ids=torch.tensor([[5, 6]]))
    assert counter.latest_pass() == NO_EXPERTS and NO_EXPERTS.per_layer is None


def test_passes_are_timed_over_the_tokens_that_were_decoded() -> None:
    target, prompt = tiny_target(), [5, 6, 7]
    tokens = Autoregressive(target=target, sampling=GREEDY).generate(
        [prompt], stopping=Stopping(max_new_tokens=16), seeds=[0]
    ).tokens  # fmt: skip
    forward, read = target.model.forward, set()

    def spy(given: Tensor, start: Tensor, **others: object) -> Tensor:
        read.add(tuple(given[0].tolist()))
        return forward(given, start, **others)

    engine = engine_of(target, 4)
    target.model.forward = spy
    alone = PartTimer(target, compiled=False)
    time_parts_amid(engine, [prompt], tokens, seeds=[0], repeats=1, timer=alone, max_new_tokens=16)
    (text,) = tokens
    assert read == {(*prompt, *text[:8]), *(tuple(text[8 : 9 + depth]) for depth in range(5))}


@pytest.mark.slow
def test_a_record_says_how_many_experts_rounds_touch(tmp_path: Path) -> None:
    target = tiny_target("qwen3_moe", **MIXTURES["qwen3_moe"])
    engine, prompts = engine_of(target, 3), [[5, 6, 7], [9, 3, 9, 3]]
    point = Point(folder=tmp_path, name="point", study="", settings={"drafter": "layer_skip"}, config={})
    named = [Prompt(name=str(number), category="", tokens=tuple(tokens)) for number, tokens in enumerate(prompts)]
    plan = Plan(
        prompt_set=PromptSet(prompts=named, num_truncated=0, num_skipped=0, chat=False),
        batch_size=1,
        stopping=Stopping(max_new_tokens=12),
        repeats=1,
        seed=0,
        hugging_face=False,
    )
    (record,) = measure([Candidate(point, engine)], target, GREEDY, plan, ResourceCache())

    forward, counts, whole = target.model.forward, [], []

    def spy(given: Tensor, start: Tensor | None, **others: object) -> Tensor:
        if start is not None:  # else it is the prompt
            counts.extend(chosen(target.model.model, [*whole[: int(start)], *given[0].tolist()], given.shape[1]))
        return forward(given, start, **others)

    for prompt in prompts:
        plain = Autoregressive(target=target, sampling=GREEDY)
        whole = prompt + plain.generate([prompt], stopping=plan.stopping, seeds=[0]).tokens[0]
        target.model.forward = spy  # the drafter's own passes go by another CachedLM
        engine.generate([prompt], stopping=plan.stopping, seeds=[0])
        del target.model.forward
    metrics = record.metrics
    assert metrics["experts/touched"] == pytest.approx(sum(counts) / len(counts))
    assert metrics["experts/one_row"] == FEW_OF_MANY["num_experts_per_tok"] < metrics["experts/deepest"] <= 8
    assert f"{metrics['experts/touched']:.1f}" in markdown_table([record])
