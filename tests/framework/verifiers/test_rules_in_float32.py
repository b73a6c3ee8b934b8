"""Rules for drawn tokens in float32, the models' dtype: valid distributions, exact up to rounding."""

from itertools import product

import pytest
import torch

from drafters.transformer_tree import TransformerTree
from framework.conformance.enumeration import (
    TREES,
    chains,
    every_draft,
    output_distribution,
    target_distribution,
    total_variation,
)
from framework.conformance.goodness_of_fit import continuation_distribution
from framework.conformance.tiny_models import tiny_model, tiny_target
from framework.conformance.toy_distributions import KINDS, logits_of, random_tables
from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.cached_lm import CachedLM
from framework.verifiers.block import BlockVerification
from framework.verifiers.k_seq import KSeq
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.traversal import Traversal

WIDTH, ROWS = 500, 64
PLAIN = Sampling()
STRUCTURES = [chains(1, 3), chains(3, 2), TREES[2]]
NOISE = [1e-7, 1e-5, 1e-3]  # q nearly equal to p: the residual is a difference of almost equal numbers


def pairs(scheme: SamplingScheme, structures: list[list[int]]) -> list:
    rules = (BlockVerification(), KSeq(), RecursiveRejection(), Traversal())
    found = []
    for rule, parent in product(rules, structures):
        try:
            rule.check(scheme, Shape.CHAIN if parent == chains(1, len(parent)) else Shape.TREE)
        except ValueError:
            continue
        found.append(pytest.param(rule, parent, scheme, id=f"{type(rule).__name__} {scheme.name} {parent}"))
    return found


BOTH = [
    pair for scheme in (SamplingScheme.IID, SamplingScheme.WITHOUT_REPLACEMENT) for pair in pairs(scheme, STRUCTURES)
]


@pytest.mark.parametrize(("rule", "parent", "scheme"), BOTH)
def test_the_output_follows_the_targets_distribution(rule, parent, scheme):
    for kind, noise in [*((kind, 0.0) for kind in KINDS), *(("equal", noise) for noise in NOISE)]:
        random = torch.Generator().manual_seed(len(parent))
        p, q = random_tables(kind, 3, 3, random)
        q = [table * (1 + noise * torch.randn(table.shape, generator=random)) for table in q]
        p, q = [table.float() for table in p], [(table / table.sum(1, keepdim=True)).float() for table in q]
        draft, weights = every_draft(q, parent=parent, scheme=scheme)
        assert draft.probs is not None and draft.probs.dtype == torch.float32
        emitted = output_distribution(rule, logits_of(p), draft, weights, PLAIN)
        # Each of the few sums of three rounds by 1e-7; a relevant bias is a thousand times larger.
        assert total_variation(emitted, target_distribution(logits_of(p), PLAIN)) < 1e-6, (kind, noise)


@pytest.mark.parametrize("noise", [0.0, *NOISE, 1.0])
@pytest.mark.parametrize(("rule", "parent", "scheme"), BOTH)
def test_over_many_tokens_its_distributions_are_distributions(rule, parent, scheme, noise):
    random = torch.Generator().manual_seed(len(parent))
    depth = [0]
    for above in parent:
        depth.append(depth[above + 1] + 1)
    logits = 3 * torch.randn(ROWS, max(depth) + 1, WIDTH, generator=random)  # next tokens depend on depth alone
    q = (logits + noise * torch.randn(logits.shape, generator=random)).softmax(2)
    tokens = torch.empty(ROWS, 0, dtype=torch.int64)
    for node, above in enumerate(parent):
        masses = q[:, depth[above + 1]]
        if scheme is SamplingScheme.WITHOUT_REPLACEMENT:
            siblings = [other for other in range(node) if parent[other] == above]
            masses = masses.scatter(1, tokens[:, siblings], 0.0)
        tokens = torch.cat([tokens, torch.multinomial(masses, 1, generator=random)], 1)
    draft = Draft(
        tokens,
        torch.tensor(parent).expand(ROWS, -1),
        torch.ones_like(tokens, dtype=torch.bool),
        scheme,
        q[:, [depth[above + 1] for above in parent]],
        shape=Shape.CHAIN if parent == chains(1, len(parent)) else Shape.TREE,
    )
    target = TargetRows(logits[:, depth], draft, PLAIN)
    stop_probs = rule.stop_probs(target, draft)
    every_stop = [rule.next_token_probs(target, draft, torch.full((ROWS,), row)) for row in range(draft.num_nodes + 1)]
    for one in (stop_probs, *every_stop):
        assert one.dtype == torch.float32 and (one >= 0).all()
        assert torch.allclose(one.sum(1), torch.ones(ROWS), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [RecursiveRejection(), Traversal()], ids=lambda rule: type(rule).__name__)
def test_a_drafter_that_is_all_but_certain_keeps_the_targets_distribution(rule):
    """The draft model's logits differ by 92 to 103: its second and third siblings have subnormal masses.

    Chi-square, false-alarm rate 1e-9. A total variation of 0.11, as from a rule that overflows, adds 4 n 0.11^2 = 190
    to the statistic of at most 63 degrees of freedom.
    """
    target, prompt, number = tiny_target(vocabulary=4), [1, 2, 3], 4000
    drafter = TransformerTree(
        target, model=lambda target: certain_model(92, 97, 103), branching=[3], children="without_replacement"
    )
    engine = Engine(target=target, drafter=drafter, verifier=rule, gamma_policy=Fixed(gamma=1), sampling=PLAIN)
    drafts: list[Draft] = []
    generation = engine.generate(
        [prompt] * number,
        stopping=Stopping(max_new_tokens=3),
        seeds=list(range(number)),
        on_round=lambda outcome: drafts.append(outcome.draft),
    )
    assert drafts[0].probs is not None and (drafts[0].probs[..., 1:] > 0).all()
    assert (drafts[0].probs[..., 1:] < torch.finfo(torch.float32).tiny).all()
    assert continuation_distribution(target, prompt, 3, PLAIN).fit(generation.tokens).p_value > 1e-9


def certain_model(*gaps: int) -> CachedLM:
    """A model of constant logits, `gaps` below that of the first token."""
    model = tiny_model("gpt2", vocabulary=1 + len(gaps))
    model.transformer.ln_f.weight.zero_()
    model.transformer.ln_f.bias.zero_()[0] = 1.0
    model.get_output_embeddings().weight[:, 0] = torch.tensor([0.0, *gaps]).neg()
    return CachedLM(model, vocabulary_size=1 + len(gaps))
