"""Drafter and target apart: another process runs any drafter of chains (Zheng et al., 2025, 2512.16273)."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from framework.channel import Link, PeerLost
from framework.draft import Draft, Outcome, Shape
from framework.drafter import Drafter
from framework.packing import flat, small, unpacked_draft
from framework.peer import Kind, error_of, start_peer
from framework.sampling import Sampling
from framework.sequences import Sequences
from framework.target import Target

WHEN_LOST = ("error", "plain")


class Remote:
    """Asks a peer process for every draft, and tells it with the next question what became of the last one.

    What the drafter draws from is sent as it is: few bytes where it draws from few tokens (`top_k`) and from a law that
    was rounded before (`bits`). A link's latency and bandwidth are waited for. A peer that is lost ends the
    generation with an error, or is done without.

    The peer is a Python process that imports the script it was started from: one that builds a Remote does its work
    under `if __name__ == "__main__":`.

    Attributes:
        bytes_down: sent to the peer since the last `begin`, its prompts included.
        bytes_up: received from it since then.
    """

    shape = Shape.CHAIN
    on_host = True

    def __init__(
        self,
        target: Target,
        *,
        drafter: Callable[..., Drafter],
        latency_ms: float,
        megabits_per_second: float | None,
        timeout_s: float,
        when_lost: str,
    ):
        """
        Args:
            target: what is drafted for; the peer learns its tokenizer and sizes only.
            drafter: builds who drafts there.
            latency_ms: of the link, one way, waited for beside what the messages really take.
            megabits_per_second: of the link; None is no limit.
            timeout_s: how long the peer may be silent before it counts as lost.
            when_lost: "error" ends the generation, "plain" goes on without drafts.

        Raises:
            ValueError, OSError: a setting outside its range, or what the drafter says; the message names the yaml key.
        """
        for key, value, least in (("latency_ms", latency_ms, 0), ("timeout_s", timeout_s, 0.001)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1e6:
                raise ValueError(f"drafter.{key} is {value!r}; allowed: a number from {least} to 1000000")
        speed = megabits_per_second
        if speed is not None and (isinstance(speed, bool) or not isinstance(speed, int | float) or not speed >= 1e-6):
            raise ValueError(
                f"drafter.megabits_per_second is {speed!r}; allowed: a number >= 0.000001, or null for no limit"
            )
        if when_lost not in WHEN_LOST:
            raise ValueError(f"drafter.when_lost is {when_lost!r}; allowed: {', '.join(WHEN_LOST)}")
        self._when_lost = when_lost
        link = Link(latency_ms / 1e3, float("inf") if speed is None else speed * 1e6 / 8)
        with _keys_named():
            self._process, self._channel, self.law = start_peer(drafter, target, timeout=timeout_s, link=link)
        weakref.finalize(self, self._process.kill)
        self._is_lost = False
        self._num_uniforms: dict[int, int] = {}

    def num_uniforms(self, gamma: int) -> int:
        if gamma not in self._num_uniforms:
            answer = self._ask(Kind.NUM_UNIFORMS, [np.array([gamma], np.int32)])
            if answer is None:
                return 0
            self._num_uniforms[gamma] = int(answer[0][0])
        return self._num_uniforms[gamma]

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._channel.sent = self._channel.received = 0
        self._stop, self._committed = (torch.zeros_like(sequences.lengths) for _ in range(2))
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
        )

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        new = [text[known:] for text, known in zip(sequences.texts, self._known, strict=True)]
        self._known = [len(text) for text in sequences.texts]
        question: list[np.ndarray] = [
            sequences.active.cpu().numpy().astype(np.uint8),
            np.array([gamma], np.int32),
            uniforms.cpu().double().numpy(),
            small(self._stop.cpu().numpy()),
            small(self._committed.cpu().numpy()),
            *flat(new),
        ]
        answer, device = self._ask(Kind.PROPOSE, question), sequences.tokens.device
        return Draft.empty(sequences.num_rows, device) if answer is None else unpacked_draft(answer).to(device)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        if outcome.draft.num_nodes:
            self._stop.copy_(outcome.stop)  # the outcome is lent, and the next question may be some rounds away
            self._committed.copy_(outcome.num_committed)

    @property
    def bytes_down(self) -> int:
        return self._channel.sent

    @property
    def bytes_up(self) -> int:
        return self._channel.received

    def _ask(self, kind: Kind, arrays: list[np.ndarray]) -> list[np.ndarray] | None:
        """The peer's answer; None where it is lost and done without.

        Raises:
            PeerLost: it is lost.
            ValueError, OSError: what the drafter says.
        """
        if self._is_lost:
            return None
        try:
            with _keys_named():
                self._channel.send(kind, arrays)
                answered, answer = self._channel.receive()
        except PeerLost:
            self._process.kill()  # it may only be slow, and nobody waits for it any more
            self._is_lost = self._when_lost == "plain"
            if self._is_lost:
                return None
            raise
        if answered == Kind.ERROR:
            raise error_of(answer)
        return answer


@contextmanager
def _keys_named() -> Iterator[None]:
    """Say what to change where the peer is lost."""
    try:
        yield
    except PeerLost as error:
        raise PeerLost(
            f"the drafter's process is lost ({error}); drafter.when_lost=plain goes on without it, and "
            "drafter.timeout_s says how long it may be silent"
        ) from error
