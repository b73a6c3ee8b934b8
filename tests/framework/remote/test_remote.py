"""A drafter in another process: exact transport, and errors instead of hangs."""

import contextlib
import gc
import random
import socket
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from threading import Thread

import numpy as np
import pytest
import torch
from scipy.special import lambertw

from drafters.layer_skip import LayerSkip
from drafters.ngram import NGram
from drafters.prompt_lookup import PromptLookup
from drafters.published.peagle import Peagle
from drafters.remote import Remote
from drafters.small_transformer import SmallTransformer
from drafters.transformer_tree import TransformerTree
from experiments.proof.tiny_drafters import save_tiny_peagle
from framework.conformance.tiny_models import save_tiny, tiny_target
from framework.core.draft import Draft, SamplingScheme, Shape
from framework.core.draft_faults import probs_fault, structure_fault
from framework.core.drafter import most_nodes
from framework.core.sampling import Sampling, draw, nucleus
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.drafting.quantized_probs import from_weights, quantize, to_weights
from framework.gamma_policies.heuristic import Heuristic
from framework.metrics.theory import cost_over_link, optimal_gamma
from framework.models.pretrained import load_draft_model
from framework.remote import peers
from framework.remote.peers import listen, serve
from framework.remote.serialization import (
    DraftFacts,
    MalformedMessage,
    flat,
    pack,
    packed_draft,
    unpack,
    unpacked_draft,
)
from framework.remote.transport import SIZE, Link, Transport, WorkerLost
from framework.remote.worker import Kind, Worker, answer_requests, error_of

PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [49], [7, 8, 45, 8, 9]]
STOPPING = Stopping(max_new_tokens=30, eos_ids=(0,))
GREEDY, SAMPLED = Sampling(temperature=0), Sampling(temperature=0.8)


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Factory of a yaml's small_transformer."""
    folder = str(save_tiny(tmp_path_factory.mktemp("tiny") / "drafter", seed=3))
    model = load_draft_model(path=folder, dtype="float32", attention="sdpa")
    return partial(SmallTransformer, model=model, top_k=8, bits=8)


def remote(target, factory, **options) -> Remote:
    settings = {"latency_ms": 0, "megabits_per_second": None, "timeout_s": 60, "when_lost": "error"} | options
    return Remote(target, drafter=factory, **settings)


def engine(target, drafter, sampling=GREEDY) -> Engine:
    return Engine(
        target=target,
        drafter=drafter,
        gamma_policy=Heuristic(max_gamma=5, initial=2),
        sampling=sampling,
    )


def generated(target, drafter, sampling=GREEDY, stopping=STOPPING):
    return engine(target, drafter, sampling).generate(PROMPTS, stopping=stopping, seeds=[0, 1, 2])


def plain(target, sampling=GREEDY):
    return Autoregressive(target=target, sampling=sampling).generate(PROMPTS, stopping=STOPPING, seeds=[0, 1, 2]).tokens


# Quantized distributions


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_rounded_distribution_is_one_and_is_not_rounded_again(bits, dtype):
    dice = torch.Generator().manual_seed(0)
    probs = (torch.randn(50, 300, generator=dice, dtype=dtype) * 3).softmax(1)
    probs[:, ::7] = 0
    probs /= probs.sum(1, keepdim=True)
    distribution = quantize(probs, bits)
    assert (distribution.sum(1) - 1).abs().max() < 1e-5 and (distribution[:, ::7] == 0).all()
    assert torch.equal(quantize(distribution, bits), distribution)
    assert torch.equal(from_weights(to_weights(distribution, bits), dtype), distribution)
    nearest = probs.amax(1, keepdim=True) / (2**bits - 1)  # quantization step; half a step bounds the error of an entry
    assert ((distribution - probs).abs() <= (0.5 + 300 / 2 * probs.amax(1, keepdim=True)) * nearest).all()


