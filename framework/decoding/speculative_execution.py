"""Speculative execution beyond text: the successor g of a slow distribution f runs on a guess of f's draw.

Leviathan et al. (2023) propose it in their discussion, for two slow functions f and g, where f(x) is a distribution
from which the input of g is drawn: a policy on actions, say, and a simulator of the world. A fast approximation of f
proposes the input; g runs on it while f is computed in a worker; the rule of speculative sampling then keeps the input
or replaces it, and g runs again only after a replacement. The results have the distribution of plain execution.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, TargetRows
from framework.core.sampling import Sampling, draw
from framework.core.uniforms import RoundUniforms, Uniforms
from framework.core.validation import check_whole
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.verifier import Guarantee, Verifier

S = TypeVar("S")
Policy = Callable[[S], Tensor]
"""A distribution [V] over values, after a state."""
Step = Callable[[S, int, int], S]
"""The next state after a state and a value, at the step of this number; called again after a replacement."""


@dataclass(frozen=True)
class Execution(Generic[S]):
    """A sequence of states, each after a value drawn from the slow policy.

    Attributes:
        states: num_steps + 1 states, the initial one included.
        values: num_steps values.
        accepted: whether each value is the drafted one; False for values drawn by plain execution.
        overlap: sum of min(p, q) at each step; 0 in plain execution.
    """

    states: list[S]
    values: list[int]
    accepted: list[bool]
    overlap: list[float]

    @property
    def alpha(self) -> float:
        """Mean overlap, the expected share of accepted values."""
        return sum(self.overlap) / len(self.overlap)


@dataclass(frozen=True)
class _Guess(Generic[S]):
    """A drafted value, its distribution, and the state after it; `p` is the slow distribution under way."""

    p: Future[Tensor]
    q: Tensor  # [V]
    value: int
    after: S


def execute(
    initial: S,
    *,
    slow: Policy[S],
    fast: Policy[S],
    step: Step[S],
    num_steps: int,
    ahead: int,
    seed: int,
    workers: Executor,
    verifier: Verifier | None = None,
) -> Execution[S]:
    """Run num_steps steps, up to `ahead` of them on drafted values whose slow distributions are under way.

    The oldest drafted value is verified once its slow distribution is known; until then g runs on further ones. After a
    replacement the later ones are discarded. With ahead = 1 a step takes the longer of f and g, and g again if the
    value is replaced. Every step has its own random numbers, so that neither `ahead` nor any time changes a value.

    Args:
        initial: the first state.
        slow: f: [V] probabilities; called in the workers, so it must be free of side effects.
        fast: the approximation of f: [V] probabilities; called in this thread.
        step: g; also called on values that are discarded, so it must be free of side effects. Its randomness may depend
            on the step's number, not on the value.
        num_steps: number of steps, >= 1.
        ahead: longest run of unverified steps, >= 1.
        seed: seed of drafts, acceptances and replacements.
        workers: threads or processes; discarded slow distributions occupy some, so more than `ahead` are of use.
        verifier: the acceptance rule; None: speculative sampling.

    Raises:
        ValueError: num_steps or ahead is not a whole number in its range, or the rule is LOSSY.
    """
    check_whole("num_steps", num_steps, least=1)
    check_whole("ahead", ahead, least=1)
    rule = SpeculativeSampling() if verifier is None else verifier
    if rule.guarantee is Guarantee.LOSSY:
        raise ValueError(f"verifier is {type(rule).__name__}, which is LOSSY; allowed: an exact rule for chains")
    numbers, done = _numbers(seed, num_steps), Execution([initial], [], [], [])
    guesses: deque[_Guess[S]] = deque()
    while (time := len(done.values)) < num_steps:
        while len(guesses) < min(ahead, num_steps - time) and not (guesses and guesses[0].p.done()):
            state, at = guesses[-1].after if guesses else done.states[-1], time + len(guesses)
            p = workers.submit(slow, state)
            q = fast(state)
            value = int(draw(q, numbers[at].draft[0, 0]))
            guesses.append(_Guess(p, q, value, step(state, value, at)))
        guess = guesses.popleft()
        value, overlap = _verified(guess, rule, numbers[time])
        accepted = value == guess.value
        if not accepted:
            for later in guesses:
                later.p.cancel()
            guesses.clear()
        done.states.append(guess.after if accepted else step(done.states[-1], value, time))
        done.values.append(value)
        done.accepted.append(accepted)
        done.overlap.append(overlap)
    return done


def execute_plainly(initial: S, *, slow: Policy[S], step: Step[S], num_steps: int, seed: int) -> Execution[S]:
    """Run num_steps steps one after another: f, a draw, g. Arguments as of `execute`."""
    numbers, done = _numbers(seed, num_steps), Execution([initial], [], [], [])
    for time in range(num_steps):
        value = int(draw(slow(done.states[-1]), numbers[time].next[0]))
        done.states.append(step(done.states[-1], value, time))
        done.values.append(value)
        done.accepted.append(False)
        done.overlap.append(0.0)
    return done


def _numbers(seed: int, num_steps: int) -> list[RoundUniforms]:
    """Random numbers of every step, for its draft, acceptance and replacement."""
    uniforms = Uniforms([seed], RoundUniforms.width(1), torch.device("cpu"))
    return [uniforms.next_round() for _ in range(num_steps)]


def _verified(guess: _Guess[S], rule: Verifier, uniforms: RoundUniforms) -> tuple[int, float]:
    """The drafted value or its replacement, and the overlap of the two distributions."""
    p, q = guess.p.result(), guess.q
    draft = Draft.chain(torch.tensor([[guess.value]]), SamplingScheme.IID, probs=q.view(1, 1, -1))
    target = TargetRows(p.log().expand(1, 2, -1), draft, Sampling())
    stop = draw(rule.stop_probs(target, draft), uniforms.stop)
    overlap = float(torch.minimum(p, q).sum())
    if int(stop):
        return guess.value, overlap
    return int(draw(rule.next_token_probs(target, draft, stop), uniforms.next)), overlap
