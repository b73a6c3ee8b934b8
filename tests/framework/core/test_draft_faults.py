"""Clear errors for broken contracts: seeds, drafts, and a verifier's probabilities."""

from dataclasses import replace

import pytest
import torch

from framework.conformance.draft_rules import require_structure
from framework.conformance.enumeration import every_draft, output_distribution, target_distribution, total_variation
from framework.conformance.report import Breach
from framework.conformance.test_doubles import only_reading
from framework.conformance.tiny_models import tiny_target
from framework.conformance.toy_distributions import logits_of
from framework.core.draft import Draft, SamplingScheme, Shape
from framework.core.draft_faults import probs_fault, structure_fault
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.core.tree import Tree
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.target import Target
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.traversal import Traversal
from tests.drafters.test_transformer_tree import drafter_of

PLAIN, FIVE = Sampling(), Stopping(max_new_tokens=5)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(vocabulary=5)


class Uniform:
    """Drafts token 1 from a uniform distribution, gamma times; `change` edits the draft."""

    scheme, shape = SamplingScheme.IID, Shape.CHAIN

    def __init__(self, change=lambda draft, sequences: draft):
        self.change = change

    def num_uniforms(self, gamma):
        return 0

    def begin(self, sequences, prefill, sampling):
        pass

    def propose(self, sequences, gamma, uniforms):
        tokens = torch.ones(sequences.num_rows, gamma, dtype=torch.int64)
        draft = Draft.chain(tokens, self.scheme, probs=torch.full((*tokens.shape, 5), 0.2))
        return self.change(draft, sequences)

    def observe(self, sequences, outcome):
        pass


def decode(target, drafter, verifier=None, *, detailed=False, seeds=(0, 1)):
    engine = Engine(target=target, drafter=drafter, verifier=verifier, gamma_policy=Fixed(gamma=2), sampling=PLAIN)
    return engine.generate([[1, 2]] * 2, stopping=FIVE, seeds=list(seeds), detailed=detailed)


# Seeds


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([0], "there are 1 seeds for 2 prompts"),
        ([0, 1, 2], "there are 3 seeds for 2 prompts"),
        ([0, 1.0], r"seeds is 1\.0; allowed: a whole number from 0"),
        ([True, 1], "seeds is True"),
        ([0, -1], "seeds is -1"),
        ([0, 2**128], "allowed: a whole number from 0 to 340282366920938463463374607431768211455"),
    ],
)
def test_seeds_are_one_whole_number_for_each_prompt(target, seeds, message):
    with pytest.raises(ValueError, match=message):
        decode(target, Uniform(), seeds=seeds)
    with pytest.raises(ValueError, match=message):
        Autoregressive(target=target, sampling=PLAIN).generate([[1, 2]] * 2, stopping=FIVE, seeds=seeds)


# A verifier's results


class Faulty(SpeculativeSampling):
    """Speculative sampling with changed probabilities where a draft has nodes."""

    def __init__(self, *, of_stops=lambda probs: probs, of_next=lambda probs: probs):
        self.of_stops, self.of_next = of_stops, of_next

    def stop_probs(self, target, draft):
        probs = super().stop_probs(target, draft)
        return self.of_stops(probs) if draft.num_nodes else probs

    def next_token_probs(self, target, draft, stop):
        probs = super().next_token_probs(target, draft, stop)
        return self.of_next(probs) if draft.num_nodes else probs


def with_negative(probs):
    """Probabilities of the same sum with a negative first entry."""
    return torch.cat([probs[:, :1] - 1, probs[:, 1:-1], probs[:, -1:] + 1], 1)


@pytest.mark.parametrize("place", ["of_stops", "of_next"])
@pytest.mark.parametrize("change", [with_negative, torch.zeros_like], ids=["negative", "all zero"])
def test_probabilities_that_cannot_be_drawn_from_are_an_error(target, place, change):
    with pytest.raises(FloatingPointError, match=r"negative or all zero.*`check verifier="):
        decode(target, Uniform(), Faulty(**{place: change}))


@pytest.mark.parametrize(("place", "name"), [("of_stops", "stop_probs"), ("of_next", "next_token_probs")])
def test_probabilities_of_another_shape_are_an_error(target, place, name):
    with pytest.raises(ValueError, match=rf"the verifier's {name} is \[2, \d\]; expected \[2, \d\]"):
        decode(target, Uniform(), Faulty(**{place: lambda probs: probs[:, :-1]}))


