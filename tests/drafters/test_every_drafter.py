"""Every drafter with a yaml, new ones included, keeps the contract."""

import pytest
from omegaconf import OmegaConf

from drafters.small_transformer import SmallTransformer
from experiments.proof.tiny_drafters import FOLDER, NAMES, tiny_factory, tiny_factory_of
from framework.conformance import check_drafter
from framework.conformance.tiny_models import NARROW, tiny_target
from framework.core.drafter import drafts_on_host, models_of
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.metrics.stopwatch import Stopwatch
from tests.support.drafter_kinds import KINDS, every_drafter

pytestmark = pytest.mark.usefixtures("narrow_buffers")

VOCABULARY = 5
# Built from parts of other drafters here; a slow test covers them.
ALIKE = {"corpus_unigram", "eagle_tree", "online_medusa", "remote"}
# They read the target's states, layers or cache, or have it read a tree; others read its tokens only.
OF_THE_TARGET = ("dart", "eagle", "eagle3", "eagle_tree", "layer_skip", "medusa", "online_medusa", "transformer_tree")


@pytest.mark.parametrize("name", every_drafter(name for name in NAMES if name not in ALIKE))
def test_it_keeps_the_contract(name):
    target = tiny_target(vocabulary=VOCABULARY, **NARROW)
    check_drafter(tiny_factory(name, VOCABULARY), target=target, samples=3000).require()


class Paused(Fixed):
    """Some rounds without a draft, then drafts."""

    def begin(self):
        self._gammas = iter([2, *[0] * 9])

    def next_gamma(self):
        return next(self._gammas, 2)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(("online", "remote"))])
def test_rounds_without_a_draft_run_no_model_of_the_drafter(name):
    """The drafter reads their tokens later; at temperature 0 the tokens show that its drafts are right again."""
    target, stopping = tiny_target(context=128), Stopping(max_new_tokens=30)
    drafter, calls = tiny_factory(name, 50)(target=target), []
    for model in models_of(drafter):
        model.register_forward_pre_hook(lambda *_: calls.append(1))
    engine = Engine(target=target, drafter=drafter, gamma_policy=Paused(gamma=2), sampling=Sampling(temperature=0))
    given = {"stopping": stopping, "seeds": [0, 1], "detailed": False, "stopwatch": Stopwatch(target.device)}
    decoding = engine.begin([[5, 6, 7, 5, 6], [9]], **given)
    engine.round(decoding)
    before = len(calls)
    for _ in range(9):
        engine.round(decoding)
    assert len(calls) == before
    drafted = engine.round(decoding)
    assert drafted.num_nodes == 0 or not models_of(drafter) or len(calls) > before
    assert drafted.num_nodes or drafts_on_host(drafter)


@pytest.mark.slow
@pytest.mark.parametrize("truncation", [{"top_k": 1}, {"top_k": 3}, {"top_p": 0.6}], ids=str)
def test_drawing_from_few_tokens_keeps_it(truncation):
    target = tiny_target(vocabulary=VOCABULARY, **NARROW)
    node = OmegaConf.merge(OmegaConf.load(FOLDER / "small_transformer.yaml"), truncation)
    check_drafter(tiny_factory_of(node, VOCABULARY), target=target, samples=3000).require()


@pytest.mark.parametrize("top_k", [0, True, 2.5])
def test_the_number_of_tokens_to_draw_from_is_checked(top_k):
    with pytest.raises(ValueError, match=r"^top_k is .* allowed: a whole number >= 1, or null"):
        SmallTransformer(None, model=None, top_k=top_k)


@pytest.mark.parametrize("top_p", [0, True, 1.5, "half"])
def test_the_mass_to_draw_from_is_checked(top_p):
    with pytest.raises(ValueError, match=r"^top_p is .* allowed: a number in \(0, 1\], or null"):
        SmallTransformer(None, model=None, top_p=top_p)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KINDS, *sorted(ALIKE)])
def test_it_keeps_the_contract_for_a_larger_vocabulary(name):
    """Deeper drafts, and a vocabulary too large to count continuations."""
    target = tiny_target(vocabulary=50, **NARROW)
    check_drafter(tiny_factory(name, 50), target=target, gamma=5, samples=2000).require()


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_THE_TARGET)
def test_it_keeps_the_contract_for_another_family(name):
    """Learned positions. What is drawn depends on them through the passes only, which are compared without samples."""
    target = tiny_target("gpt2", vocabulary=50, **NARROW)
    check_drafter(tiny_factory(name, 50), target=target, gamma=5, samples=3000).require()