def test_rounding_after_the_draw_is_biased_and_before_it_is_not():
    """One token's output distribution under the token rule, drawn from `drawn`, judged by `reported`."""
    dice = torch.Generator().manual_seed(1)
    p, q = (torch.randn(200, generator=dice, dtype=torch.float64).mul(2).softmax(0) for _ in range(2))
    rounded = quantize(q, 8)

    def error(drawn, reported):
        kept = torch.where(drawn > 0, drawn * (p / reported).clamp(max=1), 0)
        rest = (p - reported).clamp(min=0)
        return (kept + (1 - kept.sum()) * rest / rest.sum() - p).abs().sum().item() / 2

    assert error(rounded, rounded) < 1e-12
    assert error(q, rounded.clamp(min=1e-300)) > 1e-4


# Serialization


@pytest.mark.parametrize("bits", [None, 8, 16])
@pytest.mark.parametrize("top_k", [None, 16])
@pytest.mark.parametrize("top_p", [None, 0.8])
def test_a_draft_arrives_to_the_last_bit_in_few_bytes(bits, top_k, top_p):
    dice, width = torch.Generator().manual_seed(2), 1000
    probs = (torch.randn(2, 4, top_k or width, generator=dice) * 2).softmax(2)
    probs = probs if top_p is None else nucleus(probs.sort(descending=True).values, top_p)
    probs = probs if bits is None else quantize(probs, bits)
    tokens = draw(probs, torch.rand(2, 4, generator=dice, dtype=torch.float64))
    support = None if top_k is None else torch.randperm(width, generator=dice)[:top_k].expand(2, 4, -1).contiguous()
    if support is not None:
        tokens = support.gather(2, tokens.unsqueeze(2)).squeeze(2)
    valid = torch.arange(4) < torch.tensor([[4], [2]])
    draft = Draft.chain(tokens, SamplingScheme.IID, probs=probs, support=support, valid=valid)
    message = pack(4, packed_draft(draft))
    kind, arrays = unpack(message)
    got = unpacked_draft(arrays, DraftFacts(SamplingScheme.IID, Shape.CHAIN, 2, 4, 4, width))
    assert kind == 4 and got.scheme is SamplingScheme.IID and got.shape is Shape.CHAIN
    assert torch.equal(got.tokens, draft.tokens) and torch.equal(got.valid, draft.valid)
    assert torch.equal(got.probs, draft.probs)
    if support is None:
        assert got.support is None
    else:
        assert torch.equal(got.support[probs > 0], support[probs > 0])
    distribution = 8 * (top_k or width) * (bits or 32) // 8
    exact = distribution + 8 * 2 + 2 + 1 + (8 * top_k * 2 if top_k else 0)  # tokens, number offered, dtype, support
    assert len(message) - exact <= 2 + 14 * len(arrays)
    assert top_p is None or len(message) < exact  # tokens without mass are left out


def test_a_chosen_draft_has_no_distribution_to_send():
    draft = Draft.chain(torch.tensor([[700, 3]]), SamplingScheme.ONE_HOT)
    arrays = unpack(pack(4, packed_draft(draft)))[1]
    got = unpacked_draft(arrays, DraftFacts(SamplingScheme.ONE_HOT, Shape.CHAIN, 1, 2, 2, 701))
    assert got.probs is None and got.scheme is SamplingScheme.ONE_HOT and torch.equal(got.tokens, draft.tokens)


def altered(message: bytes, dice: random.Random) -> bytes:
    """The message with one byte changed, some bytes cut off, or some bytes added."""
    place = dice.randrange(len(message))
    return dice.choice(
        [
            message[:place] + bytes([dice.randrange(256)]) + message[place + 1 :],
            message[:place],
            message[:place] + dice.randbytes(dice.randrange(1, 9)) + message[place:],
        ]
    )


