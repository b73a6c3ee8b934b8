"""A process of its own that runs a drafter for another process, which has the target.

Down go committed tokens, what became of drafts, and uniforms; up come drafts, with the very laws they were drawn from.
"""

import contextlib
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from framework.channel import DOWN, UP, Channel, Link, PeerLost
from framework.draft import Draft, Law, Outcome, Shape
from framework.drafter import Drafter, keys_as, learns
from framework.packing import packed_draft, ragged
from framework.sampling import Sampling
from framework.sequences import Conditioned, Sequences
from framework.target import Target

SECONDS_TO_LOAD = 600.0
TIME_TO_MEET = timedelta(seconds=60)
LAWS_ARE_ELSEWHERE = "it learns from the target's laws, which are in another process; allowed: one that does not learn"
SECONDS_TO_BE_ASKED = 86400.0  # between questions the other process takes all the time it wants


class Kind(IntEnum):
    """What a message says."""

    NUM_UNIFORMS = 0
    BEGIN = 1
    PROPOSE = 2
    FACTS = 3
    DRAFT = 4
    ERROR = 5
    DONE = 6


@dataclass(frozen=True)
class TargetFacts:
    """What a drafter may know of a target that is somewhere else."""

    tokenizer: PreTrainedTokenizerBase
    vocabulary_size: int
    fingerprint: str
    context: int
    text_start: list[int]

    @classmethod
    def of(cls, target: Target) -> "TargetFacts":
        model = target.model
        return cls(target.tokenizer, target.vocabulary_size, target.fingerprint, model.context, model.text_start)


class _Elsewhere(Exception):
    """A drafter asks for what is in the other process; the message names the yaml key as it is there."""


class _AbsentModel:
    """Stands where the target's model would be."""

    def __init__(self, facts: TargetFacts):
        self.context, self.text_start, self.device = facts.context, facts.text_start, torch.device("cpu")

    def __getattr__(self, name: str) -> Any:
        raise _Elsewhere(
            f"drafter.drafter needs the target itself (its {name}), which is in another process; allowed: one that "
            "drafts without it, such as small_transformer, ngram or prompt_lookup"
        )


def start_peer(
    factory: Callable[..., Drafter], target: Target, *, timeout: float, link: Link
) -> tuple[BaseProcess, Channel, Law]:
    """Run a drafter in a process of its own on this machine.

    Args:
        factory: builds it: `factory(target=...)`; must be picklable, as what a yaml describes is.
        target: what it drafts for, of which it learns the facts only.
        timeout: seconds that it may be silent, once it has loaded.
        link: what is between it and us.

    Returns:
        the process; our end of the channel; how the drafter's tokens are drawn.

    Raises:
        ValueError, OSError: the drafter cannot be built, or is none of chains; the message names the yaml key.
        PeerLost: the process ends, or does not get ready.
    """
    store = dist.TCPStore("127.0.0.1", 0, 2, True, TIME_TO_MEET, wait_for_workers=False)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # the libraries are read once, for all peers there will be
    arguments = (store.port, factory, TargetFacts.of(target), torch.get_num_threads())
    process = context.Process(target=_run, args=arguments, daemon=True)
    process.start()
    give_up = time.monotonic() + SECONDS_TO_LOAD
    try:
        while not store.check(["ready"]):
            if not process.is_alive() or time.monotonic() > give_up:
                raise PeerLost("it ended before it was ready; a script starts it under `if __name__ == '__main__':`")
            time.sleep(0.005)
        channel = Channel(store, rank=DOWN, timeout=timeout, link=link)
        kind, arrays = channel.receive()
        if kind == Kind.ERROR:
            raise error_of(arrays)
    except BaseException:  # nobody would ask it, nor end it
        process.kill()
        raise
    channel.sent = channel.received = 0
    return process, channel, Law(int(arrays[0][0]))


def error_of(arrays: list[np.ndarray]) -> Exception:
    """What an ERROR says."""
    is_os_error, text = int(arrays[0][0]), arrays[1].tobytes().decode()
    return OSError(text) if is_os_error else ValueError(text)


def _run(port: int, factory: Callable[..., Drafter], facts: TargetFacts, threads: int) -> None:
    torch.set_num_threads(threads)
    store = dist.TCPStore("127.0.0.1", port, 2, False, TIME_TO_MEET, wait_for_workers=False)
    failure: Exception | None = None
    try:
        model: Any = _AbsentModel(facts)
        with keys_as("drafter.drafter"):
            drafter = factory(target=Target(model, facts.tokenizer, facts.vocabulary_size, facts.fingerprint))
        if drafter.shape is not Shape.CHAIN:
            raise ValueError(f"drafter.drafter drafts {drafter.shape.name}; allowed: a CHAIN")
        if learns(drafter):
            raise ValueError(f"drafter.drafter is a {type(drafter).__name__}: {LAWS_ARE_ELSEWHERE}")
    except Exception as error:  # whatever it is, it is to be told over there
        failure = error
    store.set("ready", "yes")
    with contextlib.suppress(PeerLost):  # who asked is gone, and nobody is left to be told
        channel = Channel(store, rank=UP, timeout=SECONDS_TO_BE_ASKED)
        if failure is not None:
            _tell(channel, failure)
            return
        channel.send(Kind.FACTS, [np.array([drafter.law.value], np.uint8)])
        _serve(channel, _Peer(drafter))


