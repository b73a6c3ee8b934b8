"""Worker process that runs a drafter for another process, which has the target.

Requests hold committed tokens, outcomes of drafts, and uniforms. Answers hold drafts with the exact distributions that
they were drawn from.
"""

import contextlib
import multiprocessing
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.drafter import Drafter, learns, most_nodes
from framework.core.option_error import OptionError, UnreadableError, options_under
from framework.core.sampling import Sampling
from framework.core.sequences import Conditioned, Sequences
from framework.models.target import Target
from framework.remote.serialization import MalformedMessage, as_json, expect, from_json, packed_draft, ragged, whole
from framework.remote.transport import Link, Transport, WorkerLost

SECONDS_TO_LOAD = 600.0
WITHOUT_STATES = "one that drafts without the target, such as small_transformer, ngram or prompt_lookup"
LEARNS = ("one that does not learn", "whose learn is not called in another process")
SECONDS_TO_BE_ASKED = 86400.0  # a day: the worker waits for requests practically without limit
MOST_GAMMA = 10_000
MOST_COMMITTED = 2**27  # tokens of all rows


class Kind(IntEnum):
    """Kind of a message."""

    SIZES = 0
    BEGIN = 1
    PROPOSE = 2
    FACTS = 3
    DRAFT = 4
    ERROR = 5
    DONE = 6
    HELLO = 7


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

    @classmethod
    def from_json(cls, facts: Any, tokenizer: PreTrainedTokenizerBase) -> "TargetFacts":
        """Facts from `as_json_facts`, sent by another machine.

        Raises:
            MalformedMessage: a fact is missing or has another type.
        """
        facts = facts if isinstance(facts, dict) else {}
        start, chunk = facts.get("text_start"), facts.get("prefill_chunk")
        numbers = [facts.get("vocabulary_size"), facts.get("context"), *([] if chunk is None else [chunk])]
        if (
            not all(type(number) is int and 0 < number < 2**31 for number in numbers)
            or not isinstance(start, list)
            or not all(type(token) is int and 0 <= token < numbers[0] for token in start)
            or not isinstance(facts.get("fingerprint"), str)
        ):
            raise MalformedMessage("its facts about the target are incomplete")
        return cls(tokenizer, numbers[0], facts["fingerprint"], numbers[1], start, chunk)

    def as_json_facts(self) -> dict[str, Any]:
        """All facts except the tokenizer."""
        return {name: value for name, value in vars(self).items() if name != "tokenizer"}


class _Elsewhere(Exception):
    """A drafter uses a part of the target that is in the other process."""

    def __init__(self, allowed: str, problem: str):
        self.allowed, self.problem = allowed, problem
        super().__init__(problem)


class _AbsentModel:
    """Placeholder of the target's model in the worker; only its facts can be read."""

    def __init__(self, facts: TargetFacts):
        self.context, self.text_start, self.device = facts.context, facts.text_start, torch.device("cpu")
        self.prefill_chunk, self.compile_prefill = facts.prefill_chunk, False

    def __getattr__(self, name: str) -> Any:
        raise _Elsewhere(
            WITHOUT_STATES,
            f"which needs the target itself (its {name}), which is in another process",
        )


def start_worker(
    factory: Callable[..., Drafter], target: Target, *, timeout: float, link: Link
) -> tuple[BaseProcess, Transport, SamplingScheme, Shape]:
    """Start a process on this machine that runs a drafter.

    Args:
        factory: builds the drafter by `factory(target=...)`; must be picklable, as factories from a yaml are.
        target: the target; the worker gets only its `TargetFacts`.
        timeout: seconds that the worker may be silent after loading.
        link: simulated link to the worker.

    Returns:
        the process; this end of the transport; the drafter's sampling scheme; its shape.

    Raises:
        ValueError, OSError: the drafter cannot be built, or learns; the message names the yaml key.
        WorkerLost: the process ends, or does not become ready within SECONDS_TO_LOAD.
    """
    here, there = socket.socketpair()
    context = multiprocessing.get_context("forkserver")
    # The server imports the libraries once for all workers; the second module brings most of them.
    context.set_forkserver_preload([__name__, "framework.models.pretrained"])
    arguments = (there, factory, TargetFacts.of(target), torch.get_num_threads())
    process = context.Process(target=_run, args=arguments, daemon=True)
    try:
        with there:  # left open here, it would keep the connection open after the end of the process
            process.start()
        transport = Transport(here, timeout=SECONDS_TO_LOAD, link=link)
        try:
            kind, arrays = transport.receive()
        except WorkerLost as error:
            must = "a script must start it under `if __name__ == '__main__':`"
            raise WorkerLost(f"it did not become ready, {error}; {must}") from error
        if kind == Kind.ERROR:
            raise error_of(arrays)
        scheme, shape = declarations(arrays)
    except BaseException:  # otherwise the process would keep running unused
        here.close()
        if process.pid is not None:
            process.kill()
        raise
    transport.timeout = timeout
    transport.sent = transport.received = 0
    return process, transport, scheme, shape


