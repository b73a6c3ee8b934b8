"""Search over sets of skipped sub-layers, stored in a file and resumable."""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from experiments.config.progress import Steps
from experiments.tuning.layer_objectives import Evaluation, Objective
from experiments.tuning.optuna_study import Budget, Direction, fail_unfinished, gaussian_process, open_study, remembered
from framework.drafting.layer_set import LayerSet

STUDY = "layers"


class Search:
    """Bayesian optimisation over the layer sets of one target, stored in a file.

    The parameters are the 2 * num_layers bits of a set. Uniform sets are tried first; a Gaussian process chooses the
    others. Zhang et al. (2024) search the same bits by time per token.
    """

    def __init__(self, folder: Path, num_layers: int, *, direction: Direction, made_of: dict[str, Any], seed: int):
        """
        Args:
            folder: folder of the search; a search stored there is resumed.
            direction: of the objective, "maximize" or "minimize".
            made_of: settings that the evaluations depend on.
            seed: seed of the sampler.

        Raises:
            OSError: the file in the folder is damaged.
            ValueError: the folder holds a search with other settings.
        """
        self.study = open_study(folder, STUDY, direction=direction, made_of=made_of)
        self.num_layers = num_layers
        fail_unfinished(self.study)
        # The seed changes on every resumption; the same seed would propose the same sets again.
        self.study.sampler = gaussian_process(seed + len(self.study.trials), deterministic=direction == "maximize")
        for layer_set in uniform_sets(num_layers):
            self.study.enqueue_trial(_parameters(layer_set), skip_if_exists=True)

    def remembered(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a JSON value that is computed once for all runs in this folder."""
        return remembered(self.study, name, make)

    @property
    def trials(self) -> list[FrozenTrial]:
        """Evaluated trials in order."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))

    @property
    def seconds(self) -> float:
        """Total seconds spent on the evaluated trials."""
        return sum(trial.user_attrs["seconds"] for trial in self.trials)

    @property
    def best(self) -> FrozenTrial:
        return self.study.best_trial

    @property
    def is_exhausted(self) -> bool:
        """Whether every set has been evaluated."""
        return len(self.trials) >= 4**self.num_layers - 1

    def step(self, objective: Objective) -> None:
        """Evaluate one more set."""
        start = time.perf_counter()
        trial, bits = self._ask()
        if taken := self._neighbour(bits):
            # Over binary parameters, a confident Gaussian process proposes its best set repeatedly.
            self.study.tell(trial, state=TrialState.FAIL)
            self.study.enqueue_trial(dict(zip(_names(self.num_layers), taken, strict=True)))
            trial, bits = self._ask()
        evaluation = objective.evaluate(LayerSet.from_bits(bits))
        for name, value in (asdict(evaluation) | {"seconds": time.perf_counter() - start}).items():
            trial.set_user_attr(name, value)
        self.study.tell(trial, evaluation.value)

    def _ask(self) -> tuple[optuna.Trial, tuple[int, ...]]:
        trial = self.study.ask()
        return trial, tuple(trial.suggest_int(name, 0, 1) for name in _names(self.num_layers))

    def _neighbour(self, bits: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return a nearest unevaluated set if `bits` is evaluated or skips everything.

        None: `bits` can be used, or every set is evaluated. Ties in Hamming distance are broken at random.
        """
        evaluated = {bits_of(trial) for trial in self.trials} | {(1,) * len(bits)}
        if bits not in evaluated:
            return None
        dice = random.Random(len(evaluated))
        for distance in range(1, len(bits) + 1):
            places = itertools.combinations(range(len(bits)), distance)
            near = [tuple(bit ^ (place in flipped) for place, bit in enumerate(bits)) for flipped in places]
            if fresh := [each for each in near if each not in evaluated]:
                return dice.choice(fresh)
        return None


def _names(num_layers: int) -> list[str]:
    return [f"{kind}.{layer}" for kind in ("attention", "mlp") for layer in range(num_layers)]


def _parameters(layer_set: LayerSet) -> dict[str, int]:
    return dict(zip(_names(layer_set.num_layers), layer_set.bits, strict=True))


def bits_of(trial: FrozenTrial) -> tuple[int, ...]:
    return tuple(trial.params[name] for name in _names(len(trial.params) // 2))


def evaluation_of(trial: FrozenTrial) -> Evaluation:
    return Evaluation(**{name: trial.user_attrs[name] for name in ("value", "alpha", "c", "gamma")})


def uniform_sets(num_layers: int) -> list[LayerSet]:
    """All sets skipped at even distances: whole layers, attentions alone, and MLPs alone, in every number."""
    counts = [
        *((count, count) for count in range(1, num_layers)),
        *((count, 0) for count in range(1, num_layers + 1)),
        *((0, count) for count in range(1, num_layers + 1)),
    ]
    return [LayerSet.uniform(num_layers, attention=attention, mlp=mlp) for attention, mlp in counts]


def run_search(search: Search, objective: Objective, budget: Budget) -> None:
    """Evaluate sets until the budget is spent or all sets are evaluated."""
    with Steps(1.0, "searching") as steps:
        while (spent := budget.share_spent(len(search.trials), search.seconds)) < 1 and not search.is_exhausted:
            best = f"best {search.best.value:.3f}, " if search.trials else ""
            steps.update(f"{best}{len(search.trials)} sets", completed=spent)
            search.step(objective)


def all_sets(num_layers: int) -> Iterator[LayerSet]:
    """Iterate over all sets that keep at least one sub-layer."""
    return (LayerSet.from_bits(bits) for bits in itertools.product((0, 1), repeat=2 * num_layers) if not all(bits))


def exhaust(objective: Objective, num_layers: int) -> tuple[LayerSet, Evaluation]:
    """Evaluate all sets and return the best one."""
    sign = 1 if objective.direction == "maximize" else -1
    with Steps(4**num_layers - 1, "all sets") as steps:
        found = []
        for each in all_sets(num_layers):
            found.append((each, objective.evaluate(each)))
            steps.update("all sets", advance=1)
        return max(found, key=lambda pair: sign * pair[1].value)
