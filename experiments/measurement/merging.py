"""Merged results of all batches and ranks, in batch order."""

import statistics
from collections.abc import Iterator, Sequence

from experiments.measurement.batch_runner import BatchResult
from experiments.measurement.divergence import POSITIONS
from experiments.measurement.metrics import BASELINE, Runs
from experiments.measurement.plan import Candidate, Plan, alive
from experiments.measurement.serving import Served
from experiments.measurement.timing import PartTimes, Timed
from framework.metrics.graph_counts import GraphCounts
from framework.metrics.repetition import distinct_4grams
from framework.metrics.stopwatch import Block
from framework.metrics.tally import Tally
from framework.models.target import Target


class Merged:
    """Results so far: timed runs of every decoder and counts of every candidate.

    Attributes:
        runs: timed batches, `runs[decoder][repeat][batch]`.
        stages: seconds by stage of every batch, by decoder.
        graphs: graphs that warming up compiled or captured, by decoder.
        with_parts: for every loop, the timed batches followed by a timing of its parts, each with these part times.
        traces: the single runs of the stages in the first batch, by decoder.
        served: the prompts as they arrive, by decoder; empty without arrivals.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        plan: Plan,
        target: Target,
        *,
        decoders: Sequence[str],
        loops: Sequence[str],
    ):
        self._subjects = {candidate.point.name: candidate for candidate in candidates}
        self._plan, self._target = plan, target
        self.runs: Runs = {name: [[] for _ in range(plan.repeats)] for name in decoders}
        self.stages: dict[str, list[dict[str, float]]] = {name: [] for name in decoders}
        self.graphs = {name: GraphCounts() for name in decoders}
        self.with_parts: dict[str, list[tuple[Timed, PartTimes]]] = {name: [] for name in loops}
        self.traces: dict[str, list[Block]] = {}
        self.served: dict[str, Served] = {}

    def add(self, result: BatchResult) -> None:
        """Add the result of the next batch and log its prompts.

        Raises:
            Exception: the error of the baseline or of a tracker.
        """
        self._end_those_that_failed(result)
        for name, runs in result.runs.items():
            for repeat, run in enumerate(runs):
                self.runs[name][repeat].append(run)
            self.stages[name].append(result.stages[name])
            self.graphs[name] += result.graphs.get(name, GraphCounts())
            if name in result.parts:
                self.with_parts[name].append((runs[0], result.parts[name]))
            if blocks := result.traces.get(name):
                self.traces.setdefault(name, blocks)
        self.served |= result.served  # arrivals need refill, with which there is one batch
        for candidate in alive(self._subjects.values()):
            self._add_counts(candidate, result)
            for row in _prompt_rows(candidate.point.name, result, self._plan, self._target):
                candidate.rows.append(row)
                candidate.tracker.log_prompt(row)

    def _end_those_that_failed(self, result: BatchResult) -> None:
        for name, error in result.errors.items():
            if name not in self._subjects:
                raise error
            if not self._subjects[name].error:
                self._subjects[name].end(error)

    @staticmethod
    def _add_counts(candidate: Candidate, result: BatchResult) -> None:
        name = candidate.point.name
        candidate.tally.add(result.tallies[name])
        if name in result.inner_tallies:
            candidate.inner_tally = _sum(candidate.inner_tally, result.inner_tallies[name])
        if name in result.teacher_forced:
            candidate.teacher_forced = _sum(candidate.teacher_forced, result.teacher_forced[name])
        candidate.experts += result.experts[name]
        # The same number of positions as with one rank.
        candidate.divergences += result.divergences[name][: POSITIONS - len(candidate.divergences)]


def _sum(total: Tally | None, tally: Tally) -> Tally:
    return Tally.total([tally] if total is None else [total, tally])


def _prompt_rows(name: str, result: BatchResult, plan: Plan, target: Target) -> Iterator[dict]:
    """Yield one row per prompt of a batch.

    Seconds are those of its batch: medians, or lists with one entry per repeat.
    """
    batch, own, baseline = result.batch, result.runs[name], result.runs[BASELINE]
    generation = own[0].generation
    ratios = generation.tally.metrics() if generation.tally and len(batch.rows) == 1 else {}
    for index, row in enumerate(batch.rows):
        prompt, tokens = plan.prompt_set.prompts[row], generation.tokens[index]
        yield {
            "name": prompt.name,
            "category": prompt.category,
            "prompt_tokens": len(prompt.tokens),
            "new_tokens": len(tokens),
            "seconds": statistics.median(run.seconds for run in own),
            "baseline_seconds": statistics.median(run.seconds for run in baseline),
            "decode_seconds": [run.decode_seconds for run in own],
            "baseline_decode_seconds": [run.decode_seconds for run in baseline],
            "baseline_new_tokens": len(baseline[0].generation.tokens[index]),
            "alpha": ratios.get("alpha/empirical"),
            "tau": ratios.get("tau"),
            "distinct_4grams": distinct_4grams(tokens),
            "finish_reason": generation.finish_reasons[index],
            "seed": batch.seeds[index],
            "text": target.tokenizer.decode(tokens),
            **result.counted[name][index],
        } | ({} if prompt.reference is None else {"reference": prompt.reference})