def declare(transport: Transport, drafter: Drafter) -> None:
    """Send the drafter's scheme and shape."""
    transport.send(Kind.FACTS, [as_json({"scheme": drafter.scheme.name, "shape": drafter.shape.name})])


def declarations(arrays: list[np.ndarray]) -> tuple[SamplingScheme, Shape]:
    """The scheme and shape that `declare` sent."""
    expect(arrays, (None,))
    facts = from_json(arrays[0])
    try:
        return SamplingScheme[facts["scheme"]], Shape[facts["shape"]]
    except (KeyError, TypeError) as error:
        raise MalformedMessage(f"its facts lack a scheme or a shape: {facts}") from error


def error_of(arrays: list[np.ndarray]) -> Exception:
    """Exception from the arrays of an ERROR message.

    Raises:
        MalformedMessage: the arrays hold no error.
    """
    expect(arrays, (1,), (None,))
    is_os_error, facts = bool(arrays[0][0]), from_json(arrays[1])
    if isinstance(facts, list) and len(facts) == 4:
        return (UnreadableError if is_os_error else OptionError)(str(facts[0]), facts[1], *map(str, facts[2:]))
    return OSError(str(facts)) if is_os_error else ValueError(str(facts))


def _run(connected: socket.socket, factory: Callable[..., Drafter], facts: TargetFacts, threads: int) -> None:
    torch.set_num_threads(threads)
    transport = Transport(connected, timeout=SECONDS_TO_BE_ASKED)
    with contextlib.suppress(WorkerLost):  # the other process is gone
        try:
            drafter = built(factory, facts)
        except Exception as error:  # of any kind; raised in the other process
            report(transport, error, name_of(factory))
        else:
            declare(transport, drafter)
            answer_requests(transport, Worker(drafter, facts.vocabulary_size))


def built(factory: Callable[..., Drafter], facts: TargetFacts) -> Drafter:
    """Build the drafter for a target of which only these facts are here.

    Raises:
        ValueError, OSError: it cannot be built, needs the target itself, or learns.
        Exception: of any other kind that its construction raises.
    """
    model: Any = _AbsentModel(facts)
    try:
        with options_under("drafter"):
            drafter = factory(target=Target(model, facts.tokenizer, facts.vocabulary_size, facts.fingerprint))
    except _Elsewhere as error:
        raise OptionError("drafter", name_of(factory), error.allowed, error.problem) from error
    if learns(drafter):
        raise OptionError("drafter", type(drafter).__name__, *LEARNS)
    return drafter


def name_of(factory: Callable[..., Drafter]) -> str:
    """Name of the drafter's class, for errors."""
    return getattr(factory, "func", factory).__name__


def report(transport: Transport, failure: Exception, drafter: str) -> None:
    """Send an error, which `error_of` raises anew in the other process; `drafter` is the class that it names."""
    facts: Any = str(failure)
    if isinstance(failure, OptionError):
        facts = [failure.option, failure.given, failure.allowed, failure.problem]
    elif isinstance(failure, _Elsewhere):
        facts = ["drafter", drafter, failure.allowed, failure.problem]
    elif not isinstance(failure, (ValueError, OSError)):
        facts = ["drafter", drafter, "one that runs", f"which ended with {type(failure).__name__}: {failure}"]
    transport.send(Kind.ERROR, [np.array([isinstance(failure, OSError)], np.uint8), as_json(facts)])


def answer_requests(transport: Transport, worker: "Worker") -> str:
    """Answer requests until a message cannot be one; returns its fault.

    Raises:
        WorkerLost: the other process is gone.
    """
    while True:
        try:
            kind, arrays = transport.receive()
            with torch.no_grad(), options_under("drafter"):
                answer = worker.answer(kind, arrays)
            transport.send(*answer)
        except WorkerLost:
            raise
        except MalformedMessage as error:
            fault = f"a message to or from the drafter's process is malformed: {error}"
            report(transport, ValueError(fault), "")
            return fault
        except Exception as error:
            report(transport, error, worker.name)


