"""Online drafter: learns between rounds from the target's verification distributions (Liu et al., 2024)."""

import copy
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from framework.core.draft import Draft, Outcome
from framework.core.drafter import ShouldContinue, follow, has_trees, is_stepwise, models_of, proposal
from framework.core.option_error import OptionError, options_under
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.core.validation import check_number, check_whole
from framework.models.target import Target
from framework.training.distillation import DIVERGENCES
from framework.training.online_examples import Distillable, ExamplesUnderway, OnlineExample, is_teachable

MOST = 1_000_000_000  # largest value of any integer option
LONGEST_STEP = 1.0  # norm to which gradients are clipped


class Online:
    """Wraps a drafter and fits it to the target between rounds (Online Speculative Decoding, 2310.07177).

    The target's logits of every committed token are kept, since verification computes them anyway. After
    `update_interval` tokens, an update takes a few gradient steps on texts sampled from the latest ones. Drafts are
    verified with the q they were drawn from, and weights never change within a round. The output distribution therefore
    does not depend on the updates, as long as no seed is used twice.
    """

    def __init__(
        self,
        target: Target,
        *,
        drafter: Callable[..., Distillable],
        loss: str,
        update_interval: int,
        steps: int,
        batch: int,
        buffer: int,
        window: int,
        learning_rate: float,
        seed: int,
    ):
        """
        Args:
            target: the teacher.
            drafter: builds the drafter to train, which must be `Distillable`.
            loss: divergence between target and drafter at temperature 1, one of DIVERGENCES.
            update_interval: committed tokens, summed over rows, between two updates.
            steps: gradient steps per update; 0: no training.
            batch: texts per gradient step.
            buffer: number of latest texts kept, each with the target's logits of its new tokens: V numbers per token.
            window: longest text in tokens; longer texts lose their beginning.
            learning_rate: learning rate of AdamW, in (0, 1].
            seed: seed of the sampling of texts.

        Raises:
            ValueError: an option out of range; a drafter that is not `Distillable`, reads only texts shorter than the
                window and the target's context, or is in half precision; a target with an encoder.
        """
        least = {"update_interval": 1, "steps": 0, "batch": 1, "buffer": 1, "window": 2, "seed": 0}
        given = {
            "update_interval": update_interval,
            "steps": steps,
            "batch": batch,
            "buffer": buffer,
            "window": window,
            "seed": seed,
        }
        for key, value in given.items():
            check_whole(key, value, least=least[key], most=MOST)
        check_number("learning_rate", learning_rate, lambda value: 0 < value <= 1, "a number in (0, 1]")
        if loss not in DIVERGENCES:
            raise OptionError("loss", loss, f"{', '.join(DIVERGENCES)}")
        if target.model.text_start:
            raise ValueError("drafter is online, which learns from texts alone; allowed: a target without an encoder")
        with options_under("drafter"):
            inner = drafter(target=target)
        if not is_teachable(inner):
            allowed = "drafters with `logits_of`, such as SmallTransformer or Medusa"
            raise OptionError("drafter", type(inner).__name__, allowed, "which cannot be trained online")
        if inner.longest_text < min(window, target.model.context):
            problem = f"and drafter reads texts of at most {inner.longest_text} tokens"
            raise OptionError("window", window, f"at most {inner.longest_text}", problem)
        parameters = list(inner.module.requires_grad_(True).parameters())
        if wrong := {each.dtype for each in parameters} - {torch.float32, torch.float64}:
            problem = f"with weights in {wrong.pop()}, too coarse for small steps"
            raise OptionError("drafter", type(inner).__name__, "float32, float64", problem)
        self.scheme, self.shape, self.remembers = inner.scheme, inner.shape, True
        if hasattr(inner, "num_nodes"):
            self.num_nodes = inner.num_nodes
        self.stepwise = is_stepwise(inner)
        self._drafter = inner
        if has_trees(inner):
            self.build_trees = inner.build_trees
        self._parameters = parameters
        self._optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
        self._loss = DIVERGENCES[loss]
        self._update_interval, self._steps, self._batch, self._window = update_interval, steps, batch, window
        self._random = Random(seed)
        self._examples: deque[OnlineExample] = deque(maxlen=buffer)
        self._underway: ExamplesUnderway | None = None
        self._new_tokens = 0  # since the last update, without those in _underway

    @property
    def models(self) -> Sequence[nn.Module]:
        return models_of(self._drafter)

    def num_uniforms(self, gamma: int) -> int:
        return self._drafter.num_uniforms(gamma)

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._keep_examples()
        self._underway = None
        self._drafter.begin(sequences, prefill, sampling)
        underway = ExamplesUnderway(sequences, window=self._window)
        underway.note(prefill)
        self._underway = underway

    def propose(
        self, sequences: Sequences, gamma: int, uniforms: Tensor, should_continue: ShouldContinue | None = None
    ) -> Draft:
        return proposal(self._drafter, sequences, gamma, uniforms, should_continue)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        self._drafter.observe(sequences, outcome)
        if self._underway is not None:
            self._underway.note(outcome)

    def follow(self, sequences: Sequences, outcome: Outcome) -> None:
        follow(self._drafter, sequences, outcome)
        if self._underway is not None:
            self._underway.note(outcome)

    def learn(self, sequences: Sequences) -> None:
        """Run an update if at least `update_interval` tokens were committed since the last one."""
        underway = self._underway.num_tokens if self._underway else 0
        if self._new_tokens + underway < self._update_interval:
            return
        self._keep_examples()
        self._new_tokens = 0
        with torch.enable_grad():
            for _ in range(self._steps):
                self._step(self._random.sample(list(self._examples), min(self._batch, len(self._examples))))
        self._drafter.refresh(sequences)

    def state_dict(self) -> dict[str, Any]:
        self._keep_examples()
        return copy.deepcopy(
            {"module": self._drafter.module.state_dict(), "optimizer": self._optimizer.state_dict()}
        ) | {"examples": list(self._examples), "new_tokens": self._new_tokens, "random": self._random.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._drafter.module.load_state_dict(state["module"])
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self._examples.clear()
        self._examples.extend(state["examples"])
        self._new_tokens, self._underway = state["new_tokens"], None
        self._random.setstate(state["random"])

    def _keep_examples(self) -> None:
        """Move the examples of the current generation to the buffer."""
        if self._underway is not None:
            self._new_tokens += self._underway.num_tokens
            self._examples.extend(self._underway.finish())

    def _step(self, examples: list[OnlineExample]) -> None:
        p_logits, q_logits = self._drafter.logits_of(examples)
        if not len(p_logits):
            return  # every text is shorter than the heads' lookahead
        loss = self._loss(p_logits.float(), q_logits.float(), p_logits.argmax(1))
        self._optimizer.zero_grad()
        loss.backward()
        if not torch.nn.utils.clip_grad_norm_(self._parameters, LONGEST_STEP).isfinite():
            raise FloatingPointError(
                f"the gradient of a step is not finite; lower drafter.learning_rate, {self._optimizer.defaults['lr']:g}"
            )
        self._optimizer.step()
