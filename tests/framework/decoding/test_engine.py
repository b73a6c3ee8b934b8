"""The engine with every drafter: equal to plain decoding, row by row.

test_proof.py shows that the engine keeps the distribution.
"""

import gc
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensor

from experiments.proof.tiny_drafters import NAMES, tiny_factory
from framework.conformance.tiny_models import tiny_target
from framework.core.draft import Draft, Readout, SamplingScheme, Shape
from framework.core.drafter import Drafter, learns
from framework.core.logits_processors import LogitsProcessors
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.generation import Generation
from framework.decoding.prefill import buffer_width, prefill
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.metrics.stopwatch import Stopwatch
from framework.models.target import Target
from framework.verifiers.block import BlockVerification
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.verifier import Verifier
from tests.support.drafter_kinds import FAST, KINDS, every_drafter
from tests.support.slow_cases import mostly_slow

GREEDY = Sampling(temperature=0)
RAGGED = [[5, 6, 7, 8, 5, 6], [9], [3, 4], [1, 2, 1, 2, 1, 2, 1], [30], [7] * 20, [11, 12, 13], [2, 40, 2, 40]]


def build_drafter(name: str, target: Target) -> Drafter:
    return tiny_factory(name, target.vocabulary_size)(target=target)


def engine(target: Target, drafter, gamma: int = 3, sampling: Sampling = GREEDY) -> Engine:
    return Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=gamma), sampling=sampling)


def plain(target: Target, prompts, stopping: Stopping, sampling: Sampling = GREEDY) -> Generation:
    decoder = Autoregressive(target=target, sampling=sampling)
    return decoder.generate(prompts, stopping=stopping, seeds=list(range(len(prompts))))


def speculative(decoder: Engine, prompts, stopping: Stopping, seeds: list[int] | None = None, **kwargs) -> Generation:
    return decoder.generate(prompts, stopping=stopping, seeds=seeds or list(range(len(prompts))), **kwargs)


class Scripted:
    """Drafts by script: `script(tokens so far, gamma)` returns the next tokens of a row."""

    scheme, shape = SamplingScheme.ONE_HOT, Shape.CHAIN

    def __init__(self, script):
        self.script = script
        self.seen = []

    def num_uniforms(self, gamma):
        return 0

    def begin(self, sequences, prefill, sampling):
        pass

    def propose(self, sequences, gamma, uniforms):
        rows = zip(sequences.tokens.tolist(), sequences.lengths.tolist(), strict=True)
        return Draft.chain(torch.tensor([self.script(tokens[:length], gamma) for tokens, length in rows]), self.scheme)

    def observe(self, sequences, outcome):
        self.seen.append(outcome)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


THIRTY = Stopping(max_new_tokens=30, eos_ids=(0,))


@pytest.fixture(scope="module")
def expected(target) -> Generation:
    return plain(target, RAGGED, THIRTY)


@pytest.fixture(scope="module")
def drafter_of(target) -> Callable[[str], Drafter]:
    """One shared drafter per name, for temperature 0, where drafts cannot change the tokens."""
    return cache(lambda name: build_drafter(name, target))


@pytest.mark.parametrize(
    ("name", "gamma"),
    [
        pytest.param(name, gamma, marks=() if name in FAST or (gamma == 4 and name in KINDS) else pytest.mark.slow)
        for name, gamma in product(NAMES, (0, 1, 4))
    ],
)
def test_greedy_tokens_equal_plain_decoding(target, expected, drafter_of, name, gamma):
    decoder = engine(target, drafter_of(name), gamma)
    batch = speculative(decoder, RAGGED, THIRTY)
    assert batch.tokens == expected.tokens and batch.finish_reasons == expected.finish_reasons
    for row in (0, 1, 5):  # test_rows_do_not_depend_on_their_batch decodes all rows alone
        assert speculative(decoder, RAGGED[row : row + 1], THIRTY).tokens[0] == expected.tokens[row]


