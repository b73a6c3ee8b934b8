"""How far rules lead away from p, against what is known of them."""

import pytest
import torch

from experiments.measurement.divergence import emitted_distribution
from framework.core.draft import Draft, TargetRows
from framework.core.sampling import Sampling
from framework.verifiers.lenience import Lenience
from framework.verifiers.speculative_sampling import SpeculativeSampling

CPU = torch.device("cpu")
P, Q = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.1, 0.7])


def emitted(verifier, p=P, q=Q, token=0, temperature=1.0):
    logits = p.log()
    target = TargetRows(logits.expand(1, 1, -1), Draft.empty(1, CPU), Sampling(temperature=temperature))
    return emitted_distribution(verifier, target, logits, q, token)


@pytest.mark.parametrize("q", [Q, None])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_an_exact_rule_emits_p(q, temperature):
    p = Sampling(temperature=temperature).probs(P.log()[None])[0].double()
    for verifier in (SpeculativeSampling(), Lenience(lenience=1.0)):
        torch.testing.assert_close(emitted(verifier, q=q, temperature=temperature), p, atol=1e-6, rtol=0)


def test_lenience_emits_what_its_definition_says():
    lenience = 0.5
    kept = torch.minimum(P / lenience, Q).double()
    residual = (P - lenience * Q).clamp(min=0).double()
    expected = kept + (1 - kept.sum()) * residual / residual.sum()
    torch.testing.assert_close(emitted(Lenience(lenience=lenience)), expected, atol=1e-6, rtol=0)
    assert (expected - P).abs().sum() > 0.1  # so that something is shown


def test_a_chosen_token_that_is_near_the_best_comes_out_at_temperature_0():
    probs = emitted(Lenience(lenience=0.3), q=None, token=1, temperature=0.0)
    assert probs.tolist() == [0.0, 1.0, 0.0]
