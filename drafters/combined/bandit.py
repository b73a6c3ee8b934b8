"""Bandit over drafters: one of several drafts each round, chosen by the speed of earlier rounds (BanditSpec, 2025)."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from framework.core.bandits import BanditAlgorithm
from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.drafter import (
    Drafter,
    ShouldContinue,
    drafts_on_host,
    follow,
    has_trees,
    hidden_layers_of,
    is_stepwise,
    learns,
    models_of,
    most_nodes,
    proposal,
    remembers,
)
from framework.core.option_error import OptionError, options_under
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.core.validation import check_number, check_whole
from framework.models.target import Target

MOST_ROUNDS = 1_000_000


class DrafterBandit:
    """Lets one of several drafters draft, chosen by a bandit algorithm whose arms they are (BanditSpec, 2505.15141).

    The reward of a round is tokens over time, (1 + accepted) / (1 + c * depth of the draft), as a share of the largest
    gamma plus 1; of a batch, the mean over its rows. A choice depends on earlier rounds only. The uniforms of a round
    are new, so every draft is verified as if its drafter were alone, and the output distribution does not depend on the
    choices, as long as no seed is used twice.

    All drafters follow the text. A drafter with a model reads the tokens of other drafters' rounds when its turn comes.
    Rewards are kept from prompt to prompt.
    """

    remembers = True

    def __init__(
        self,
        target: Target,
        *,
        drafters: Mapping[str, Callable[..., Drafter]],
        algorithm: Callable[[Sequence[float]], BanditAlgorithm],
        costs: Mapping[str, float],
        interval: int | None,
    ):
        """
        Args:
            target: the target of all drafters.
            drafters: builds the drafters, by a name for each.
            algorithm: builds the bandit algorithm from the ranges of the rewards, which are all 1.
            costs: time of a draft step of each drafter in target passes, by its name; 0 for others.
            interval: rounds from one choice to the next; None: a choice for every prompt, or batch of prompts.

        Raises:
            ValueError: an option out of range, or drafters that cannot take turns: trees and chains, trees whose
                tokens are drawn in different ways, or different hidden layers of the target.
        """
        if not drafters:
            raise OptionError("drafters", dict(drafters), "at least one drafter")
        if interval is not None:
            check_whole("interval", interval, least=1, most=MOST_ROUNDS)
        for name, cost in costs.items():
            if name not in drafters:
                raise OptionError("costs", name, f"names of drafters: {', '.join(drafters)}")
            check_number(f"costs.{name}", cost, lambda value: 0 <= value < inf, "a number >= 0")
        self._arms: list[Drafter] = []
        for name, factory in drafters.items():
            with options_under(f"drafters.{name}"):
                self._arms.append(factory(target=target))
        self.scheme, self.shape = _common(self._arms)
        layers = {layers for arm in self._arms if (layers := hidden_layers_of(arm))}
        if len(layers) > 1:
            allowed = "drafters that read the same hidden layers of the target"
            raise OptionError("drafters", ", ".join(drafters), allowed, f"which read {sorted(layers)}")
        self.hidden_layers: tuple[int, ...] = layers.pop() if layers else ()
        self.stepwise = any(map(is_stepwise, self._arms))
        if self.shape is not Shape.CHAIN:
            self.num_nodes = lambda gamma: max(most_nodes(arm, gamma) for arm in self._arms)
        with options_under("algorithm"):
            self._algorithm = algorithm([1.0] * len(drafters))
        self._costs = [costs.get(name, 0.0) for name in drafters]
        self._interval = interval
        self._arm = self._algorithm.choose()
        self._rewards: list[float] = []  # since the last choice
        self._largest_gamma = 1  # of all rounds so far
        self._drafted: tuple[int, int] | None = None  # gamma and depth of the latest draft
        self._latest: Tensor | None = None  # accepted nodes, and active rows, of its round

    @property
    def models(self) -> Sequence[nn.Module]:
        return [model for arm in self._arms for model in models_of(arm)]

    def num_uniforms(self, gamma: int) -> int:
        return max(arm.num_uniforms(gamma) for arm in self._arms)

    def build_trees(self, num_rows: int, max_gamma: int) -> None:
        for arm in filter(has_trees, self._arms):
            arm.build_trees(num_rows, max_gamma)

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        if self._interval is None and self._rewards:
            self._choose()
        self._sampling, self._drafted, self._latest = sampling, None, None
        for arm in self._arms:
            arm.begin(sequences, prefill, sampling)

    def propose(
        self, sequences: Sequences, gamma: int, uniforms: Tensor, should_continue: ShouldContinue | None = None
    ) -> Draft:
        arm = self._arms[self._arm]
        uniforms = uniforms[:, : arm.num_uniforms(gamma)]
        uniforms = uniforms.cpu() if drafts_on_host(arm) else uniforms
        draft = proposal(arm, sequences, gamma, uniforms, should_continue)
        self._drafted = gamma, draft.tree.deepest if draft.num_nodes else 0
        if draft.scheme is self.scheme or self._sampling.greedy or not draft.num_nodes:
            return draft
        # Chosen tokens among drawn ones: drawn from the point mass that they are.
        ones = torch.ones(*draft.tokens.shape, 1, device=draft.tokens.device)
        return replace(draft, scheme=self.scheme, probs=ones, support=draft.tokens.unsqueeze(2))

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        for number, arm in enumerate(self._arms):
            if number == self._arm or not outcome.draft.num_nodes:
                arm.observe(sequences, outcome)
            else:
                follow(arm, sequences, outcome)
        self._latest = None if self._drafted is None else torch.stack([outcome.num_accepted, outcome.active.long()])

    def learn(self, sequences: Sequences) -> None:
        """Reward the drafter of the latest round, and choose the next one if its interval is over."""
        if self._latest is not None and self._drafted is not None:
            (gamma, depth), (accepted, active) = self._drafted, self._latest.tolist()
            tokens = [1 + kept for kept, decoding in zip(accepted, active, strict=True) if decoding]
            if tokens:
                self._largest_gamma = max(self._largest_gamma, gamma)
                speed = sum(tokens) / len(tokens) / (1 + self._costs[self._arm] * depth)
                self._rewards.append(speed / (1 + self._largest_gamma))
        self._drafted, self._latest = None, None
        for arm in filter(learns, self._arms):
            arm.learn(sequences)
        if len(self._rewards) == self._interval:
            self._choose()

    def _choose(self) -> None:
        self._algorithm.observe(self._arm, sum(self._rewards) / len(self._rewards))
        self._arm, self._rewards = self._algorithm.choose(), []

    def state_dict(self) -> dict[str, Any]:
        return {
            "algorithm": copy.deepcopy(self._algorithm),
            "arm": self._arm,
            "rewards": list(self._rewards),
            "largest_gamma": self._largest_gamma,
            "arms": [arm.state_dict() if remembers(arm) else None for arm in self._arms],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._algorithm = copy.deepcopy(state["algorithm"])
        self._arm, self._rewards = state["arm"], list(state["rewards"])
        self._largest_gamma = state["largest_gamma"]
        for arm, its in zip(self._arms, state["arms"], strict=True):
            if remembers(arm):
                arm.load_state_dict(its)


def _common(arms: Sequence[Drafter]) -> tuple[SamplingScheme, Shape]:
    """Scheme and shape of all drafts; chains of chosen tokens also pass as drawn ones.

    Raises:
        OptionError: there are none.
    """
    shapes, schemes = {arm.shape for arm in arms}, {arm.scheme for arm in arms}
    if len(shapes) == len(schemes) == 1:
        return schemes.pop(), shapes.pop()
    if shapes == {Shape.CHAIN} and schemes == {SamplingScheme.ONE_HOT, SamplingScheme.IID}:
        return SamplingScheme.IID, Shape.CHAIN
    given = ", ".join(f"{type(arm).__name__} ({arm.scheme.name}, {arm.shape.name})" for arm in arms)
    raise OptionError("drafters", given, "drafters of chains, or of trees with one scheme and shape")
