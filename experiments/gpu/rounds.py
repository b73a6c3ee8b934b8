"""Engines of the steps, and rounds of a generation one by one."""

from collections.abc import Callable
from typing import Any

from experiments.measurement.timing import Decoder
from framework.core.drafter import Drafter
from framework.core.sampling import Sampling
from framework.decoding.device_round import Decoding
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.metrics.stopwatch import Stopwatch
from framework.models.target import Target

GREEDY, DRAWN = Sampling(temperature=0), Sampling()
NUCLEUS = Sampling(temperature=0.8, top_p=0.9)
# Of random weights the distribution at temperature 1 is flat: rounding that differs between kernels changes draws.
PEAKED = Sampling(temperature=0.1)
GAMMA = 4


def engine_of(target: Target, drafter: Drafter, sampling: Sampling, *, compiled: bool = False, **others: Any) -> Engine:
    """Engine with a constant gamma."""
    policy = Fixed(gamma=others.pop("gamma", GAMMA))
    return Engine(target=target, drafter=drafter, gamma_policy=policy, sampling=sampling, compiled=compiled, **others)


def tokens_of(decoder: Decoder, prompts: list[list[int]], stopping: Stopping) -> list[list[int]]:
    """New tokens of the prompts as one batch, where the number of a row is its seed."""
    return decoder.generate(prompts, stopping=stopping, seeds=list(range(len(prompts)))).tokens


def begin_decoding(engine: Engine, prompts: list[list[int]], *, rounds: int) -> Decoding:
    """A generation after its prefill, with tokens left for that many rounds."""
    stopping = Stopping(max_new_tokens=rounds * (engine.gamma_policy.max_gamma + 1) + 1)
    stopwatch = Stopwatch(engine.target.device)
    seeds = list(range(len(prompts)))
    return engine.begin(prompts, stopping=stopping, seeds=seeds, detailed=False, stopwatch=stopwatch)


def run_rounds(engine: Engine, decoding: Decoding, rounds: int) -> Callable[[], None]:
    """A function that runs rounds."""

    def run() -> None:
        for _ in range(rounds):
            engine.round(decoding)

    return run
