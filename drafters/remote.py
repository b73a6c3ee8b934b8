"""Remote drafter: another process runs a drafter that needs no target states (Zheng et al., 2025, 2512.16273)."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.process import BaseProcess
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from framework.core.draft import Draft, Outcome, Shape
from framework.core.drafter import Drafter
from framework.core.fixed_buffer import FixedBuffer
from framework.core.option_error import OptionError
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.core.tree import Tree
from framework.models.target import Target
from framework.remote.peers import connect, secret_of_environment
from framework.remote.serialization import DraftFacts, MalformedMessage, expect, flat, small, unpacked_draft, whole
from framework.remote.transport import Link, Transport, WorkerLost
from framework.remote.worker import Kind, error_of, start_worker

WHEN_LOST = ("error", "plain")
MOST_UNIFORMS = 2**20  # per row

T = TypeVar("T")


class Remote:
    """Requests every draft from a worker process; each request carries the outcome of the previous draft.

    Draft distributions are sent without loss. They take few bytes if the drafter draws from few tokens (`top_k`) or
    from a quantised distribution (`bits`). Latency and bandwidth of a link are simulated by waiting. If the worker is
    lost, the generation fails or continues without drafts.

    Without an address, the worker is a Python process that imports the script that started it. A script that builds a
    Remote must therefore do its work under `if __name__ == "__main__":`.

    Attributes:
        bytes_down: bytes sent to the worker since the last `begin`, prompts included.
        bytes_up: bytes received from the worker since the last `begin`.
    """

    on_host = True

    def __init__(
        self,
        target: Target,
        *,
        drafter: Callable[..., Drafter],
        address: str | None = None,
        latency_ms: float,
        megabits_per_second: float | None,
        timeout_s: float,
        when_lost: str,
    ):
        """
        Args:
            target: the target; the worker gets only its tokenizer, sizes, fingerprint and start tokens.
            drafter: builds the drafter in the worker; not used with an address.
            address: HOST:PORT of a worker started by `experiments.serve_drafter`, whose own yaml builds the drafter;
                None: the worker is started here.
            latency_ms: one-way latency of the link in ms, added to the real transfer time.
            megabits_per_second: bandwidth of the link, each way; None: no limit.
            timeout_s: seconds without an answer after which the worker counts as lost.
            when_lost: "error" ends the generation, "plain" continues without drafts.

        Raises:
            ValueError, OSError: an option out of range, or an error of the drafter or of the worker at the address.
            WorkerLost: the worker ends, or does not start in time.
        """
        for key, value, least in (("latency_ms", latency_ms, 0), ("timeout_s", timeout_s, 0.001)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1e6:
                raise OptionError(key, value, f"a number from {least} to 1000000")
        speed = megabits_per_second
        if speed is not None and (isinstance(speed, bool) or not isinstance(speed, int | float) or not speed >= 1e-6):
            raise OptionError("megabits_per_second", speed, "a number >= 0.000001, or null for no limit")
        if when_lost not in WHEN_LOST:
            raise OptionError("when_lost", when_lost, f"{', '.join(WHEN_LOST)}")
        self._when_lost = when_lost
        link = Link(latency_ms / 1e3, float("inf") if speed is None else speed * 1e6 / 8)
        with _keys_named():
            self._process: BaseProcess | None = None
            if address is None:
                self._process, self._transport, self.scheme, self.shape = start_worker(
                    drafter, target, timeout=timeout_s, link=link
                )
            else:
                self._transport, self.scheme, self.shape = connect(
                    address, target, timeout=timeout_s, link=link, secret=secret_of_environment()
                )
        self._end = weakref.finalize(self, _close, self._transport, self._process)
        self._is_lost = False
        self._known_sizes: dict[int, tuple[int, int]] = {}  # by gamma: uniforms per row, most nodes
        self._tree: Tree | None = None  # of the last draft whose rows all had the same
        self._buffer = FixedBuffer()
        self._vocabulary_size = target.vocabulary_size

    def num_uniforms(self, gamma: int) -> int:
        return self._sizes(gamma)[0]

    def num_nodes(self, gamma: int) -> int:
        return self._sizes(gamma)[1]

    def _sizes(self, gamma: int) -> tuple[int, int]:
        if gamma not in self._known_sizes:
            sizes = self._ask(Kind.SIZES, [np.array([gamma], np.int32)], Kind.FACTS, _read_sizes)
            if sizes is None:
                return 0, gamma
            self._known_sizes[gamma] = sizes
        return self._known_sizes[gamma]

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._transport.sent = self._transport.received = 0
        shape, device = (2, sequences.num_rows), sequences.tokens.device
        self._last = self._buffer.zeros(shape, dtype=torch.int64, device=device)  # stop, num_committed
        self._known = [len(text) for text in sequences.texts]
        settings = [sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p]
        sources = sequences.sources if sequences.source is not None else []
        self._ask(
            Kind.BEGIN,
            [
                np.array(settings, np.float64),
                np.array([sequences.tokens.shape[1]], np.int32),
                *flat(sequences.texts),
                *flat(sources),
            ],
            Kind.DONE,
            expect,
        )

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        new = [text[known:] for text, known in zip(sequences.texts, self._known, strict=True)]
        self._known = [len(text) for text in sequences.texts]
        active, stop, committed = torch.cat([sequences.active.unsqueeze(0), self._last]).cpu().numpy()
        committed = np.minimum(committed, [len(text) for text in new])  # tokens after a stop string are not sent
        question: list[np.ndarray] = [
            active.astype(np.uint8),
            np.array([gamma], np.int32),
            uniforms.cpu().double().numpy(),
            small(stop),
            small(committed),
            *flat(new),
        ]
        rows, device = sequences.num_rows, sequences.tokens.device
        facts = DraftFacts(self.scheme, self.shape, rows, gamma, self.num_nodes(gamma), self._vocabulary_size)
        draft = self._ask(Kind.PROPOSE, question, Kind.DRAFT, partial(unpacked_draft, facts=facts))
        return Draft.empty(rows, device) if draft is None else self._with_tree(draft.to(device))

    def _with_tree(self, draft: Draft) -> Draft:
        """The draft with a tree that later rounds can share, if it is a tree and all rows have the same."""
        parents = draft.parent
        if draft.shape is Shape.CHAIN or not (parents == parents[:1]).all():
            return draft
        if self._tree is None or not torch.equal(self._tree.parent, parents):
            self._tree = Tree.shared(parents[0].tolist(), len(parents), parents.device)
        return replace(draft, parent=self._tree.parent, known_tree=self._tree)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        if outcome.draft.num_nodes:
            # A copy: the outcome is lent, and the next request may be rounds away.
            self._last.copy_(torch.stack([outcome.stop, outcome.num_committed]))

    def follow(self, sequences: Sequences, outcome: Outcome) -> None:
        pass  # the next request has the new tokens

    @property
    def bytes_down(self) -> int:
        return self._transport.sent

    @property
    def bytes_up(self) -> int:
        return self._transport.received

    def _ask(
        self, kind: Kind, arrays: list[np.ndarray], answered: Kind, read: Callable[[list[np.ndarray]], T]
    ) -> T | None:
        """The worker's answer, of the kind `answered`; None: the worker is lost, and `when_lost` is "plain".

        Raises:
            WorkerLost: the worker is lost or its answer is malformed, and `when_lost` is "error".
            ValueError, OSError: an error of the drafter.
        """
        if self._is_lost:
            return None
        try:
            with _keys_named():
                self._transport.send(kind, arrays)
                got, answer = self._transport.receive()
                if got == answered:
                    return read(answer)
                if got != Kind.ERROR:
                    raise MalformedMessage(f"kind {got} is no answer to {kind.name}")
                failure = error_of(answer)
        except BaseException as error:  # an interrupt as well: a late answer must not be read as the next one
            self._end()
            self._is_lost = isinstance(error, WorkerLost) and self._when_lost == "plain"
            if self._is_lost:
                return None
            raise
        raise failure


def _close(transport: Transport, process: BaseProcess | None) -> None:
    """End a connection, and the worker if it was started here."""
    transport.close()
    if process is not None:
        process.kill()


def _read_sizes(arrays: list[np.ndarray]) -> tuple[int, int]:
    expect(arrays, (2,))
    num_uniforms, num_nodes = whole(arrays[0], "the number of uniforms or nodes", 0, MOST_UNIFORMS).tolist()
    return num_uniforms, num_nodes


@contextmanager
def _keys_named() -> Iterator[None]:
    """Add the options to change to the error of a lost worker, or of one that sends malformed messages."""
    try:
        yield
    except (WorkerLost, MalformedMessage) as error:
        fault = f"a message is malformed: {error}" if isinstance(error, MalformedMessage) else error
        raise WorkerLost(
            f"the drafter's process is lost ({fault}); drafter.when_lost=plain continues without it, and "
            "drafter.timeout_s limits how long it may be silent"
        ) from error