class Worker:
    """The drafter with the worker's own copy of the sequences."""

    def __init__(self, drafter: Drafter, vocabulary_size: int):
        self._drafter, self._vocabulary_size, self.name = drafter, vocabulary_size, type(drafter).__name__
        self._sequences: Sequences | None = None

    def answer(self, kind: int, arrays: list[np.ndarray]) -> tuple[Kind, list[np.ndarray]]:
        """Answer to a request.

        Raises:
            MalformedMessage: the request's arrays cannot be one, or it comes before its time.
        """
        if kind == Kind.SIZES:
            expect(arrays, (1,))
            gamma = int(whole(arrays[0], "gamma", 0, MOST_GAMMA)[0])
            numbers = self._drafter.num_uniforms(gamma), most_nodes(self._drafter, gamma)
            return Kind.FACTS, [np.array(numbers, np.int32)]
        if kind == Kind.BEGIN:
            self._begin(arrays)
            return Kind.DONE, []
        if kind != Kind.PROPOSE or self._sequences is None:
            raise MalformedMessage(f"kind {kind} is no request, or comes before the prompts")
        return Kind.DRAFT, packed_draft(self._propose(self._sequences, arrays))

    def _begin(self, arrays: list[np.ndarray]) -> None:
        expect(arrays, (4,), (1,), (None,), (None,), (None,), (None,))
        settings, width, *texts_and_sources = arrays
        temperature, top_k, top_p, min_p = settings.tolist()
        texts = ragged(*texts_and_sources[:2], vocabulary_size=self._vocabulary_size)
        sources = ragged(*texts_and_sources[2:], vocabulary_size=self._vocabulary_size)
        if not texts or not all(texts) or len(sources) not in (0, len(texts)):
            raise MalformedMessage("a text is empty, or the numbers of texts and sources differ")
        num_tokens = int(
            whole(width, "the number of tokens per row", max(map(len, texts)), MOST_COMMITTED // len(texts))[0]
        )
        prompts = [Conditioned(*pair) for pair in zip(sources, texts, strict=True)] if sources else texts
        self._sequences = Sequences.from_prompts(prompts, width=num_tokens, device=torch.device("cpu"))
        self._draft = Draft.empty(len(texts), torch.device("cpu"))
        nothing = torch.zeros(len(texts), dtype=torch.int64)
        prefill = self._outcome(self._sequences, self._draft, nothing, self._sequences.pending, nothing + 1)
        self._drafter.begin(self._sequences, prefill, Sampling(temperature, int(top_k), top_p, min_p))

    def _propose(self, sequences: Sequences, arrays: list[np.ndarray]) -> Draft:
        rows = sequences.num_rows
        expect(arrays, (rows,), (1,), (rows, None), (rows,), (rows,), (None,), (rows,))
        active, sent_gamma, uniforms, sent_stop, committed, *texts = arrays
        gamma = int(whole(sent_gamma, "gamma", 1, MOST_GAMMA)[0])
        if uniforms.shape[1] != self._drafter.num_uniforms(gamma) or not ((uniforms >= 0) & (uniforms < 1)).all():
            raise MalformedMessage("its uniforms are too many, too few, or outside [0, 1)")
        new = ragged(*texts, vocabulary_size=self._vocabulary_size)
        if any(
            len(old) + len(text) > sequences.tokens.shape[1] for old, text in zip(sequences.texts, new, strict=True)
        ):
            raise MalformedMessage("its texts are longer than announced")
        if self._draft.num_nodes:
            stop = torch.from_numpy(whole(sent_stop, "stop", 0, self._draft.num_nodes))
            counts = whole(committed, "the number of committed tokens", 0, self._draft.num_nodes + 1).tolist()
            if any(count > len(text) for count, text in zip(counts, new, strict=True)):
                raise MalformedMessage("its texts are shorter than the committed tokens")
            self._commit(sequences, self._draft, stop, [*map(_first, new, counts)])
            new = [tokens[count:] for tokens, count in zip(new, counts, strict=True)]
        nothing = Draft.empty(rows, torch.device("cpu"))
        for place in range(max(map(len, new))):  # rounds without a draft
            self._commit(
                sequences, nothing, torch.zeros(rows, dtype=torch.int64), [text[place : place + 1] for text in new]
            )
        sequences.active = torch.from_numpy(active.astype(bool))
        self._draft = self._drafter.propose(sequences, gamma, torch.from_numpy(uniforms.copy()))
        return self._draft

    def _commit(self, sequences: Sequences, draft: Draft, stop: Tensor, new: list[list[int]]) -> None:
        """Commit the tokens of one round and let the drafter observe the outcome."""
        counts = torch.tensor([len(each) for each in new])
        tokens = torch.tensor([each + [0] * (draft.num_nodes + 1 - len(each)) for each in new])
        next_token = tokens.gather(1, (counts - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        sequences.commit(tokens, counts)
        self._drafter.observe(sequences, self._outcome(sequences, draft, stop, next_token, counts))

    def _outcome(
        self, sequences: Sequences, draft: Draft, stop: Tensor, next_token: Tensor, num_committed: Tensor
    ) -> Outcome:
        num_accepted = draft.tree.depth.gather(1, stop.unsqueeze(1)).squeeze(1)
        return Outcome(draft, stop, num_accepted, next_token, num_committed, sequences.active)


def _first(tokens: list[int], number: int) -> list[int]:
    return tokens[:number]
