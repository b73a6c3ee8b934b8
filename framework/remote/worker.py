"""Worker process that runs a drafter for another process, which has the target.

Requests hold committed tokens, outcomes of drafts, and uniforms. Answers hold drafts with the exact distributions that
they were drawn from.
"""

import contextlib
import json
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

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.drafter import Drafter, learns
from framework.core.option_error import OptionError, UnreadableError, options_under
from framework.core.sampling import Sampling
from framework.core.sequences import Conditioned, Sequences
from framework.models.target import Target
from framework.remote.serialization import packed_draft, ragged
from framework.remote.transport import DOWN, UP, Link, Transport, WorkerLost

SECONDS_TO_LOAD = 600.0
TIME_TO_MEET = timedelta(seconds=60)
LEARNS = ("one that does not learn", "whose learn is not called in another process")
SECONDS_TO_BE_ASKED = 86400.0  # a day: the worker waits for requests practically without limit


class Kind(IntEnum):
    """Kind of a message."""

    NUM_UNIFORMS = 0
    BEGIN = 1
    PROPOSE = 2
    FACTS = 3
    DRAFT = 4
    ERROR = 5
    DONE = 6


@dataclass(frozen=True)
class TargetFacts:
    """Facts of the target that a drafter in another process may use."""

    tokenizer: PreTrainedTokenizerBase
    vocabulary_size: int
    fingerprint: str
    context: int
    text_start: list[int]
    prefill_chunk: int | None

    @classmethod
    def of(cls, target: Target) -> "TargetFacts":
        model = target.model
        return cls(
            target.tokenizer,
            target.vocabulary_size,
            target.fingerprint,
            model.context,
            model.text_start,
            model.prefill_chunk,
        )


class _Elsewhere(Exception):
    """A drafter uses a part of the target that is in the other process."""

    def __init__(self, allowed: str, problem: str):
        self.allowed, self.problem = allowed, problem
        super().__init__(problem)


class _AbsentModel:
    """Placeholder of the target's model in the worker; only its facts can be read."""

    def __init__(self, facts: TargetFacts):
        self.context, self.text_start, self.device = facts.context, facts.text_start, torch.device("cpu")
        self.prefill_chunk = facts.prefill_chunk

    def __getattr__(self, name: str) -> Any:
        raise _Elsewhere(
            "one that drafts without it, such as small_transformer, ngram or prompt_lookup",
            f"which needs the target itself (its {name}), which is in another process",
        )


def start_worker(
    factory: Callable[..., Drafter], target: Target, *, timeout: float, link: Link
) -> tuple[BaseProcess, Transport, SamplingScheme]:
    """Start a process on this machine that runs a drafter.

    Args:
        factory: builds the drafter by `factory(target=...)`; must be picklable, as factories from a yaml are.
        target: the target; the worker gets only its `TargetFacts`.
        timeout: seconds that the worker may be silent after loading.
        link: simulated link to the worker.

    Returns:
        the process; this end of the transport; the drafter's sampling scheme.

    Raises:
        ValueError, OSError: the drafter cannot be built, does not draft a CHAIN, or learns; the message names the yaml
            key.
        WorkerLost: the process ends, or does not become ready within SECONDS_TO_LOAD.
    """
    store = dist.TCPStore("127.0.0.1", 0, 2, True, TIME_TO_MEET, wait_for_workers=False)
    context = multiprocessing.get_context("forkserver")
    # The server imports the libraries once for all workers; the second module brings most of them.
    context.set_forkserver_preload([__name__, "framework.models.pretrained"])
    arguments = (store.port, factory, TargetFacts.of(target), torch.get_num_threads())
    process = context.Process(target=_run, args=arguments, daemon=True)
    process.start()
    give_up = time.monotonic() + SECONDS_TO_LOAD
    try:
        while not store.check(["ready"]):
            if not process.is_alive() or time.monotonic() > give_up:
                raise WorkerLost("it did not become ready; a script must start it under `if __name__ == '__main__':`")
            time.sleep(0.005)
        transport = Transport(store, rank=DOWN, timeout=timeout, link=link)
        kind, arrays = transport.receive()
        if kind == Kind.ERROR:
            raise error_of(arrays)
    except BaseException:  # otherwise the process would keep running unused
        process.kill()
        raise
    transport.sent = transport.received = 0
    return process, transport, SamplingScheme(int(arrays[0][0]))


