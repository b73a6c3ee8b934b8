"""A drafter that learns while it drafts, from the laws that verification has computed anyway (Liu et al., 2024)."""

import copy
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from framework.distillation import DIVERGENCES
from framework.draft import Draft, DraftedNode, Outcome
from framework.drafter import keys_as
from framework.lesson import Lesson, LessonsUnderway, Teachable
from framework.sampling import Sampling
from framework.sequences import Sequences
from framework.target import Target
from framework.whole_numbers import check_whole

MOST = 1_000_000_000  # of what is counted
LONGEST_STEP = 1.0  # norm that gradients are cut down to


class Online:
    """Another drafter, fitted to the target between rounds (Online Speculative Decoding, 2310.07177).

    Of every committed token it keeps the target's law, which verification had to compute. When enough have come, a few
    steps on texts drawn from the latest ones change the drafter. Drafts are verified with the very q they were drawn
    from, and nothing changes within a round: the output's law does not depend on what was learnt,
    as long as no seed is used twice.
    """

    def __init__(
        self,
        target: Target,
        *,
        drafter: Callable[..., Teachable],
        loss: str,
        every: int,
        steps: int,
        batch: int,
        buffer: int,
        window: int,
        learning_rate: float,
        seed: int,
    ):
        """
        Args:
            target: who teaches.
            drafter: builds what learns: a drafter that is `Teachable`.
            loss: a divergence of its laws from the target's at temperature 1, one of DIVERGENCES.
            every: committed tokens of all rows from one update to the next.
            steps: of an update; 0 learns nothing.
            batch: texts a step is taken on.
            buffer: the latest so many texts are kept, with the target's law of each new token: V numbers each.
            window: longest of these texts, in tokens; they lose their beginning.
            learning_rate: of AdamW.
            seed: of the choice among the texts.

        Raises:
            ValueError: a knob out of its range; a drafter that cannot be taught, reads only shorter texts than the
                window, or is in half precision; a target with an encoder.
        """
        least = {"every": 1, "steps": 0, "batch": 1, "buffer": 1, "window": 2, "seed": 0}
        given = {"every": every, "steps": steps, "batch": batch, "buffer": buffer, "window": window, "seed": seed}
        for key, value in given.items():
            check_whole(f"drafter.{key}", value, least=least[key], most=MOST)
        if not isinstance(learning_rate, float | int) or isinstance(learning_rate, bool) or not 0 < learning_rate <= 1:
            raise ValueError(f"drafter.learning_rate is {learning_rate!r}; allowed: a number in (0, 1]")
        if loss not in DIVERGENCES:
            raise ValueError(f"drafter.loss is {loss!r}; allowed: {', '.join(DIVERGENCES)}")
        if target.model.text_start:
            raise ValueError("drafter is online, which learns from texts alone; allowed: a target without an encoder")
        with keys_as("drafter.drafter"):
            inner = drafter(target=target)
        if not hasattr(inner, "logits_of"):
            raise ValueError(
                f"drafter.drafter is a {type(inner).__name__}, which cannot be taught; allowed: drafters with "
                "`logits_of`, such as SmallTransformer or Medusa"
            )
        if inner.longest_text < min(window, target.model.context):
            raise ValueError(
                f"drafter.window is {window}, and drafter.drafter reads texts of at most {inner.longest_text} tokens; "
                "allowed: at most as many"
            )
        parameters = list(inner.module.requires_grad_(True).parameters())
        if wrong := {each.dtype for each in parameters} - {torch.float32, torch.float64}:
            raise ValueError(
                f"drafter.drafter has weights in {wrong.pop()}, too coarse for small steps; allowed: float32, float64"
            )
        self.law, self.shape, self.remembers = inner.law, inner.shape, True
        if hasattr(inner, "num_nodes"):
            self.num_nodes = inner.num_nodes
        if hasattr(inner, "keep_drafting"):
            self.keep_drafting: Callable[[DraftedNode], Tensor] | None = None
        self._drafter = inner
        self._parameters = parameters
        self._optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
        self._loss = DIVERGENCES[loss]
        self._every, self._steps, self._batch, self._window = every, steps, batch, window
        self._random = Random(seed)
        self._lessons: deque[Lesson] = deque(maxlen=buffer)
        self._underway: LessonsUnderway | None = None
        self._new_tokens = 0  # since the last update, without those underway

    def num_uniforms(self, gamma: int) -> int:
        return self._drafter.num_uniforms(gamma)

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._keep_lessons()
        self._underway = None
        if hasattr(self, "keep_drafting"):
            self._drafter.keep_drafting = self.keep_drafting  # type: ignore[attr-defined]
        self._drafter.begin(sequences, prefill, sampling)
        underway = LessonsUnderway(sequences, window=self._window)
        underway.note(prefill)
        self._underway = underway

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        return self._drafter.propose(sequences, gamma, uniforms)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        self._drafter.observe(sequences, outcome)
        if self._underway is not None:
            self._underway.note(outcome)

    def learn(self, sequences: Sequences) -> None:
        """Take the steps of an update if enough was committed since the last one."""
        underway = self._underway.num_tokens if self._underway else 0
        if self._new_tokens + underway < self._every:
            return
        self._keep_lessons()
        self._new_tokens = 0
        with torch.enable_grad():
            for _ in range(self._steps):
                self._step(self._random.sample(list(self._lessons), min(self._batch, len(self._lessons))))
        self._drafter.refresh(sequences)

    def learnt(self) -> dict[str, Any]:
        self._keep_lessons()
        return copy.deepcopy(
            {"module": self._drafter.module.state_dict(), "optimizer": self._optimizer.state_dict()}
        ) | {"lessons": list(self._lessons), "new_tokens": self._new_tokens, "random": self._random.getstate()}

    def relearn(self, learnt: dict[str, Any]) -> None:
        self._drafter.module.load_state_dict(learnt["module"])
        self._optimizer.load_state_dict(copy.deepcopy(learnt["optimizer"]))
        self._lessons.clear()
        self._lessons.extend(learnt["lessons"])
        self._new_tokens, self._underway = learnt["new_tokens"], None
        self._random.setstate(learnt["random"])

    def _keep_lessons(self) -> None:
        """Take the lessons underway into the buffer."""
        if self._underway is not None:
            self._new_tokens += self._underway.num_tokens
            self._lessons.extend(self._underway.finish())

    def _step(self, lessons: list[Lesson]) -> None:
        p_logits, q_logits = self._drafter.logits_of(lessons)
        if not len(p_logits):
            return  # texts too short for heads that look far ahead
        loss = self._loss(p_logits.float(), q_logits.float(), p_logits.argmax(1))
        self._optimizer.zero_grad()
        loss.backward()
        if not torch.nn.utils.clip_grad_norm_(self._parameters, LONGEST_STEP).isfinite():
            raise FloatingPointError(
                f"the gradient of a step is not finite; lower drafter.learning_rate, {self._optimizer.defaults['lr']:g}"
            )
        self._optimizer.step()