@pytest.mark.parametrize("shape", [Shape.CHAIN, Shape.TREE])
@pytest.mark.parametrize("top_p", [0.3, 1.0])
def test_altered_drafts_are_refused_or_are_drafts(top_p, shape):
    dice = torch.Generator().manual_seed(0)
    probs = quantize(nucleus(torch.randn(2, 3, 6, generator=dice).softmax(2), top_p), 16)
    draft = Draft.chain(torch.tensor([[5, 1, 2], [0, 3, 4]]), SamplingScheme.IID, probs=probs)
    if shape is Shape.TREE:
        draft = replace(draft, shape=shape, parent=torch.tensor([-1, -1, 1]).expand(2, -1), probs=probs[:, [0, 0, 1]])
    facts = DraftFacts(SamplingScheme.IID, shape, 2, 3, 3, 6)
    got = unpacked_draft(packed_draft(draft), facts)
    assert all(torch.equal(getattr(got, name), getattr(draft, name)) for name in ("tokens", "parent", "valid", "probs"))
    message, dice, refused = pack(4, packed_draft(draft)), random.Random(0), 0
    for _ in range(1000):
        try:
            got = unpacked_draft(unpack(altered(message, dice))[1], facts)
        except MalformedMessage:
            refused += 1
        else:
            assert len(got.tokens) == 2 and got.num_nodes <= 3 and structure_fault(got) is probs_fault(got) is None
            assert got.tokens.min() >= 0 and got.tokens.max() < 6
    assert 300 < refused < 1000


@pytest.mark.parametrize(
    ("sent", "lost"),
    [
        (SIZE.pack(2**62), "it has 4611686018427387904 bytes; allowed: at most"),  # no memory is taken for it
        (SIZE.pack(2) + b"\4\1", "it ends within an array's header"),
        (SIZE.pack(6) + b"\4\1\0\1\7\0", "it ends within an array's header"),
        (SIZE.pack(8) + b"\4\1\0\1\xff\xff\xff\xff", "array 0 of shape .* is longer than its message"),
        (SIZE.pack(4) + b"\4\1\x99\1", "array 0 has dtype 153"),
        (SIZE.pack(9) + b"\4\0", "it closed the connection"),
        (b"", "it closed the connection"),
    ],
)
def test_what_is_no_message_ends_in_one_line(sent, lost):
    here, there = socket.socketpair()
    there.sendall(sent)
    there.close()
    with pytest.raises(ConnectionError, match=rf"^{lost}[^\n]*$"):
        Transport(here, timeout=5).receive()


def test_a_message_that_stops_halfway_is_not_waited_for():
    here, there = socket.socketpair()
    there.sendall(SIZE.pack(9) + b"\4")
    with pytest.raises(WorkerLost, match="silent for too long"):
        Transport(here, timeout=0.1).receive()
    with pytest.raises(MalformedMessage, match="it has 1000007 bytes; allowed: at most 1000"):
        (transport := Transport(here, timeout=5)).most_bytes = 1000
        transport.send(4, [np.zeros(1_000_001 - 2, np.uint8)])


def test_altered_requests_end_in_one_line_and_never_in_a_hang():
    """Every request gets an answer, in the process that would otherwise draft on."""

    class Asked(LastToken):
        def num_uniforms(self, gamma):
            return gamma

    requests = [
        (Kind.SIZES, [np.array([3], np.int32)]),
        (Kind.BEGIN, [np.array([1.0, 0, 1, 0]), np.array([16], np.int32), *flat([[1, 2], [3]]), *flat([])]),
        (
            Kind.PROPOSE,
            [np.ones(2, np.uint8), np.array([2], np.int32), np.full((2, 2), 0.5)]
            + [np.zeros(2, np.uint8)] * 2
            + flat([[], []]),
        ),
    ]
    dice, answers = random.Random(1), Counter()
    for _ in range(300):
        worker, changed = Worker(Asked(), 6), dice.randrange(len(requests))
        here, there = socket.socketpair()
        for index, (kind, arrays) in enumerate(requests):
            message = pack(kind, arrays)
            message = altered(message, dice) if index == changed else message
            here.sendall(SIZE.pack(len(message)) + message)
        here.shutdown(socket.SHUT_WR)
        with contextlib.suppress(WorkerLost):  # all requests are answered
            answer_requests(Transport(there, timeout=5), worker)
        there.close()
        with contextlib.suppress(WorkerLost):
            while True:
                answered, arrays = Transport(here, timeout=5).receive()
                answers[answered] += 1
                if answered == Kind.ERROR:
                    assert "\n" not in str(error_of(arrays))
    assert answers[Kind.ERROR] > 100 and answers[Kind.DRAFT] > 20