def error_of(arrays: list[np.ndarray]) -> Exception:
    """Exception from the arrays of an ERROR message."""
    is_os_error, facts = int(arrays[0][0]), json.loads(arrays[1].tobytes())
    if isinstance(facts, list):
        return (UnreadableError if is_os_error else OptionError)(*facts)
    return OSError(facts) if is_os_error else ValueError(facts)


def _run(port: int, factory: Callable[..., Drafter], facts: TargetFacts, threads: int) -> None:
    torch.set_num_threads(threads)
    store = dist.TCPStore("127.0.0.1", port, 2, False, TIME_TO_MEET, wait_for_workers=False)
    failure: Exception | None = None
    try:
        model: Any = _AbsentModel(facts)
        with options_under("drafter"):
            drafter = factory(target=Target(model, facts.tokenizer, facts.vocabulary_size, facts.fingerprint))
        if drafter.shape is not Shape.CHAIN:
            raise OptionError("drafter", type(drafter).__name__, "a CHAIN", f"which drafts {drafter.shape.name}")
        if learns(drafter):
            raise OptionError("drafter", type(drafter).__name__, *LEARNS)
    except Exception as error:  # of any kind; raised in the other process
        failure = error
    store.set("ready", "yes")
    with contextlib.suppress(WorkerLost):  # the other process is gone
        transport = Transport(store, rank=UP, timeout=SECONDS_TO_BE_ASKED)
        if failure is not None:
            _report(transport, failure, getattr(factory, "func", factory).__name__)
            return
        transport.send(Kind.FACTS, [np.array([drafter.scheme.value], np.uint8)])
        _serve(transport, _Worker(drafter))


def _report(transport: Transport, failure: Exception, drafter: str) -> None:
    facts: Any = str(failure)
    if isinstance(failure, OptionError):
        facts = [failure.option, failure.given, failure.allowed, failure.problem]
    elif isinstance(failure, _Elsewhere):
        facts = ["drafter", drafter, failure.allowed, failure.problem]
    elif not isinstance(failure, (ValueError, OSError)):
        facts = ["drafter", drafter, "one that runs", f"which ended with {type(failure).__name__}: {failure}"]
    kind = np.array([isinstance(failure, OSError)], np.uint8)
    transport.send(Kind.ERROR, [kind, np.frombuffer(json.dumps(facts, default=repr).encode(), np.uint8)])


def _serve(transport: Transport, worker: "_Worker") -> None:
    """Answer requests until the other process is lost."""
    while True:
        kind, arrays = transport.receive()
        try:
            with torch.no_grad(), options_under("drafter"):
                answer = worker.answer(Kind(kind), arrays)
        except Exception as error:
            _report(transport, error, worker.name)
        else:
            transport.send(*answer)


class _Worker:
    """The drafter with the worker's own copy of the sequences."""

    def __init__(self, drafter: Drafter):
        self._drafter, self.name = drafter, type(drafter).__name__

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
        """Commit the tokens of one round and let the drafter observe the outcome."""
        counts = torch.tensor([len(each) for each in new])
        tokens = torch.tensor([each + [0] * (draft.num_nodes + 1 - len(each)) for each in new])
        next_token = tokens.gather(1, (counts - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        self._sequences.commit(tokens, counts)
        self._drafter.observe(self._sequences, self._outcome(draft, stop, next_token, counts))

    def _outcome(self, draft: Draft, stop: Tensor, next_token: Tensor, num_committed: Tensor) -> Outcome:
        return Outcome(draft, stop, stop, next_token, num_committed, self._sequences.active)


def _first(tokens: list[int], number: int) -> list[int]:
    return tokens[:number]
