"""Drafters that learn while drafting: their examples, their progress, and the target's distribution."""

from dataclasses import replace

import pytest
import torch

from drafters.medusa import Medusa
from drafters.online import Online
from drafters.prompt_lookup import PromptLookup
from drafters.small_transformer import SmallTransformer
from experiments.measurement.bench import measure
from experiments.measurement.plan import Candidate, Plan
from experiments.measurement.resource_cache import ResourceCache
from experiments.proof.tiny_drafters import save_tiny_heads
from experiments.tracking.tracker import Point
from framework.conformance.goodness_of_fit import continuation_distribution
from framework.conformance.tiny_models import tiny_model, tiny_target
from framework.core.drafter import preserve_learned_state
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.metrics.stopwatch import Stopwatch
from framework.models.cached_lm import CachedLM
from framework.prompts.prompt_set import Prompt, PromptSet
from framework.training.distillation import DIVERGENCES

PROMPTS = [[5, 6, 7, 8, 5, 6], [9], [1, 2, 1, 2, 1, 2, 1]]
GREEDY = Sampling(temperature=0)


def small(target):
    # frozen, like loaded models
    model = tiny_model(vocabulary=target.vocabulary_size, seed=3)
    return SmallTransformer(target, model=lambda _: CachedLM(model, vocabulary_size=target.vocabulary_size))


@pytest.fixture
def heads(tmp_path):
    return lambda target: Medusa(target, path=str(save_tiny_heads(tmp_path, target)), form="tree", nodes=8)


def online(target, drafter, kind=Online, **options):
    given = {"loss": "forward_kl", "update_interval": 16, "steps": 4, "batch": 4, "buffer": 32, "window": 64}
    return kind(target, drafter=drafter, **(given | {"learning_rate": 1e-2, "seed": 0} | options))


def engine(target, drafter, sampling=GREEDY, *, compiled=False):
    return Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=sampling, compiled=compiled)


def generate(decoder, max_new_tokens=12, **others):
    stopping = Stopping(max_new_tokens=max_new_tokens)
    return decoder.generate(PROMPTS, stopping=stopping, seeds=list(range(len(PROMPTS))), **others)


@pytest.mark.parametrize("kind", ["small", "heads"])
@pytest.mark.parametrize("window", [64, 5])
def test_a_example_holds_the_distributions_that_its_very_tokens_came_from(kind, window, heads):
    target = tiny_target()
    drafter = online(target, small if kind == "small" else heads, update_interval=10**6, window=window)
    tokens = generate(engine(target, drafter, Sampling())).tokens
    examples = drafter.state_dict()["examples"]
    assert len(examples) == len(PROMPTS)
    for prompt, new, example in zip(PROMPTS, tokens, examples, strict=True):
        text, count = prompt + new, len(example.p_logits)
        assert count == min(len(new), window - 1) and example.tokens.tolist() == text[-window:]
        logits = target.uncached(text)
        assert torch.allclose(example.p_logits, logits[-count - 1 : -1], atol=1e-4)
        assert not torch.allclose(example.p_logits, logits[-count:], atol=1e-2)  # logits one position late differ
        if kind == "heads":
            again = target.model.model.get_output_embeddings()(example.hidden)
            assert torch.allclose(again, example.p_logits, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("loss", DIVERGENCES)
@pytest.mark.parametrize("kind", ["small", "heads"])
def test_it_comes_closer_to_the_target_on_what_it_has_seen(kind, loss, heads):
    target, make = tiny_target(), small if kind == "small" else heads
    taught, untaught = make(target), make(target)
    drafter = online(target, lambda target: taught, loss=loss)
    for _ in range(8):
        generate(engine(target, drafter, Sampling()))
    examples = drafter.state_dict()["examples"]

    def overlap(inner):
        with torch.no_grad():
            p, q = (logits.softmax(1) for logits in inner.logits_of(examples))
        return torch.minimum(p, q).sum(1).mean().item()

    assert overlap(taught) > overlap(untaught) + 0.02


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["small", "heads"])
def test_greedy_tokens_are_plain_decodings_while_it_learns(kind, heads):
    target = tiny_target()
    drafter = online(target, small if kind == "small" else heads)
    expected = generate(Autoregressive(target=target, sampling=GREEDY)).tokens
    accepted, stopwatch = [], Stopwatch(target.device)
    for _ in range(8):
        generation = generate(engine(target, drafter), stopwatch=stopwatch)
        assert generation.tokens == expected
        accepted.append(generation.tally.metrics()["alpha/empirical"])
    assert accepted[-1] > accepted[0]  # it learned
    assert stopwatch.seconds()["learn"] > 0


class Late(Online):
    """A fault: learns between drafting and verifying and reports another q than it sampled."""

    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        super().learn(sequences)
        return replace(draft, probs=super().propose(sequences, gamma, uniforms).probs)

    def learn(self, sequences):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Online, Late])
