"""The matrix of model architectures: each served exactly or refused; and docs/models.md, which lists them."""

from dataclasses import replace

import pytest
import torch
from transformers.utils import logging

from experiments.models import PAGE, chosen, line
from experiments.proof.architectures import TABLE, Architecture
from experiments.proof.model_matrix import COMPILED, TRIALS, Reference, Result, examine, run, served

COMPILED_NAMES = ("gemma3_text", "gpt_oss", "t5")
FEW = tuple(trial for trial in TRIALS if trial.name in ("plain", "chain", "tree"))


@pytest.fixture(autouse=True)
def quiet():
    """transformers warns of sizes this small."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)


def named(name: str) -> Architecture:
    return next(architecture for architecture in TABLE if architecture.name == name)


def lines_of_the_page() -> list[str]:
    return [each for each in PAGE.read_text(encoding="utf-8").splitlines() if each.startswith("| ")][2:]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", TABLE, ids=lambda architecture: architecture.name)
def test_an_architecture_decodes_what_transformers_generates_or_is_refused(architecture):
    result = examine(architecture)
    assert not result.wrong, result.wrong
    if result.outcome == "served":
        assert 0 < result.accepted < result.tested, "drafts that are all right, or all wrong, show nothing"
        assert result.distinct > 3, "texts of one token show nothing"
    assert line(result) in lines_of_the_page(), "python -m experiments.models writes the page again"


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED_NAMES)
def test_a_compiled_chain_decodes_what_transformers_generates(name):
    torch._dynamo.reset()
    result = examine(named(name), COMPILED, compiled=True)
    assert result.outcome == "served", (result.why_unsupported, result.wrong)
    assert not result.refused and 0 < result.accepted < result.tested


def test_the_page_lists_every_configuration_in_the_order_of_the_table():
    listed = [tuple(cell.strip() for cell in each.split("|")[1:3]) for each in lines_of_the_page()]
    assert listed == [
        (each.family, f"`{each.model_type}`" + (f", {each.variant}" if each.variant else "")) for each in TABLE
    ]


def test_the_table_is_as_wide_as_it_says():
    names = [architecture.name for architecture in TABLE]
    assert len(names) == len(set(names)) >= 60
    assert len({architecture.family for architecture in TABLE}) >= 45


def test_model_types_that_the_table_lacks_are_refused():
    with pytest.raises(ValueError, match="only holds 'no_such'; allowed: afmoe, "):
        chosen(["llama", "no_such"])


def outcome(architecture: Architecture, served_one: Architecture, change=lambda model: None, trials=FEW) -> Result:
    """Of a model that is served otherwise than transformers runs it."""
    result = Result(architecture)
    target = served(served_one, result)
    assert target is not None, result.why_unsupported
    change(target.model.model)
    reference = Reference(architecture)
    for trial in trials:
        run(trial, target, reference, result, compiled=False)
    return result


@pytest.mark.slow
def test_without_a_fault_nothing_is_seen():
    llama = named("llama")
    assert outcome(llama, llama).outcome == "served"


@pytest.mark.slow
def test_a_dropped_window_is_seen():
    without = named("mistral, no window")
    result = outcome(named("mistral, window 12"), without)
    assert set(result.wrong) == {trial.name for trial in FEW}


def test_a_window_of_one_token_less_is_seen():
    """The reference does not see its first tokens once a text has 79."""
    without = named("mistral, no window")
    nearly = replace(without, settings={"sliding_window": 78})
    long = tuple(trial for trial in TRIALS if trial.name == "chain to the context")
    assert outcome(nearly, without, trials=long).outcome == "served wrong"


@pytest.mark.slow
def test_dropped_sinks_are_seen():
    def drop(model):
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.fill_(-1e4)

    sinks = named("gpt_oss, sinks alone")
    assert outcome(sinks, sinks, drop).outcome == "served wrong"


@pytest.mark.slow
def test_dropped_soft_capping_is_seen():
    wide = replace(named("gemma2"), settings={"query_pre_attn_scalar": 8, "sliding_window": 80,
                                              "attn_logit_softcapping": 2.0})  # fmt: skip
    without = replace(wide, settings={**wide.settings, "attn_logit_softcapping": None})
    assert outcome(wide, without).outcome == "served wrong"


@pytest.mark.slow
@pytest.mark.parametrize("trial", ["plain", "chain", "tree"])
def test_a_mask_that_hides_a_token_is_seen(trial, monkeypatch):
    llama, result = named("llama"), Result(named("llama"))
    target = served(llama, result)
    slots = target.model._slots  # the target's alone: the probe would refuse a drafter with such a mask
    for name in ("causal", "of_tree"):
        monkeypatch.setattr(slots, name, hiding_the_second_token(getattr(slots, name)))
    run(next(each for each in TRIALS if each.name == trial), target, Reference(llama), result, compiled=False)
    assert set(result.wrong) == {trial}


def hiding_the_second_token(mask):
    return lambda *given: mask(*given).index_fill(2, torch.tensor([1]), False)


@pytest.mark.slow
def test_nodes_of_a_tree_that_see_each_other_are_seen(monkeypatch):
    llama, result = named("llama"), Result(named("llama"))
    target = served(llama, result)
    slots = target.model._slots
    right = slots.of_tree
    monkeypatch.setattr(slots, "of_tree", lambda start, sees, *given: right(start, torch.ones_like(sees), *given))
    run(next(each for each in TRIALS if each.name == "tree"), target, Reference(llama), result, compiled=False)
    assert result.outcome == "served wrong"
