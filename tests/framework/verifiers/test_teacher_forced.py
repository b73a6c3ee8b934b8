"""Teacher forcing: plain decoding with a draft at every position."""

import torch

from drafters.small_transformer import SmallTransformer
from framework.conformance.tiny_models import tiny_cached_lm, tiny_target
from framework.core.draft import Draft, SamplingScheme, TargetRows
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.target import Target
from framework.verifiers.teacher_forced import TeacherForced

PROMPT, NEW_TOKENS = [1, 2, 3, 1], 24


def watching(target: Target, sampling: Sampling, gamma: int) -> Engine:
    return Engine(
        target=target,
        drafter=SmallTransformer(target=target, model=lambda target: tiny_cached_lm(seed=5)),
        verifier=TeacherForced(),
        gamma_policy=Fixed(gamma=gamma),
        sampling=sampling,
    )


def test_alpha_is_the_overlap_at_every_position_of_the_targets_text() -> None:
    target, sampling, stopping = tiny_target(), Sampling(), Stopping(max_new_tokens=NEW_TOKENS)
    engine = watching(target, sampling, gamma=1)
    generation = engine.generate([PROMPT], stopping=stopping, seeds=[3], detailed=True)
    tally = generation.tally
    assert tally is not None and tally.accepted[:, 1:].sum() == 0
    tokens = torch.tensor([PROMPT + generation.tokens[0]])
    models = (target.model, engine.drafter.model)
    p, q = (model.uncached(tokens)[0, len(PROMPT) : -1].softmax(-1) for model in models)
    overlap = torch.minimum(p, q).sum(-1)
    # Prefill commits the first token; the last one leaves no room for a draft.
    tested = overlap[: int(tally.overlap_tested)]
    assert tally.overlap_tested >= NEW_TOKENS - 2
    assert abs(tally.metrics()["alpha/overlap"] - tested.mean().item()) < 1e-5


def test_tokens_are_those_of_plain_decoding_at_temperature_0() -> None:
    target, sampling, stopping = tiny_target(), Sampling(temperature=0), Stopping(max_new_tokens=NEW_TOKENS)
    engine = watching(target, sampling, gamma=3)
    plain = Autoregressive(target=target, sampling=sampling).generate([PROMPT], stopping=stopping, seeds=[0])
    assert engine.generate([PROMPT], stopping=stopping, seeds=[0]).tokens == plain.tokens


def test_a_token_that_its_own_probs_exclude_and_logits_with_nan_leave_no_probabilities() -> None:
    rule, probs = TeacherForced(), torch.tensor([[[0.5, 0.5, 0.0]]]).expand(2, -1, -1)
    draft = Draft.chain(torch.tensor([[0], [2]]), SamplingScheme.IID, probs=probs)
    target = TargetRows(torch.zeros(2, 2, 3), draft, Sampling())
    assert rule.stop_probs(target, draft).isnan().tolist() == [[False, False], [True, True]]
    broken = TargetRows(torch.tensor([[[0.0, torch.nan, 0.0]] * 2] * 2), draft, Sampling())
    assert rule.next_token_probs(broken, draft, torch.zeros(2, dtype=torch.int64)).isnan().all()
