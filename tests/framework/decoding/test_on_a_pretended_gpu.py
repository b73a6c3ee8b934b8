"""Decoding on a pretended GPU: the CPU's tokens, no operation on two devices, few waits and copies from the host."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from drafters.small_transformer import SmallTransformer
from experiments.config.builders import build, rules, yamls
from experiments.config.resolvers import register_resolvers
from experiments.measurement import batch_runner
from experiments.measurement.bench import measure
from experiments.measurement.plan import Candidate, Plan
from experiments.measurement.resource_cache import ResourceCache
from experiments.measurement.timing import timed
from experiments.proof.tiny_drafters import NAMES, drafter_node, tiny_factory, tiny_factory_of
from experiments.tracking.tracker import Point
from framework.conformance.tiny_models import VOCABULARY, tiny_model, tiny_tokenizer
from framework.core.draft import Readout
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.device_round import DeviceRound
from framework.decoding.engine import Engine
from framework.decoding.refill import Queue
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.metrics.stopwatch import Stopwatch
from framework.models.cached_lm import CachedLM
from framework.models.pretrained import fingerprint
from framework.models.target import Target
from framework.prompts.prompt_set import Prompt, PromptSet
from framework.verifiers.speculative_sampling import SpeculativeSampling
from tests.support.drafter_kinds import every_drafter
from tests.support.pretended_gpu import NAME, MixedDevicesError, pretended_gpu

register_resolvers()  # one yaml refers to an embedded head
PROMPTS = [[5, 6, 7, 8, 5, 6], [9], [1, 2, 1, 2, 1, 2, 1]]
SEEDS = [0, 1, 2]
SAMPLINGS = [Sampling(temperature=0), Sampling(temperature=0.8, top_p=0.9, top_k=20)]
GAMMA = 3
FIXED = Fixed(gamma=GAMMA)
STOPPING = Stopping(max_new_tokens=8, eos_ids=(3,))


@dataclass(frozen=True)
class InARound:
    """Most waits for the device, and most copies from the host to the device, in a round."""

    waits: int
    uploads: int


SUMMARY_ALONE = InARound(waits=1, uploads=0)  # the host waits for the round's summary
DRAFTERS = dict.fromkeys(NAMES, SUMMARY_ALONE) | {
    # The host finds the draft, and copies its tokens.
    "input_copy": InARound(waits=1, uploads=1),
    "prompt_lookup": InARound(waits=1, uploads=1),
    "suffix_lookup": InARound(waits=1, uploads=1),
    # The host draws the draft, and copies its tokens, parents, offered nodes and probabilities.
    "ngram": InARound(waits=1, uploads=4),
    # Another process draws the draft. The host copies the same, and waits for the last outcome, which it sends.
    "remote": InARound(waits=2, uploads=4),
    # The host ends the inner rounds, at most gamma + 1: it waits for the active rows, and for each summary. It copies
    # the limits of the rows, and the uniforms.
    "hierarchical": InARound(waits=1 + (GAMMA + 1) + 1, uploads=4),
    # The host tokenises the text again, and copies it with its lengths, and the uniforms. It waits for the number of
    # tokens to read, and for the drafted tokens.
    "other_tokenizer": InARound(waits=3, uploads=5),
    # The same, and the tokens that the host finds in the drafted text.
    "string_match": InARound(waits=3, uploads=5),
    # The host waits for the outcome, which is the reward, and for the number of tokens that other drafters' rounds left
    # to read; prompt lookup copies its tokens.
    "online_bandit": InARound(waits=3, uploads=1),
}


@dataclass(frozen=True)
class Round:
    """A round on the pretended GPU: the lines that wait, the lines that copy to the device, and its record."""

    waits: list[str]
    uploads: list[str]
    readout: Readout


@pytest.fixture(scope="module")
def targets():
    return both_targets("llama")


def both_targets(family):
    """The same target on the CPU and on the pretended GPU."""
    with pretended_gpu():
        on_gpu = target_on(NAME, family)
    return SimpleNamespace(on_cpu=target_on("cpu", family), on_gpu=on_gpu)


def target_on(device, family):
    model = CachedLM(tiny_model(family).to(device), vocabulary_size=VOCABULARY)
    return Target(model, tiny_tokenizer(VOCABULARY), VOCABULARY, fingerprint(model.model))


def rounds_on_both(targets, make_drafter, *, verifier=None, policy=FIXED):
    """Check that both devices decode the same tokens; returns the GPU's rounds that the budget does not shorten."""

    def engines_on(target):
        parts = {"drafter": make_drafter(target=target), "verifier": verifier, "gamma_policy": policy}
        return [Engine(target=target, sampling=each, **parts) for each in SAMPLINGS]

    expected = [each.generate(PROMPTS, stopping=STOPPING, seeds=SEEDS).tokens for each in engines_on(targets.on_cpu)]
    with pretended_gpu() as gpu:
        decoded = [decode(each, gpu) for each in engines_on(targets.on_gpu)]
    assert [tokens for tokens, _ in decoded] == expected
    return [each for _, rounds in decoded for each in rounds]