class LastToken:
    """Drafts the last token again and again."""

    scheme, shape = SamplingScheme.ONE_HOT, Shape.CHAIN

    def begin(self, sequences, prefill, sampling):
        pass

    def propose(self, sequences, gamma, uniforms):
        return Draft.chain(sequences.pending.unsqueeze(1).expand(-1, gamma), SamplingScheme.ONE_HOT)

    def observe(self, sequences, outcome):
        pass


LOOKUP = partial(PromptLookup, max_ngram=2, min_ngram=1, match="last")
COUNTS = partial(NGram, order=3, smoothing="witten_bell", learn_from_context=True, corpus=None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "lookup", "counts"])
def test_it_is_the_drafter_itself_only_elsewhere(target, small, name):
    """Equal tokens and counts with and without a process in between; plain decoding at temperature 0."""
    factory = {"small": small, "lookup": LOOKUP, "counts": COUNTS}[name]
    away, here = remote(target, factory), factory(target=target)
    for gamma in (0, 3):  # 0 is asked where parts are timed
        assert away.num_uniforms(gamma) == here.num_uniforms(gamma) and most_nodes(away, gamma) == gamma
    for sampling in (SAMPLED, GREEDY):
        got, expected = generated(target, away, sampling), generated(target, here, sampling)
        assert got.tokens == expected.tokens
        assert got.tally.counts() == expected.tally.counts()
    assert got.tokens == plain(target)
    assert away.bytes_up > 0 and away.bytes_down > 0


@pytest.mark.slow
def test_a_row_may_end_by_a_stop_string_inside_an_accepted_draft(target, tmp_path):
    model = load_draft_model(path=str(save_tiny(tmp_path / "twin")), dtype="float32", attention="sdpa")
    twin = partial(SmallTransformer, model=model, top_k=None, bits=None)
    away, here, reasons = remote(target, twin), twin(target=target), []
    for token in sorted({*plain(target)[0]} - {*STOPPING.eos_ids})[:6]:
        stops = replace(STOPPING, stop_strings=(target.tokenizer.decode([token]),), tokenizer=target.tokenizer)
        got, expected = (generated(target, drafter, stopping=stops) for drafter in (away, here))
        assert got.tokens == expected.tokens
        reasons += got.finish_reasons
    assert "stop_string" in reasons and got.tally.counts()["accepted"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("branching", "children"),
    [([2, 2, 1], "iid"), ([3], "iid"), ([2, 2], "without_replacement"), ([3, 1, 2], "likeliest")],
    ids=str,
)
def test_trees_are_those_of_the_drafter_itself(target, small, branching, children):
    factory = partial(TransformerTree, model=small.keywords["model"], branching=branching, children=children)
    away, here = remote(target, factory), factory(target=target)
    assert (away.shape, away.scheme) == (here.shape, here.scheme)
    for gamma in (0, 3):  # 0 is asked where parts are timed
        assert (away.num_uniforms(gamma), away.num_nodes(gamma)) == (here.num_uniforms(gamma), here.num_nodes(gamma))
    for sampling in (SAMPLED, GREEDY):
        got, expected = generated(target, away, sampling), generated(target, here, sampling)
        assert got.tokens == expected.tokens
        assert got.tally.counts() == expected.tally.counts()
    assert got.tokens == plain(target)
    with pytest.raises(ValueError, match="Remote drafts trees on the host; allowed: false"):
        Engine(
            target=target, drafter=away, gamma_policy=Heuristic(max_gamma=5, initial=2), sampling=GREEDY, compiled=True
        )