def test_a_row_is_offered_no_more_than_its_own_budget_holds(target):
    # Row 0 has room for two tokens after the prefill: one drafted, and one after it.
    script = [1, 2, 3, 4]
    decoder = engine(target, Scripted(lambda tokens, gamma: script[:gamma]), gamma=4)
    prompts, stopping = [[5] * (target.model.context - 3), [9]], Stopping(max_new_tokens=12)
    stopwatch = Stopwatch(target.device)
    decoding = decoder.begin(prompts, stopping=stopping, seeds=[0, 1], detailed=False, stopwatch=stopwatch)
    assert decoding.finisher.left == [2, 11]
    while any(left := list(decoding.finisher.left)):
        gamma = min(4, max(left) - 1)
        offered = decoder.round(decoding).offered
        assert [min(gamma, each - 1) for each in left if each] == [
            depth for depth, each in zip(offered, left, strict=True) if each
        ]


def test_prompts_one_after_another_have_seeds_one_after_another(target):
    decoder, stopping = engine(target, build_drafter("uniform_random", target), sampling=Sampling()), Stopping(12)
    tallies = list(decoder.each_alone(RAGGED, stopping=stopping, seed=7))
    for row, (prompt, tally) in enumerate(zip(RAGGED, tallies, strict=True)):
        assert tally.counts() == speculative(decoder, [prompt], stopping, seeds=[7 + row]).tally.counts()
    assert any(
        tally.counts() != speculative(decoder, [prompt], stopping, seeds=[7]).tally.counts()
        for prompt, tally in zip(RAGGED, tallies, strict=True)
    )


@pytest.mark.parametrize(
    ("longest", "max_new_tokens", "width"),
    [(3, 4, 256), (248, 4, 256), (249, 4, 512), (3, 10**6, 1024), (500, 8, 512), (504, 8, 1024)],
)
def test_buffers_hold_prompts_budgets_and_a_draft_as_a_power_of_two(longest, max_new_tokens, width):
    target = tiny_target(context=600)
    sequences, _, _ = prefill(target, [[5] * longest, [7]], Stopping(max_new_tokens=max_new_tokens), max_nodes=3)
    assert sequences.tokens.shape == (2, width)


@pytest.mark.parametrize(("needed", "width"), [(1, 256), (257, 512), (4096, 4096), (4097, 5120), (32_770, 33_792)])
def test_long_buffers_are_not_doubled(needed, width):
    assert buffer_width(needed, least_in_graphs=None) == width


@pytest.mark.parametrize(("longest", "width"), [(3, 4096), (4000, 4096), (4100, 8192)])
def test_texts_up_to_four_thousand_tokens_share_the_width_of_compiled_decoders(longest, width):
    prompts, stopping = [[5] * longest, [7]], Stopping(max_new_tokens=8)
    sequences, _, _ = prefill(tiny_target(context=6000), prompts, stopping, max_nodes=3, compiled=True)
    assert sequences.tokens.shape == (2, width)


def test_logits_processors_read_narrower_buffers():
    target = replace(tiny_target(context=6000), processors=LogitsProcessors({"repetition_penalty": 1.2}))
    sequences, _, _ = prefill(target, [[5], [7]], Stopping(max_new_tokens=8), max_nodes=3, compiled=True)
    assert sequences.tokens.shape == (2, 1024)


def test_plain_decoding_equals_hugging_face(target):
    stopping = Stopping(max_new_tokens=30, eos_ids=(0,))
    for prompt in RAGGED:
        output = target.model.model.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False)
        assert output[0, len(prompt) :].tolist() == plain(target, [prompt], stopping).tokens[0]


@pytest.mark.parametrize("name", every_drafter())
def test_alpha_counts_agree_with_the_distributions(name):
    target = tiny_target(vocabulary=5)
    decoder = engine(target, build_drafter(name, target), 3, Sampling())
    tally = speculative(decoder, [[1, 2, 1]] * 300, Stopping(max_new_tokens=20), detailed=True).tally
    metrics = tally.metrics()
    assert metrics["alpha/check"]
    assert sum(tally.tested_by_position) > 300
    if decoder.drafter.shape is not Shape.CHAIN:  # overlap is defined for chains
        assert metrics["alpha/overlap"] is None
        return
    # At worst 5.5 standard deviations, 1 false alarm in 25 million; alpha/check: 1 in 8,000, with fixed seeds.
    assert abs(metrics["alpha/overlap"] - metrics["alpha/empirical"]) < 5.5 * 0.5 / sum(tally.tested_by_position) ** 0.5


# Those that learn do so from all rows of a batch: above T=0 their tokens depend on it, their distribution does not. At
# T=0, where no draft changes a token, the tokens of others are those of plain decoding: see above.
LEARNING = [name for name in NAMES if name.startswith("online_")]
TOP_P = Sampling(temperature=0.8, top_p=0.9)
ALONE = [(name, GREEDY if name in LEARNING else TOP_P) for name in NAMES]
ALONE += [(name, Sampling()) for name in KINDS if name not in LEARNING]