@torch.no_grad()
def decode(engine, gpu):
    """New tokens, and the rounds that the budget does not shorten."""
    stopwatch, rounds = Stopwatch(engine.target.device), []
    decoding = engine.begin(PROMPTS, stopping=STOPPING, seeds=SEEDS, detailed=False, stopwatch=stopwatch)
    while left := decoding.finisher.most_remaining:
        gpu.waits.clear()
        gpu.uploads.clear()
        readout = engine.round(decoding)
        if left > engine.gamma_policy.max_gamma:
            rounds.append(Round([*gpu.waits], [*gpu.uploads], readout))
    return decoding.finisher.new_tokens, rounds


def most(rounds):
    return InARound(*(max(len(getattr(each, kind)) for each in rounds) for kind in ("waits", "uploads")))


@pytest.mark.parametrize("name", every_drafter())
def test_every_drafter(name, targets):
    rounds = rounds_on_both(targets, tiny_factory(name, VOCABULARY))
    assert most(rounds) == DRAFTERS[name], rounds


def test_an_ngram_model_of_the_likeliest_tokens(targets):
    node = OmegaConf.merge(drafter_node("ngram"), {"top_k": 5})
    rounds = rounds_on_both(targets, tiny_factory_of(node, VOCABULARY))
    assert most(rounds) == InARound(waits=1, uploads=5), rounds  # the tokens that have the probabilities, too


@pytest.mark.parametrize("name", rules())
def test_every_verifier(name, targets):
    verifier = rules()[name]
    rounds = rounds_on_both(targets, fitting(verifier, targets.on_cpu), verifier=verifier)
    assert most(rounds) == SUMMARY_ALONE, rounds


def fitting(verifier, target):
    """Factory of the first of these drafters whose drafts a rule can verify."""
    for name in ("uniform_random", "medusa", "transformer_tree"):
        factory = tiny_factory(name, VOCABULARY)
        drafter = factory(target=target)
        try:
            verifier.check(drafter.scheme, drafter.shape)
        except ValueError:
            continue
        return factory
    raise AssertionError("there is no drafter for this rule")


STOPPING_POLICIES = [name for name, node in yamls("gamma").items() if build(node).should_continue is not None]


@pytest.mark.parametrize("name", STOPPING_POLICIES)
def test_every_policy_that_ends_drafts(name, targets):
    policy = build(OmegaConf.merge(yamls("gamma")[name], {"max_gamma": GAMMA}))
    rounds = rounds_on_both(targets, tiny_factory("layer_skip", VOCABULARY), policy=policy)
    for each in rounds:
        num_decisions = min(each.readout.num_nodes, GAMMA - 1)  # after every node but the last
        assert len(each.waits) == num_decisions + 1, each
    assert most(rounds).uploads == (name == "draft_exit"), rounds  # the thresholds of the rows, computed on the host


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small_transformer", "medusa", "eagle3", "prompt_lookup", "hierarchical"])
def test_rows_that_take_other_prompts(name, targets):
    def refilled(target):
        drafter = tiny_factory(name, VOCABULARY)(target=target)
        engine = Engine(target=target, drafter=drafter, gamma_policy=FIXED, sampling=SAMPLINGS[1])
        prompts, queue = [*PROMPTS, *PROMPTS], Queue(2 * len(PROMPTS), 2)
        return engine.generate(prompts, stopping=STOPPING, seeds=list(range(len(prompts))), queue=queue).tokens

    expected = refilled(targets.on_cpu)
    with pretended_gpu():
        assert refilled(targets.on_gpu) == expected