def test_an_outcome_is_read_while_it_is_lent(target):
    """The outcome's tensors may change once `observe` has returned."""
    away, here = remote(target, LOOKUP), LOOKUP(target=target)

    class Returned(Remote):
        def __init__(self):
            self.__dict__ = away.__dict__

        def observe(self, sequences, outcome):
            super().observe(
                sequences, lent := replace(outcome, stop=outcome.stop + 0, num_committed=outcome.num_committed + 0)
            )
            lent.stop.fill_(77), lent.num_committed.fill_(77)

    got, expected = generated(target, Returned()), generated(target, here)
    assert got.tokens == expected.tokens and got.tally.counts() == expected.tally.counts()


@pytest.mark.slow
def test_a_link_takes_its_time(target):
    assert Link(0.25, 1000).seconds(500) == 0.75 and Link().seconds(10**9) == 0
    drafter = remote(target, LOOKUP, latency_ms=30)
    begin = time.perf_counter()
    rounds = generated(target, drafter).tally.num_rounds / len(PROMPTS)
    assert time.perf_counter() - begin > 0.06 * rounds * 0.9


# Errors


class Asleep:
    """A drafter that never answers."""

    scheme, shape = SamplingScheme.ONE_HOT, Shape.CHAIN

    def __init__(self, target):
        pass

    def num_uniforms(self, gamma):
        return 0

    def begin(self, sequences, prefill, sampling):
        pass

    def propose(self, sequences, gamma, uniforms):
        time.sleep(600)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["killed", "asleep"])
def test_a_lost_worker_ends_in_an_error_or_in_plain_decoding_and_soon(target, lost):
    factory, timeout_s = (LOOKUP, 60) if lost == "killed" else (Asleep, 2)  # a killed process is detected at once
    for when_lost in ("error", "plain"):
        drafter = remote(target, factory, timeout_s=timeout_s, when_lost=when_lost)
        decoder, rounds = engine(target, drafter), []

        def strike(outcome, drafter=drafter, rounds=rounds):
            rounds.append(outcome)
            if lost == "killed" and len(rounds) == 3:
                drafter._process.kill()

        begin = time.perf_counter()
        if when_lost == "error":
            with pytest.raises(WorkerLost, match=r"process is lost .* drafter.when_lost=plain .* drafter.timeout_s"):
                decoder.generate(PROMPTS, stopping=STOPPING, seeds=[0, 1, 2], on_round=strike)
        else:
            got = decoder.generate(PROMPTS, stopping=STOPPING, seeds=[0, 1, 2], on_round=strike)
            assert got.tokens == plain(target)
            assert generated(target, drafter).tokens == plain(target)
        assert time.perf_counter() - begin < 120


@pytest.mark.parametrize("is_tree", [False, True])
def test_a_process_ends_with_the_drafter_that_asks_it(target, small, is_tree):
    """At once, before the collector of cycles runs."""
    trees = partial(TransformerTree, model=small.keywords["model"], branching=[2], children="iid")
    gc.disable()
    try:
        drafter = remote(target, trees if is_tree else LOOKUP)
        process = drafter._process
        assert process.is_alive()
        del drafter
        process.join(30)
        assert not process.is_alive()
    finally:
        gc.enable()


def test_an_interrupted_question_has_no_late_answer(target, monkeypatch):
    def interrupted(transport):
        raise KeyboardInterrupt

    drafter = remote(target, LOOKUP)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Transport, "receive", interrupted)
        drafter.num_uniforms(3)
    with pytest.raises(WorkerLost):
        drafter.num_uniforms(3)


class Learning(Asleep):
    """A drafter that learns from target distributions."""

    def learn(self, sequences):
        pass


