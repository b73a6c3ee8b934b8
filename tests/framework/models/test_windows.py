"""Sliding-window models against Hugging Face, far beyond their windows and with every drafter."""

from functools import cache
from itertools import product

import pytest
import torch

from experiments.proof.tiny_drafters import NAMES, tiny_factory
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.metrics.equality import differences, within_float32
from framework.models.target import Target
from tests.support.drafter_kinds import KINDS
from tests.support.slow_cases import mostly_slow

WINDOW, NEW_TOKENS, CONTEXT = 16, 200, 256
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"]}
FAMILIES = {
    "mistral": {},
    "gemma3_text": ALTERNATING,
    "gpt_oss": ALTERNATING | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
}
PROMPT_LENGTHS = (40, 1, 17, 16, 5, 30, 2, 9)


@cache
def target_of(family: str) -> Target:
    return tiny_target(family, attention="fused", context=CONTEXT, sliding_window=WINDOW, **FAMILIES[family])


@cache
def prompts() -> list[list[int]]:
    random = torch.Generator().manual_seed(0)
    return [torch.randint(1, 50, (length,), generator=random).tolist() for length in PROMPT_LENGTHS]


@cache
def expected_of(family: str) -> list[list[int]]:
    """Tokens of transformers' own loop, attention and cache, row by row."""
    model = target_of(family).model.model
    before = model.config._attn_implementation
    model.set_attn_implementation(model.get_correct_attn_implementation(None))
    rows = []
    for prompt in prompts():
        tokens = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0
        )
        rows.append(tokens[0, len(prompt) :].tolist())
    model.set_attn_implementation(before)
    return rows


def check(family: str, tokens: list[list[int]]) -> None:
    found = differences(target_of(family), prompts(), expected_of(family), tokens)
    assert within_float32(found, len(PROMPT_LENGTHS) * NEW_TOKENS), found


@pytest.mark.parametrize("family", mostly_slow(FAMILIES, fast=["mistral"]))
def test_plain_decoding(family):
    loop = Autoregressive(target=target_of(family), sampling=Sampling(temperature=0))
    check(family, loop.generate(prompts(), stopping=Stopping(NEW_TOKENS), seeds=[0] * len(PROMPT_LENGTHS)).tokens)


# gpt_oss has both kinds of layers, and sinks.
EVERY_DRAFTER = [case for case in product(FAMILIES, NAMES) if case[0] == "gpt_oss" or case[1] in KINDS]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), EVERY_DRAFTER)
def test_every_drafter(family, name):
    target = target_of(family)
    engine = Engine(
        target=target,
        drafter=tiny_factory(name, 50)(target=target),
        gamma_policy=Fixed(gamma=4),
        sampling=Sampling(temperature=0),
    )
    made = engine.generate(prompts(), stopping=Stopping(NEW_TOKENS), seeds=[0] * len(PROMPT_LENGTHS))
    assert made.tally is not None and made.tally.passes.sum() > 20
    check(family, made.tokens)