@pytest.mark.slow
def test_an_encoder_decoder_model():
    targets = both_targets("t5")

    def make(target):
        model = CachedLM(tiny_model("t5", seed=1).to(target.device), vocabulary_size=VOCABULARY)
        return SmallTransformer(target, model=lambda _: model)

    rounds = rounds_on_both(targets, make)
    assert most(rounds) == SUMMARY_ALONE, rounds


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["T=0", "T=0.8"])
def test_plain_decoding(sampling, targets):
    expected = Autoregressive(target=targets.on_cpu, sampling=sampling).generate(
        PROMPTS, stopping=STOPPING, seeds=SEEDS
    )
    on_gpu, waits, uploads = Autoregressive(target=targets.on_gpu, sampling=sampling), [], []
    for max_new_tokens in (1, 8):
        stopping, stopwatch = Stopping(max_new_tokens, eos_ids=STOPPING.eos_ids), Stopwatch(targets.on_gpu.device)
        with pretended_gpu() as gpu:
            found = on_gpu.generate(PROMPTS, stopping=stopping, seeds=SEEDS, stopwatch=stopwatch)
        waits.append(len(gpu.waits))
        uploads.append(len(gpu.uploads))
        stages = stopwatch.seconds()
    assert found == expected
    assert stages.keys() == {"prefill", "target", "commit"} and min(stages.values()) > 0
    assert waits[1] - waits[0] == 7, gpu.waits  # tokens after the first one
    assert uploads[1] <= uploads[0], gpu.uploads


@pytest.mark.slow
def test_a_measurement_times_stages_in_a_run_of_their_own(targets, tmp_path, monkeypatch):
    runs = []

    def noted(*arguments, **options):
        runs.append(timed(*arguments, **options))
        return runs[-1]

    monkeypatch.setattr(batch_runner, "timed", noted)
    target, prompts = targets.on_gpu, [Prompt(name="", category="", tokens=tuple(tokens)) for tokens in PROMPTS]
    prompt_set = PromptSet(prompts=prompts, num_truncated=0, num_skipped=0, chat=False)
    plan = Plan(prompt_set, batch_size=len(prompts), stopping=STOPPING, repeats=2, seed=0, hugging_face=False)
    with pretended_gpu():
        drafter = tiny_factory("small_transformer", VOCABULARY)(target=target)
        engine = Engine(target=target, drafter=drafter, gamma_policy=FIXED, sampling=SAMPLINGS[0])
        candidate = Candidate(Point(folder=tmp_path, name="own", study="", settings={}, config={}), engine)
        (record,) = measure([candidate], target, SAMPLINGS[0], plan, ResourceCache())
    assert {"prefill", "begin", "draft", "target", "verify"} <= record.stages.keys() and min(record.stages.values()) > 0
    # Two runs warm up, two are for the stages, and two of each decoder are timed: here, the engine's alone.
    assert ["verify" in run.stages for run in runs] == [False, False, False, True, False, False, False, False]
    assert record.metrics["tokens_equal_baseline"] and record.metrics["c"] > 0


def plant(monkeypatch, fault):
    """Add a fault to the acceptance rule of drawn chains; it gets the rule's probabilities and returns them."""
    stop_probs = SpeculativeSampling.stop_probs
    monkeypatch.setattr(SpeculativeSampling, "stop_probs", lambda *given: fault(stop_probs(*given)))


def test_a_constant_on_the_cpu_is_seen(targets, monkeypatch):
    plant(monkeypatch, lambda probs: probs + torch.zeros(probs.shape[1]))
    with pytest.raises(MixedDevicesError, match=r"test_on_a_pretended_gpu\.py:\d+: aten\.add\.Tensor takes tensors of"):
        rounds_on_both(targets, tiny_factory("uniform_random", VOCABULARY))


def test_a_number_for_the_host_is_seen(targets, monkeypatch):
    plant(monkeypatch, lambda probs: probs * min(1.0, probs.sum().item()))
    rounds = rounds_on_both(targets, tiny_factory("uniform_random", VOCABULARY))
    assert most(rounds) == InARound(waits=2, uploads=0)


def test_a_second_copy_to_the_host_is_seen(targets, monkeypatch):
    read = DeviceRound.read
    monkeypatch.setattr(
        DeviceRound, "read", staticmethod(lambda rows, packed: read(rows, packed.cpu().to(packed.device)))
    )
    rounds = rounds_on_both(targets, tiny_factory("uniform_random", VOCABULARY))
    assert most(rounds) == InARound(waits=2, uploads=1)