@pytest.mark.parametrize(
    ("name", "sampling"),
    mostly_slow(ALONE, fast=[case for case in ALONE if case[0] in FAST and case[1] != Sampling()]),
)
def test_rows_do_not_depend_on_their_batch(name, sampling):
    """Equal tokens of a row alone and in shuffled, ragged batches of up to 16.

    Float64, so that the rounding of passes of other shapes decides no draw.
    """
    target = tiny_target(dtype=torch.float64)
    decoder = engine(target, build_drafter(name, target), 3, sampling)
    stopping, dice = Stopping(max_new_tokens=20, eos_ids=(0,)), random.Random(0)
    prompts = [*RAGGED, *([dice.randrange(1, 50) for _ in range(dice.randint(1, 60))] for _ in range(8))]
    alone = [speculative(decoder, [prompt], stopping, seeds=[row]).tokens[0] for row, prompt in enumerate(prompts)]
    assert len({len(tokens) for tokens in alone}) > 1, "no row ends early"
    for size in (2, 5, 16):
        rows = dice.sample(range(16), size)
        batch = speculative(decoder, [prompts[row] for row in rows], stopping, seeds=rows)
        assert batch.tokens == [alone[row] for row in rows]


def test_full_acceptance_commits_gamma_plus_one(target):
    stopping = Stopping(max_new_tokens=21)
    truth = plain(target, [[5, 6]], stopping).tokens[0]
    drafter = Scripted(lambda tokens, gamma: (truth + [0] * gamma)[len(tokens) - 2 :][:gamma])
    generation = speculative(engine(target, drafter, 4), [[5, 6]], stopping)
    assert generation.tokens[0] == truth
    assert generation.tally.num_rounds == 4 and float(generation.tally.committed) == 20
    assert generation.tally.metrics()["tau"] == 5


def test_end_of_text_anywhere_inside_a_draft(target):
    """Each token of the greedy continuation as end of text, under an always correct drafter."""
    truth = plain(target, [[9, 8]], Stopping(max_new_tokens=25)).tokens[0]
    drafter = Scripted(lambda tokens, gamma: (truth + [0] * gamma)[len(tokens) - 2 :][:gamma])
    for eos in set(truth):
        stopping = Stopping(max_new_tokens=25, eos_ids=(eos,))
        generation = speculative(engine(target, drafter, 4), [[9, 8]], stopping)
        assert generation.tokens[0] == truth[: truth.index(eos) + 1]
        assert generation.finish_reasons == ["eos"]
        assert 1 + float(generation.tally.committed) == len(generation.tokens[0])


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 4, 5, 6, 7])
def test_budget_is_met_exactly(target, max_new_tokens):
    truth = plain(target, [[5, 6]], Stopping(max_new_tokens=20)).tokens[0]
    drafter = Scripted(lambda tokens, gamma: (truth + [0] * gamma)[len(tokens) - 2 :][:gamma])
    generation = speculative(engine(target, drafter, 4), [[5, 6]], Stopping(max_new_tokens=max_new_tokens))
    assert generation.tokens[0] == truth[:max_new_tokens] and generation.finish_reasons == ["length"]


@pytest.mark.parametrize("name", NAMES)
def test_the_context_ends_a_row(name):
    target = tiny_target(context=16)
    prompts = [[5, 6, 7], [8] * 14, [4] * 15]
    stopping = Stopping(max_new_tokens=40)
    generation = speculative(engine(target, build_drafter(name, target), 4), prompts, stopping)
    assert [len(p) + len(t) for p, t in zip(prompts, generation.tokens, strict=True)] == [16, 16, 16]
    assert generation.finish_reasons == ["context"] * 3
    assert generation.tokens == plain(target, prompts, stopping).tokens