def _tell(channel: Channel, failure: Exception) -> None:
    is_told = isinstance(failure, (ValueError, OSError, _Elsewhere))
    words = str(failure) if is_told else f"drafter.drafter: {type(failure).__name__}: {failure}"
    kind = np.array([isinstance(failure, OSError)], np.uint8)
    channel.send(Kind.ERROR, [kind, np.frombuffer(words.encode(), np.uint8)])


def _serve(channel: Channel, peer: "_Peer") -> None:
    """Answer until nobody asks."""
    while True:
        kind, arrays = channel.receive()
        try:
            with torch.no_grad(), keys_as("drafter.drafter"):
                answer = peer.answer(Kind(kind), arrays)
        except Exception as error:
            _tell(channel, error)
        else:
            channel.send(*answer)


class _Peer:
    """The drafter with the sequences as they are here."""

    def __init__(self, drafter: Drafter):
        self._drafter = drafter

    def answer(self, kind: Kind, arrays: list[np.ndarray]) -> tuple[Kind, list[np.ndarray]]:
        if kind is Kind.NUM_UNIFORMS:
            return Kind.FACTS, [np.array([self._drafter.num_uniforms(int(arrays[0][0]))], np.int32)]
        if kind is Kind.BEGIN:
            self._begin(arrays)
            return Kind.DONE, []
        return Kind.DRAFT, packed_draft(self._propose(arrays))

    def _begin(self, arrays: list[np.ndarray]) -> None:
        settings, width, *texts_and_sources = arrays
        temperature, top_k, top_p, min_p = settings.tolist()
        texts, sources = ragged(*texts_and_sources[:2]), ragged(*texts_and_sources[2:])
        prompts = [Conditioned(*pair) for pair in zip(sources, texts, strict=True)] if sources else texts
        self._sequences = Sequences.from_prompts(prompts, width=int(width[0]), device=torch.device("cpu"))
        self._draft = Draft.empty(len(texts), torch.device("cpu"))
        nothing = torch.zeros(len(texts), dtype=torch.int64)
        prefill = self._outcome(self._draft, nothing, self._sequences.pending, nothing + 1)
        self._drafter.begin(self._sequences, prefill, Sampling(temperature, int(top_k), top_p, min_p))

    def _propose(self, arrays: list[np.ndarray]) -> Draft:
        active, gamma, uniforms, stop, committed, *texts = arrays
        new = ragged(*texts)
        if self._draft.num_nodes:
            counts = committed.tolist()
            self._commit(self._draft, torch.from_numpy(stop.astype(np.int64)), [*map(_first, new, counts)])
            new = [tokens[count:] for tokens, count in zip(new, counts, strict=True)]
        nothing = Draft.empty(len(active), torch.device("cpu"))
        for place in range(max(map(len, new))):  # rounds without a draft
            self._commit(nothing, torch.zeros(len(new), dtype=torch.int64), [text[place : place + 1] for text in new])
        self._sequences.active = torch.from_numpy(active.astype(bool))
        self._draft = self._drafter.propose(self._sequences, int(gamma[0]), torch.from_numpy(uniforms.copy()))
        return self._draft

    def _commit(self, draft: Draft, stop: Tensor, new: list[list[int]]) -> None:
        """One round: where acceptance stopped, and what was committed."""
        counts = torch.tensor([len(each) for each in new])
        tokens = torch.tensor([each + [0] * (draft.num_nodes + 1 - len(each)) for each in new])
        next_token = tokens.gather(1, (counts - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        self._sequences.commit(tokens, counts)
        self._drafter.observe(self._sequences, self._outcome(draft, stop, next_token, counts))

    def _outcome(self, draft: Draft, stop: Tensor, next_token: Tensor, num_committed: Tensor) -> Outcome:
        absent: Any = _AbsentRows()
        return Outcome(draft, absent, stop, stop, next_token, num_committed, self._sequences.active, absent)


def _first(tokens: list[int], number: int) -> list[int]:
    return tokens[:number]


class _AbsentRows:
    """Stands where the target's laws would be."""

    def __getattr__(self, name: str) -> Any:
        raise _Elsewhere(f"drafter.drafter: {LAWS_ARE_ELSEWHERE}")
