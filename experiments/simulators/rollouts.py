"""Rollouts of a policy that learns by reinforcement, by plain decoding and by drafters."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from framework.core.drafter import preserve_learned_state
from framework.core.option_error import OptionError
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.metrics.stopwatch import Clock
from framework.models.target import Target
from framework.training.trainable import FILLER, complement, ids_of, is_learned


@dataclass(frozen=True)
class Rollout:
    """A drafter's share of a step.

    Attributes:
        alpha: accepted ÷ tested; None: nothing was tested.
        tau: tokens per round.
        ms_per_token: milliseconds per new token, learning included.
        equal: share of the checked prompts whose greedy tokens are those of plain decoding with the same weights.
    """

    alpha: float | None
    tau: float | None
    ms_per_token: float
    equal: float


@dataclass(frozen=True)
class Step:
    """A step of reinforcement learning.

    Attributes:
        reward: mean reward of plain decoding's texts.
        plain_ms: milliseconds per token of plain decoding.
        rollouts: by drafter.
    """

    reward: float
    plain_ms: float
    rollouts: dict[str, Rollout]


class Policy:
    """A target that learns from the rewards of its texts; its weights change in place."""

    def __init__(self, target: Target, *, temperature: float, learning_rate: float):
        """
        Args:
            temperature: of the texts' sampling.
            learning_rate: of AdamW.

        Raises:
            OptionError: the weights are in half precision, in which small steps are lost.
        """
        if wrong := {each.dtype for each in target.model.model.parameters()} - {torch.float32, torch.float64}:
            given = str(wrong.pop()).removeprefix("torch.")
            raise OptionError("target.dtype", given, "float32, float64", "too coarse for small steps")
        self._model, self._temperature = target.model.model, temperature
        self._vocabulary_size, self._device = target.vocabulary_size, target.device
        self._model.requires_grad_(True)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=learning_rate, weight_decay=0.0)

    def learn(self, prompts: list[list[int]], new: list[list[int]], rewards: list[float]) -> None:
        """Take one step on minus the mean of (reward - mean reward) · log p over all new tokens.

        The gradient is clipped to a norm of 1. The call returns when the step is done, also on a GPU.

        Args:
            prompts: token ids.
            new: token ids sampled after each.
            rewards: one per text.
        """
        texts = [
            torch.cat([complement(torch.tensor(start)), torch.tensor(more)])
            for start, more in zip(prompts, new, strict=True)
        ]
        tokens = pad_sequence(texts, batch_first=True, padding_value=FILLER).to(self._device)
        is_new = is_learned(tokens[:, 1:])
        gained = torch.tensor(rewards, device=self._device)
        with torch.enable_grad():
            loss = -((gained - gained.mean()).unsqueeze(1) * self._log_p(tokens)).where(is_new, 0.0).sum()
            self._optimizer.zero_grad()
            (loss / is_new.sum()).backward()
            nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            self._optimizer.step()
        Clock(self._device).wait()

    def _log_p(self, tokens: Tensor) -> Tensor:
        """[B, T - 1] log-probabilities of training tokens [B, T], the first aside."""
        ids = ids_of(tokens)
        logits = self._model(input_ids=ids, attention_mask=(tokens != FILLER).long(), use_cache=False).logits
        log_p = (logits[:, :-1, : self._vocabulary_size].float() / self._temperature).log_softmax(-1)
        return log_p.gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2)


class Rollouts:
    """Plain decoding and every drafter, on the prompts of one step after another."""

    def __init__(
        self,
        target: Target,
        engines: Mapping[str, tuple[Engine, Engine]],
        *,
        stopping: Stopping,
        sampling: Sampling,
        checked: int,
    ):
        """
        Args:
            target: the policy.
            engines: by drafter, one that samples and a greedy one.
            stopping: stopping criteria of the texts.
            sampling: of the engines that sample.
            checked: prompts whose greedy tokens are compared, from which no drafter learns.
        """
        self._engines, self._stopping, self._checked = engines, stopping, checked
        self._plain, self._greedy = (
            Autoregressive(target=target, sampling=each) for each in (sampling, Sampling(temperature=0))
        )

    def warm_up(self, prompts: list[list[int]]) -> None:
        """Decode once, plainly and untimed: first passes are slow."""
        self._plain.generate(prompts, stopping=self._stopping, seeds=[0] * len(prompts))

    def step(self, prompts: list[list[int]], seeds: list[int]) -> tuple[list[list[int]], float, dict[str, Rollout]]:
        """Decode with the weights as they are.

        Returns:
            Plain decoding's new tokens; its milliseconds per token; the rollouts by drafter.
        """
        begin = time.perf_counter()
        new = self._plain.generate(prompts, stopping=self._stopping, seeds=seeds).tokens
        plain_ms = _ms(begin, new)
        few, few_seeds = prompts[: self._checked], seeds[: self._checked]
        expected = self._greedy.generate(few, stopping=self._stopping, seeds=few_seeds).tokens
        found = {}
        for name, (sampling, greedy) in self._engines.items():
            begin = time.perf_counter()
            generated = sampling.generate(prompts, stopping=self._stopping, seeds=seeds)
            ms = _ms(begin, generated.tokens)
            with preserve_learned_state(greedy.drafter):
                tokens = greedy.generate(few, stopping=self._stopping, seeds=few_seeds).tokens
            same = [got == want for got, want in zip(tokens, expected, strict=True)]
            assert generated.tally is not None
            metrics = generated.tally.metrics()
            found[name] = Rollout(metrics["alpha/empirical"], metrics["tau"], ms, sum(same) / len(same))
        return new, plain_ms, found


def _ms(begin: float, new: list[list[int]]) -> float:
    return 1e3 * (time.perf_counter() - begin) / sum(map(len, new))