def test_the_last_draft_is_no_deeper_than_the_budget(target: Target) -> None:
    """A round commits one token more than it accepts: of three tokens left, two are drafted."""
    depths: list[int] = []

    def script(_: list[int], gamma: int) -> list[int]:
        depths.append(gamma)
        return [1] * gamma

    decoder, stopwatch = engine(target, Scripted(script), gamma=6), Stopwatch(target.device)
    decoder.round(decoder.begin([[5, 6, 7]], stopping=Stopping(4), seeds=[0], detailed=False, stopwatch=stopwatch))
    assert depths == [2]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_memory_does_not_grow_with_the_rounds(name):
    """Tensor memory: the buffers of committed tokens have their final width from the start."""
    target = tiny_target()
    decoder, stopping = engine(target, build_drafter(name, target)), Stopping(max_new_tokens=80)
    if learns(decoder.drafter):
        pytest.skip("it stores up to `buffer` texts to learn from")
    decoder.generate([[5, 6, 7]] * 2, stopping=Stopping(max_new_tokens=12), seeds=[0, 1])  # builds the cached trees
    gc.freeze()  # looking through all objects of the other tests takes seconds
    try:
        decoding = decoder.begin(
            [[5, 6, 7]] * 2, stopping=stopping, seeds=[0, 1], detailed=False, stopwatch=Stopwatch(target.device)
        )
        for _ in range(5):
            decoder.round(decoding)
        early, rounds = live_bytes(), 0
        while decoding.finisher.most_remaining:
            decoder.round(decoding)
            rounds += 1
        late = live_bytes()
    finally:
        gc.unfreeze()
    assert rounds > 20 and late <= early