# Drafts


def broken(**fields):
    return lambda draft, sequences: replace(draft, **{name: change(draft) for name, change in fields.items()})


def written(attribute):
    def change(draft, sequences):
        if attribute == "lengths":
            sequences.lengths[0] -= 1
        else:
            getattr(sequences, attribute)[0].append(3)
        return draft

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (broken(parent=lambda draft: draft.parent.flip(1)), "a parent comes before its children"),
        (broken(valid=lambda draft: torch.tensor([[False, True]]).expand(2, 2)), "valid whose parent is not"),
        (broken(probs=lambda draft: draft.probs * 0.9), "do not sum to 1"),
        (written("lengths"), "propose changed the sequences"),
        (written("texts"), "propose changed the sequences"),
    ],
    ids=["parents", "valid", "probs", "lengths", "texts"],
)
def test_a_draft_that_breaks_the_contract_is_an_error_in_detailed_mode(target, change, message):
    with pytest.raises(ValueError, match=rf"drafter Uniform: .*{message}.*`check drafter="):
        decode(target, Uniform(change), detailed=True)
    decode(target, Uniform(), detailed=True)


@pytest.mark.parametrize("attribute", ["lengths", "texts", "longest", "prompt_lengths"])
def test_a_witness_sees_that_sequences_were_written_to(attribute):
    sequences = Sequences.from_prompts([[1, 2, 3], [4]], width=8, device=CPU)
    with pytest.raises(Breach, match="changed the sequences"), only_reading(sequences, "observe"):
        if attribute == "texts":
            sequences.texts[1].append(2)
        else:
            setattr(sequences, attribute, getattr(sequences, attribute) + 1)


def test_a_tree_that_the_host_knows_has_parents_before_children():
    with pytest.raises(ValueError, match=r"parents are \[1, -1\]; a parent comes before its children"):
        Tree.shared([1, -1], 2, CPU)


# Siblings without replacement


def younger_only(elders_offered: bool) -> tuple[Draft, torch.Tensor]:
    """All drafts of two siblings, the second always offered."""
    q = [torch.tensor([[0.9, 0.1]], dtype=torch.float64)]
    draft, weights = every_draft(q, parent=[-1, -1], scheme=SamplingScheme.WITHOUT_REPLACEMENT)
    return replace(draft, valid=torch.tensor([[elders_offered, True]]).expand_as(draft.valid)), weights


@pytest.mark.parametrize("rule", [RecursiveRejection(), Traversal()], ids=lambda rule: type(rule).__name__)
def test_a_younger_sibling_is_not_offered_without_its_elders(rule):
    """Drawn without the elder's token but verified as drawn from q: biased, and detected."""
    p = [torch.tensor([[0.9, 0.1]], dtype=torch.float64), torch.full((2, 2), 0.5, dtype=torch.float64)]
    for elders_offered in (True, False):
        draft, weights = younger_only(elders_offered)
        emitted = output_distribution(rule, logits_of(p), draft, weights, PLAIN)
        variation = total_variation(emitted, target_distribution(logits_of(p), PLAIN))
        assert variation < 1e-12 if elders_offered else variation > 0.5
        fault = structure_fault(draft)
        assert (fault is None) == elders_offered
    assert fault is not None and "WITHOUT_REPLACEMENT is valid and an elder sibling is not" in fault
    with pytest.raises(Breach, match="elder sibling is not"):
        require_structure(draft, shape=draft.shape, gamma=1)
    assert structure_fault(replace(draft, scheme=SamplingScheme.IID)) is None


@pytest.mark.parametrize("children", ["iid", "without_replacement", "likeliest"])
def test_neither_the_tree_drafter_nor_the_loop_leaves_out_an_elder_sibling(target, children):
    """Few tokens with mass, ends of text, and exhausted budgets."""
    seen: list[Draft] = []
    engine = Engine(
        target=target,
        drafter=drafter_of(target, [3, 2, 1], children),
        gamma_policy=Fixed(gamma=3),
        sampling=Sampling(top_k=2),
    )
    engine.generate(
        [[1, 2, 3], [4], [2, 2]] * 5,
        stopping=Stopping(max_new_tokens=9, eos_ids=(0,)),
        seeds=list(range(15)),
        on_round=lambda outcome: seen.append(outcome.draft),
    )
    assert any(not draft.valid.all() for draft in seen)
    for draft in seen:
        assert structure_fault(draft) is None and probs_fault(draft) is None