BORROWER = partial(LayerSkip, layers=None, skip_attention=None, skip_mlp=None, exit_after=1)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (partial(PromptLookup, max_ngram=0, min_ngram=1, match="last"), "drafter.max_ngram is 0; allowed: "),
        (BORROWER, "drafter is 'LayerSkip', which needs the target itself"),
        (
            Learning,
            "drafter is 'Learning', whose learn is not called in another process; allowed: ",
        ),
    ],
    ids=["option", "borrower", "learner"],
)
def test_what_the_drafter_says_is_said_here(target, factory, message):
    with pytest.raises(ValueError, match=rf"^{message}"):
        remote(target, factory)


@pytest.mark.parametrize(
    "options", [{"latency_ms": -1}, {"timeout_s": 0}, {"megabits_per_second": 0}, {"when_lost": "hope"}]
)
def test_a_wrong_setting_is_refused_before_a_process_begins(options):
    (key,) = options
    with pytest.raises(ValueError, match=rf"^{key} is .*; allowed: "):
        remote(None, None, **options)


# Peers by address


@contextlib.contextmanager
def served(target, factory, secret=b""):
    """Address of a worker in a thread, and the lines that it tells."""
    lines = []
    with listen("127.0.0.1", 0, secret=secret) as listening:
        arguments = {"secret": secret, "tell": lines.append}
        thread = Thread(target=serve, args=(listening, factory, target.tokenizer), kwargs=arguments, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", lines
        listening.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def delayed(address, seconds):
    """Address of a relay that passes bytes on in both directions, each after a delay."""

    def relay(source, sink):
        with contextlib.suppress(OSError):
            while some := source.recv(2**16):
                time.sleep(seconds)
                sink.sendall(some)
            sink.shutdown(socket.SHUT_WR)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                near, _ = listening.accept()
                far = socket.create_connection((address.split(":")[0], int(address.split(":")[1])))
                for pair in ((near, far), (far, near)):
                    Thread(target=relay, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.slow
def test_a_drafter_at_an_address_is_the_drafter_itself(target, small, monkeypatch):
    monkeypatch.setenv("OUTRIDER_SECRET", "a secret of the two")
    trees = partial(TransformerTree, model=small.keywords["model"], branching=[2, 2], children="iid")
    for factory in (small, trees):
        with served(target, factory, b"a secret of the two") as (address, _), delayed(address, 0.002) as relayed:
            away, here = remote(target, None, address=relayed), factory(target=target)
            got, expected = generated(target, away, SAMPLED), generated(target, here, SAMPLED)
            assert got.tokens == expected.tokens and got.tally.counts() == expected.tally.counts()
            away._end()


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ("", b"their secret is long", "only one of the two processes has a secret: set OUTRIDER_SECRET"),
        ("our secret is long", b"", "only one of the two processes has a secret: set OUTRIDER_SECRET"),
        ("our secret is long", b"their secret is long", "the two processes have different secrets"),
        ("short", b"short", "OUTRIDER_SECRET is too short; allowed: at least 16 characters"),
    ],
)
def test_another_secret_is_refused_in_one_line(target, monkeypatch, ours, theirs, message):
    monkeypatch.setenv("OUTRIDER_SECRET", ours)
    with served(target, LOOKUP, theirs) as (address, lines):
        with pytest.raises((ValueError, OSError), match=message) as error:
            remote(target, None, address=address, timeout_s=5)
        assert "\n" not in str(error.value)
    assert not any("secret is long" in line for line in [*lines, str(error.value)])


