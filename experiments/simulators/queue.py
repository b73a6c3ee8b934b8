"""A queue whose server runs at one of several speeds: states, actions, costs and optimal policies as tables."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Queue:
    """A queue in discrete time with a server of several speeds.

    At each step one customer arrives with probability `arrivals`, and one leaves with the probability of the chosen
    speed; customers beyond the capacity are turned away. A step costs 1 per customer and the price of the speed.

    Attributes:
        capacity: largest number of customers; states are 0 to capacity.
        arrivals: probability of an arrival.
        speeds: [V] probability that the first customer leaves, by action.
        prices: [V] cost of a step at each speed.
        seed: seed of arrivals and departures, which depend on the number of the step, not on the action.
    """

    capacity: int
    arrivals: float
    speeds: tuple[float, ...]
    prices: tuple[float, ...]
    seed: int

    def step(self, customers: int, action: int, number: int) -> int:
        """The next number of customers."""
        arrival, departure = np.random.default_rng([self.seed, number]).random(2)
        left = customers - int(customers > 0 and departure < self.speeds[action])
        return min(left + int(arrival < self.arrivals), self.capacity)

    def cost(self, customers: int, action: int) -> float:
        return customers + self.prices[action]

    def transitions(self) -> Tensor:
        """[V, states, states] float64: distribution of the next state by action and state."""
        found = torch.zeros(len(self.speeds), self.capacity + 1, self.capacity + 1, dtype=torch.float64)
        for action, speed in enumerate(self.speeds):
            for customers in range(self.capacity + 1):
                leaves = speed if customers else 0.0
                for left, at in ((customers - 1, leaves), (customers, 1 - leaves)):
                    found[action, customers, max(left, 0)] += at * (1 - self.arrivals)
                    found[action, customers, min(max(left, 0) + 1, self.capacity)] += at * self.arrivals
        return found

    def policy(self, sweeps: int, *, discount: float, temperature: float) -> Tensor:
        """[states, V] float64: softmax of the negative costs to go after `sweeps` sweeps of value iteration."""
        costs = torch.tensor(
            [[self.cost(customers, action) for action in range(len(self.speeds))] for customers in self._states],
            dtype=torch.float64,
        )
        value, transitions = torch.zeros(len(self._states), dtype=torch.float64), self.transitions()
        for _ in range(sweeps):
            value = (costs + discount * (transitions @ value).T).amin(1)
        return (-(costs + discount * (transitions @ value).T) / temperature).softmax(1)

    @property
    def _states(self) -> range:
        return range(self.capacity + 1)