def live_bytes() -> int:
    """Bytes of the tensors that were made since `gc.freeze`."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    storages = [each.untyped_storage() for each in tensors if not isinstance(each, FakeTensor)]  # the compiler's own
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def test_stop_string_completes_inside_a_block(target):
    truth = plain(target, [[5, 6]], Stopping(max_new_tokens=20)).tokens[0]
    text = target.tokenizer.decode(truth)
    stop = text[5:8]
    stopping = Stopping(max_new_tokens=20, stop_strings=(stop,), tokenizer=target.tokenizer)
    drafter = Scripted(lambda tokens, gamma: (truth + [0] * gamma)[len(tokens) - 2 :][:gamma])
    generation = speculative(engine(target, drafter, 4), [[5, 6]], stopping)
    assert generation.tokens == plain(target, [[5, 6]], stopping).tokens
    assert generation.finish_reasons == ["stop_string"]
    assert target.tokenizer.decode(generation.tokens[0]) == text[: text.index(stop) + len(stop)]


def test_observers_see_every_round(target):
    drafter = Scripted(lambda tokens, gamma: [1] * gamma)
    generation = speculative(engine(target, drafter, 3), RAGGED[:3], Stopping(max_new_tokens=12))
    committed = sum(outcome.num_committed for outcome in drafter.seen)
    assert committed.tolist() == [len(tokens) - 1 for tokens in generation.tokens]
    assert all((outcome.num_accepted <= outcome.draft.offered_depth).all() for outcome in drafter.seen)


def test_who_watches_is_shown_every_round(target):
    decoder, stopping, seen = (
        engine(target, build_drafter("small_transformer", target)),
        Stopping(max_new_tokens=12),
        [],
    )
    shown = speculative(
        decoder, RAGGED[:3], stopping, on_round=lambda outcome: seen.append(outcome.num_committed.tolist())
    )
    assert len(seen) == shown.tally.passes.sum()
    assert [sum(row) for row in zip(*seen, strict=True)] == [11, 11, 11]  # prefill commits the first token
    assert shown.tokens == speculative(decoder, RAGGED[:3], stopping).tokens


def test_not_a_number_is_one_clear_error(target):
    broken = tiny_target()
    broken.model.model.get_output_embeddings().weight.data[7] = torch.nan
    for decode in (
        lambda: plain(broken, RAGGED, Stopping(max_new_tokens=5), Sampling()),
        lambda: plain(broken, RAGGED, Stopping(max_new_tokens=5)),
        lambda: speculative(engine(broken, Scripted(lambda t, g: [1] * g)), RAGGED, Stopping(max_new_tokens=5)),
    ):
        with pytest.raises(FloatingPointError, match=r"NaN.*target\.dtype"):
            decode()


def test_a_token_its_own_distribution_excludes_is_an_error(target):
    class Liar(Scripted):
        scheme = SamplingScheme.IID

        def propose(self, sequences, gamma, uniforms):
            probs = torch.zeros(sequences.num_rows, gamma, target.vocabulary_size)
            probs[..., 3] = 1
            return Draft.chain(torch.full((sequences.num_rows, gamma), 4), SamplingScheme.IID, probs=probs)

    with pytest.raises(FloatingPointError, match="its own probs give zero"):
        speculative(engine(target, Liar(None), 2, Sampling()), [[5, 6]], Stopping(max_new_tokens=8))


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "no prompts"),
        ([[1], []], "prompt 1 is empty"),
        ([[1, 50]], "token 50; allowed: 0 to 49"),
        ([[-1]], "token -1"),
        ([[1] * 128], "128 tokens; at most 127"),
    ],
)
def test_prompts_that_cannot_be_decoded(target, prompts, message):
    decoder = engine(target, Scripted(lambda tokens, gamma: [1] * gamma))
    for decode in (lambda: plain(target, prompts, Stopping(max_new_tokens=5)),
                   lambda: speculative(decoder, prompts, Stopping(max_new_tokens=5))):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            decode()


def test_a_verifier_refuses_before_decoding(target):
    drafter = SimpleNamespace(scheme=SamplingScheme.IID, shape=Shape.TREE)
    with pytest.raises(ValueError, match="verifier=speculative_sampling"):
        Engine(
            target=target,
            drafter=drafter,
            verifier=SpeculativeSampling(),
            gamma_policy=Fixed(gamma=2),
            sampling=GREEDY,
        )


def test_gamma_is_checked():
    for wrong in (-1, 1.5, True, "4", None):
        with pytest.raises(ValueError, match=r"^gamma is "):
            Fixed(gamma=wrong)


class Shadowing(Fixed):
    """Drafts nothing, and asks for a shadow draft in every round."""

    is_shadow_due = True

    def __init__(self):
        super().__init__(gamma=1)
        self.num_allowed = 0
        self.seen: list[Readout] = []

    def next_gamma(self) -> int:
        return 0

    def allow_shadows(self) -> None:
        self.num_allowed += 1

    def observe_shadow(self, readout: Readout) -> None:
        self.seen.append(readout)


def test_a_shadow_draft_is_compared_with_the_token_of_its_round_and_changes_nothing() -> None:
    """One row drafts the target's tokens, one others, one nothing; the first ends after its third token."""
    target, prompts = tiny_target(), [[5, 6, 7, 8], [9, 3], [30]]
    expected = plain(target, prompts, Stopping(max_new_tokens=6)).tokens
    expected[0] = expected[0][:3]
    stopping = Stopping(max_new_tokens=6, eos_ids=(expected[0][2],))
    assert expected[0][2] not in expected[0][:2] + expected[1] + expected[2]

    class Guessing(Scripted):
        on_host = True

        def propose(self, sequences, gamma, uniforms):
            raise AssertionError("a shadow draft is only looked up")

        def look_up(self, sequences, gamma):
            assert gamma == 1
            place = len(sequences.texts[1]) - len(prompts[1])
            return [[expected[0][min(place, 2)]], [expected[1][place] ^ 1], []]

    policy = Shadowing()
    decoder = Engine(target=target, drafter=Guessing(None), gamma_policy=policy, sampling=GREEDY)
    found = speculative(decoder, prompts, stopping)
    assert found.tokens == expected and policy.num_allowed == 1
    assert found.tally.metrics()["undrafted"] == 1 and found.tally.metrics()["alpha/empirical"] is None
    tried = [(seen.num_nodes, seen.offered, seen.accepted, seen.rejected) for seen in policy.seen]
    assert tried == [(1, [1, 1, 0], [1, 0, 0], [0, 1, 0])] * 2 + [(1, [0, 1, 0], [0, 0, 0], [0, 1, 0])] * 2
    assert [seen.active for seen in policy.seen] == [[1, 1, 1]] * 2 + [[0, 1, 1]] * 2  # the last token needs no draft


@pytest.mark.parametrize("verifier", [None, BlockVerification()])
def test_shadow_drafts_need_a_drafter_that_looks_up_and_the_rule_that_they_imitate(verifier: Verifier | None) -> None:
    drafter, policy = Scripted(lambda tokens, gamma: [1] * gamma), Shadowing()
    drafter.on_host = True
    if verifier is not None:
        drafter.look_up = lambda sequences, gamma: []
    decoder = Engine(target=tiny_target(), drafter=drafter, verifier=verifier, gamma_policy=policy, sampling=GREEDY)
    speculative(decoder, [[5, 6]], Stopping(3))
    assert policy.num_allowed == 0 and not policy.seen
