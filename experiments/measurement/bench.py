"""Interleaved measurement of several points and the baseline on the same prompts, in one process."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from experiments.config.progress import Steps
from experiments.measurement.batch_runner import BatchResult, BatchRunner
from experiments.measurement.merging import Merged
from experiments.measurement.plan import Batch, Candidate, Plan, alive
from experiments.measurement.ranks import Ranks
from experiments.measurement.record_building import build_record
from experiments.measurement.resource_cache import ResourceCache
from experiments.results.provenance import begin_peak_memory, peak_memory, provenance
from experiments.results.record import Record
from experiments.tracking.tracker import NoTracker
from framework.core.drafter import preserve_learned_state, remembers
from framework.core.sampling import Sampling
from framework.models.target import Target
from framework.models.tensor_parallel import num_processes


def measure(
    candidates: Sequence[Candidate],
    target: Target,
    sampling: Sampling,
    plan: Plan,
    resources: ResourceCache,
    ranks: Ranks | None = None,
) -> list[Record]:
    """Measure candidates that share target and sampling; write one record per candidate.

    A candidate that raises keeps its error; the others continue.

    Args:
        resources: cache of objects made for this target, such as compiled graphs; new ones are added.
        ranks: processes that share the batches; None: this process only. Whole batches are assigned round-robin, so
            that the rows of a batch do not depend on the number of ranks. Every rank receives the results of all
            ranks in batch order; the writer writes the records.

    Returns:
        Records of the finished candidates, in the candidates' order; empty in a process that is no writer.

    Raises:
        ValueError: there are more ranks than batches, or several ranks measure a drafter that learns from prompts.
        ConnectionError: a rank is lost.
    """
    ranks = ranks or Ranks()
    batches = plan.batches()
    _check_ranks(candidates, len(batches), ranks)
    begin_peak_memory(target.device)
    started, start = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    runner = BatchRunner(candidates, target, sampling, plan, resources, ranks)
    merged = Merged(candidates, plan, target, decoders=list(runner.decoders), loops=list(runner.loops))
    with ExitStack() as knew:
        try:
            for candidate in candidates:
                if not ranks.is_writer:
                    candidate.tracker = NoTracker()
                candidate.tracker.start(candidate.point)
                # Later points may share the drafter.
                knew.enter_context(preserve_learned_state(candidate.engine.drafter))
            runner.provide_profiles(batches)
            _run_batches(candidates, batches, runner, merged, plan, ranks, label=f"T={sampling.temperature:g}")
            origin = _origin(target, started, ranks)
            memory = ranks.all_gather(peak_memory(target.device))
            for candidate in alive(candidates) if ranks.is_writer else ():
                with candidate.ended_by_errors():
                    origin["measuring_seconds"] = time.perf_counter() - start
                    record = build_record(candidate, merged, plan, target, sampling, origin)
                    record.metrics.update({kind: max(rank[kind] for rank in memory) for kind in memory[0]})
                    candidate.tracker.finish(record.to_json())
                    candidate.record = record
        except BaseException as error:  # an interrupt, or a failed baseline: record it for every unfinished point
            for candidate in alive(candidates):
                candidate.tracker.fail(error)
            raise
    return [candidate.record for candidate in candidates if candidate.record]


def _check_ranks(candidates: Sequence[Candidate], num_batches: int, ranks: Ranks) -> None:
    """
    Raises:
        ValueError: there are more ranks than batches, or each rank would show a learning drafter only some prompts.
    """
    if ranks.size > num_batches:
        raise ValueError(
            f"{ranks.size} ranks share {num_batches} batches; allowed: at least one batch per rank. Start fewer ranks, "
            "or set prompts.count higher, batch_size lower or refill=false"
        )
    for candidate in candidates:
        if ranks.size > 1 and remembers(candidate.engine.drafter):
            raise ValueError(
                f"{candidate.point.name} learns from every prompt, but each of {ranks.size} ranks would see only some; "
                "measure it with one rank, or choose another drafter"
            )


def _run_batches(
    candidates: Sequence[Candidate],
    batches: Sequence[Batch],
    runner: BatchRunner,
    merged: Merged,
    plan: Plan,
    ranks: Ranks,
    *,
    label: str,
) -> None:
    """Assign batches to ranks round-robin, and merge results after every wave of one batch per rank."""
    num_runs = plan.repeats + (plan.arrivals is not None)
    num_steps = len(batches[ranks.number :: ranks.size]) * (len(candidates) + num_runs * len(runner.decoders))
    with Steps(num_steps, is_timed=True, is_hidden=not ranks.is_writer) as steps:
        for wave in (batches[place : place + ranks.size] for place in range(0, len(batches), ranks.size)):
            result = BatchResult(wave[ranks.number]) if ranks.number < len(wave) else None
            for doing in runner.run(result) if result else ():
                steps.update(f"{label} {doing}", advance=1)
            for each in ranks.all_gather(result):
                if each:
                    merged.add(each)
            if not alive(candidates):
                break


def _origin(target: Target, started: str, ranks: Ranks) -> dict[str, Any]:
    """Provenance of a record: machine, versions, start time, ranks and attention settings."""
    return provenance(target.device) | {
        "started": started,
        "ranks": ranks.size,
        "tensor_parallel": num_processes() if target.model.is_sharded else None,
        "attention": target.model.attention,
        "reads_one_by_one": target.model.one_by_one,
    }