def test_the_output_follows_the_targets_distribution_while_it_learns_within_generations(kind):
    """Chi-square over all continuations of 5 tokens; false-alarm rate 1e-7, fixed seeds."""
    target, sampling, prompt = tiny_target(vocabulary=3), Sampling(), [1, 2, 1]
    drafter = online(target, small, kind=kind, update_interval=1, learning_rate=0.1)
    decoder, tokens, untaught = engine(target, drafter, sampling), [], drafter.state_dict()
    for first in range(0, 4000, 200):
        drafter.load_state_dict(untaught)  # learning starts over
        seeds = list(range(first, first + 200))
        tokens += decoder.generate([prompt] * 200, stopping=Stopping(max_new_tokens=5), seeds=seeds).tokens
    fit = continuation_distribution(target, prompt, 5, sampling).fit(tokens)
    assert (fit.p_value > 1e-7) == (kind is Online), f"total variation {fit.total_variation:.3f}"


def test_after_an_update_within_a_generation_it_drafts_like_one_that_begins_there():
    """No keys or values of old weights stay cached: a clone's drafts are all accepted."""
    target = tiny_target()
    clone = tiny_model()

    def factory(target):
        return SmallTransformer(target, model=lambda _: CachedLM(clone, vocabulary_size=target.vocabulary_size))

    drafter = online(target, factory, update_interval=1, steps=1, learning_rate=1e-9)  # negligible updates
    tally = generate(engine(target, drafter)).tally
    assert sum(tally.accepted_by_position) == sum(tally.tested_by_position) > 10


@pytest.mark.slow
def test_what_was_learnt_is_undone():
    target = tiny_target()
    drafter = online(target, small)
    runs = []
    for _ in range(2):
        with preserve_learned_state(drafter):
            runs.append([generate(engine(target, drafter)).tally.accepted.tolist() for _ in range(4)])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][-1]


def test_what_cannot_learn_is_refused_in_one_line(heads):
    target = tiny_target()
    with pytest.raises(ValueError, match=r"engine.compile is true, and Online learns .* allowed: false"):
        engine(target, online(target, small), compiled=True)
    lookup = {"max_ngram": 3, "min_ngram": 1, "match": "last", "from_source": True}
    with pytest.raises(ValueError, match=r"^drafter is 'PromptLookup', .* allowed: drafters with `logits_of`"):
        online(target, lambda target: PromptLookup(target=target, **lookup))
    with pytest.raises(ValueError, match=r"weights in torch.bfloat16, .* allowed: float32, float64"):
        online(tiny_target(dtype=torch.bfloat16), heads)
    short = CachedLM(tiny_model("gpt2", context=20), vocabulary_size=target.vocabulary_size)
    with pytest.raises(ValueError, match=r"^window is 64, .* texts of at most 20 tokens; allowed: "):
        online(target, lambda target: SmallTransformer(target, model=lambda _: short))
    with pytest.raises(ValueError, match=r"target without an encoder"):
        online(tiny_target("t5"), small)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("loss", "cross_entropy"),
        ("update_interval", 0),
        ("steps", 1.5),
        ("batch", True),
        ("window", 1),
        ("learning_rate", 0),
    ],
)
def test_options_are_checked(option, value):
    with pytest.raises(ValueError, match=rf"^{option} is .*; allowed: "):
        online(tiny_target(), small, **{option: value})


@pytest.mark.slow
def test_measuring_teaches_it_every_prompt_once_and_leaves_it_as_it_was(tmp_path):
    """Counting, timing and warm-up runs of a prompt teach no more than decoding it once."""
    target = tiny_target()
    prompts = [Prompt(name=str(i), category="", tokens=(5, 6, 7, i)) for i in range(6)]

    def measured(repeats):
        drafter = online(target, small)
        point = Point(folder=tmp_path, name=str(repeats), study="", settings={}, config={})
        candidate = Candidate(point, engine(target, drafter))
        plan = Plan(
            prompt_set=PromptSet(prompts=prompts, num_truncated=0, num_skipped=0, chat=False),
            batch_size=1,
            stopping=Stopping(max_new_tokens=12),
            repeats=repeats,
            seed=0,
            hugging_face=False,
        )
        before = drafter.state_dict()["module"]
        (record,) = measure([candidate], target, GREEDY, plan, ResourceCache())
        after = drafter.state_dict()["module"]
        assert all(torch.equal(after[name], before[name]) for name in before)
        assert record.stages["learn"] > 0
        return [(row["accepted"], row["tested"]) for row in record.prompts]

    drafter = online(target, small)
    once = []
    for row, prompt in enumerate(prompts):
        decoder = engine(target, drafter)
        stopping = Stopping(max_new_tokens=12)
        tally = decoder.generate([list(prompt.tokens)], stopping=stopping, seeds=[row]).tally
        once.append((sum(tally.accepted_by_position), sum(tally.tested_by_position)))
    assert measured(1) == measured(2) == once
