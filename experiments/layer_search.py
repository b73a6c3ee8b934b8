"""A search over sets of sub-layers that is kept in a file: which set to judge next, and when to stop."""

import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState
from rich.progress import Progress

from experiments.layer_objectives import Judgement, Objective
from experiments.studies import Budget, Direction, fail_unfinished, gaussian_process, open_study, remembered
from framework.layer_set import LayerSet

STUDY = "layers"


class Search:
    """Sets of one target in the order in which a Gaussian process wants to know them, kept in a file.

    The 2 * num_layers bits of a set are the parameters; uniform skipping is tried first (Zhang et al., 2024, search
    the same bits, by time per token).
    """

    def __init__(self, folder: Path, num_layers: int, *, direction: Direction, made_of: dict[str, Any], seed: int):
        """
        Args:
            folder: what was found there before is kept and gone on with.
            direction: of the objective, "maximize" or "minimize".
            made_of: what the judgements depend on.

        Raises:
            OSError: what is in the folder is damaged.
            ValueError: the folder holds a search that was made of something else.
        """
        self.study = open_study(folder, STUDY, direction=direction, made_of=made_of)
        self.num_layers = num_layers
        fail_unfinished(self.study)
        # Another seed after every resumption: the same one would draw the same sets again.
        self.study.sampler = gaussian_process(seed + len(self.study.trials), deterministic=direction == "maximize")
        for layer_set in uniform_sets(num_layers):
            self.study.enqueue_trial(_parameters(layer_set), skip_if_exists=True)

    def remembered(self, name: str, make: Callable[[], Any]) -> Any:
        """A value that is made once for all runs in this folder; JSON can hold it."""
        return remembered(self.study, name, make)

    @property
    def trials(self) -> list[FrozenTrial]:
        """Those that were judged, in their order."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))

    @property
    def seconds(self) -> float:
        """Time spent on all that were judged."""
        return sum(trial.user_attrs["seconds"] for trial in self.trials)

    @property
    def best(self) -> FrozenTrial:
        return self.study.best_trial

    @property
    def is_exhausted(self) -> bool:
        """Whether every set there is was judged."""
        return len(self.trials) >= 4**self.num_layers - 1

    def step(self, objective: Objective) -> None:
        """Judge one more set."""
        start = time.perf_counter()
        trial, bits = self._ask()
        if taken := self._neighbour(bits):
            # Over bits, a Gaussian process that is sure of its best set asks for it again and again.
            self.study.tell(trial, state=TrialState.FAIL)
            self.study.enqueue_trial(dict(zip(_names(self.num_layers), taken, strict=True)))
            trial, bits = self._ask()
        judgement = objective.judge(LayerSet.from_bits(bits))
        for name, value in (asdict(judgement) | {"seconds": time.perf_counter() - start}).items():
            trial.set_user_attr(name, value)
        self.study.tell(trial, judgement.value)

    def _ask(self) -> tuple[optuna.Trial, tuple[int, ...]]:
        trial = self.study.ask()
        return trial, tuple(trial.suggest_int(name, 0, 1) for name in _names(self.num_layers))

    def _neighbour(self, bits: tuple[int, ...]) -> tuple[int, ...] | None:
        """A set that differs in as few bits as possible from one that was judged, or leaves nothing; else None."""
        judged = {bits_of(trial) for trial in self.trials} | {(1,) * len(bits)}
        if bits not in judged:
            return None
        dice = random.Random(len(judged))
        for distance in range(1, len(bits) + 1):
            places = itertools.combinations(range(len(bits)), distance)
            near = [tuple(bit ^ (place in flipped) for place, bit in enumerate(bits)) for flipped in places]
            if fresh := [each for each in near if each not in judged]:
                return dice.choice(fresh)
        return None


def _names(num_layers: int) -> list[str]:
    return [f"{kind}.{layer}" for kind in ("attention", "mlp") for layer in range(num_layers)]


def _parameters(layer_set: LayerSet) -> dict[str, int]:
    return dict(zip(_names(layer_set.num_layers), layer_set.bits, strict=True))


def bits_of(trial: FrozenTrial) -> tuple[int, ...]:
    return tuple(trial.params[name] for name in _names(len(trial.params) // 2))


def judgement_of(trial: FrozenTrial) -> Judgement:
    return Judgement(**{name: trial.user_attrs[name] for name in ("value", "alpha", "c", "gamma")})


def uniform_sets(num_layers: int) -> list[LayerSet]:
    """Skipping at even distances: whole layers, attention alone, MLPs alone; every number of them."""
    counts = [
        *((count, count) for count in range(1, num_layers)),
        *((count, 0) for count in range(1, num_layers + 1)),
        *((0, count) for count in range(1, num_layers + 1)),
    ]
    return [LayerSet.uniform(num_layers, attention=attention, mlp=mlp) for attention, mlp in counts]


def run_search(search: Search, objective: Objective, budget: Budget) -> None:
    """Judge sets until the budget is spent, or all are known."""
    with Progress(transient=True, disable=not sys.stdout.isatty()) as progress:
        bar = progress.add_task("", total=1.0)
        while (spent := budget.share_spent(len(search.trials), search.seconds)) < 1 and not search.is_exhausted:
            best = f"best {search.best.value:.3f}, " if search.trials else ""
            progress.update(bar, completed=spent, description=f"{best}{len(search.trials)} sets")
            search.step(objective)


def all_sets(num_layers: int) -> Iterator[LayerSet]:
    """Every set that leaves something."""
    return (LayerSet.from_bits(bits) for bits in itertools.product((0, 1), repeat=2 * num_layers) if not all(bits))


def exhaust(objective: Objective, num_layers: int) -> tuple[LayerSet, Judgement]:
    """The best of all sets."""
    sign = 1 if objective.direction == "maximize" else -1
    with Progress(transient=True, disable=not sys.stdout.isatty()) as progress:
        sets = progress.track(all_sets(num_layers), total=4**num_layers - 1, description="all sets")
        return max(((each, objective.judge(each)) for each in sets), key=lambda pair: sign * pair[1].value)