def test_other_facts_end_in_one_line_and_the_worker_serves_on(target, monkeypatch):
    monkeypatch.delenv("OUTRIDER_SECRET", raising=False)
    broken = partial(PromptLookup, max_ngram=0, min_ngram=1, match="last")
    with served(target, LOOKUP) as (address, lines):
        larger = replace(target, vocabulary_size=10**6)
        with pytest.raises(ValueError, match="the target's vocabulary_size is 1000000; allowed: at most"):
            remote(larger, None, address=address)
        digests = iter(["other", "own"])
        monkeypatch.setattr(peers, "digest_of", lambda tokenizer: next(digests))
        with pytest.raises(ValueError, match="the target's tokenizer is 'other'; allowed: own, that of the worker"):
            remote(target, None, address=address)
        monkeypatch.undo()
        with contextlib.suppress(OSError), socket.create_connection(address.split(":")) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(2**16):
                pass
        drafter = remote(target, None, address=address)
        assert generated(target, drafter).tokens == plain(target)
        drafter._end()
    assert any("allowed: at most 65536" in line for line in lines)
    with served(target, broken) as (address, _), pytest.raises(ValueError, match=r"^drafter.max_ngram is 0; allowed: "):
        remote(target, None, address=address)
    with pytest.raises(ValueError, match=r"address is '127.0.0.1:\d+', which cannot be reached"):
        remote(target, None, address=address)
    with pytest.raises(ValueError, match="address is 'nowhere'; allowed: HOST:PORT"):
        remote(target, None, address="nowhere")
    with pytest.raises(ValueError, match=r"address is 'a..b:7000', which cannot be reached"):
        remote(target, None, address="a..b:7000")
    with pytest.raises(ValueError, match=r"host is '1::2::3', which is none"):
        listen("1::2::3", 0, secret=b"a secret of the two")
    with pytest.raises(ValueError, match=r"host is '0.0.0.0'; allowed: 127.0.0.1, or any address with a secret"):
        listen("0.0.0.0", 0, secret=b"")
    with listen("127.0.0.1", 0, secret=b"") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"port is {port}, which cannot be used"):
            listen("127.0.0.1", port, secret=b"")


def test_a_worker_builds_its_drafter_before_it_serves(target, small, tmp_path):
    t5 = str(save_tiny(tmp_path / "t5", "t5"))
    for factory in (small, partial(small, model=load_draft_model(path=t5, dtype="float32", attention="sdpa"))):
        peers.check_drafter_of(factory, target.tokenizer)
    trained = partial(Peagle, path=str(save_tiny_peagle(tmp_path, target)), layer_numbers=None)
    broken = partial(PromptLookup, max_ngram=0, min_ngram=1, match="last")
    for factory, message in (
        (broken, "drafter.max_ngram is 0; allowed: "),
        (BORROWER, "drafter is 'LayerSkip', which needs the target itself"),
        (trained, "drafter is 'Peagle', which is trained for one target and reads its states"),
    ):
        with pytest.raises(ValueError, match=rf"^{message}"):
            peers.check_drafter_of(factory, target.tokenizer)


def test_a_worker_that_serves_another_target_is_named(target, monkeypatch):
    monkeypatch.delenv("OUTRIDER_SECRET", raising=False)
    monkeypatch.setattr(peers, "SECONDS_TO_GREET", 0.2)
    with served(target, LOOKUP) as (address, _):
        first = remote(target, None, address=address)
        with pytest.raises(ValueError, match=r"address is '.*', which does not answer .* serves another target"):
            remote(target, None, address=address)
        assert generated(target, first).tokens == plain(target)
        first._end()


# Best draft length


@pytest.mark.parametrize("alpha", [0.3, 0.7, 0.95])
@pytest.mark.parametrize(("c", "round_trip", "per_token"), [(0.1, 0.0, 0.0), (0.1, 2.0, 0.05), (0.02, 0.5, 0.4)])
def test_the_best_gamma_over_a_link_is_the_closed_form_rounded(alpha, c, round_trip, per_token):
    """Maximum of (1 - alpha^u) / (1 + (u - 1) c') over real u = gamma + 1, by Lambert's W."""
    over = cost_over_link(c, round_trip=round_trip, per_token=per_token)
    rate = -torch.tensor(alpha).log().item()
    shift = 1 + rate * (1 - over) / over
    real = (-lambertw(-torch.tensor(-shift).exp().item(), -1).real - shift) / rate - 1
    assert abs(optimal_gamma(alpha, over, 200) - max(real, 0)) <= 1
