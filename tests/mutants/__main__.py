"""`make mutants`: mutation testing of the modules that exactness depends on, with single-line faults."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mutants import trials
from tests.mutants.covering_tests import CoveringTests
from tests.mutants.faults import Fault, digest, sampled_faults
from tests.mutants.results import Equivalents, Results, report

# Modules to mutate, as patterns that match in any folder of the framework.
MODULES = (
    *("framework/**/engine.py", "framework/**/device_round.py", "framework/**/autoregressive.py"),
    *("framework/**/prefill.py", "framework/**/stopping.py", "framework/**/sequences.py"),
    *("framework/**/refill.py", "framework/**/round_summary.py", "framework/**/backlog.py"),
    *("framework/**/sampling.py", "framework/**/uniforms.py"),
    *("framework/**/draft.py", "framework/**/tree.py", "framework/**/chain_builder.py"),
    *("framework/**/cached_lm.py", "framework/**/cache_slots.py", "framework/**/drafter_cache.py"),
    *("framework/**/attention.py", "framework/**/attention_masks.py", "framework/**/forward_output.py"),
    *("framework/**/recurrent_states.py", "framework/**/recurrent_reading.py"),
    "framework/**/encoder_decoder.py",
    "framework/verifiers/[!_]*.py",
)
TESTS = "tests/**/test_*.py"
FOLDER = Path(__file__).parent
LEAST_SHARE = 0.95


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    repository = Path.cwd()
    modules, tests = found(repository, options.modules), found(repository, options.tests)
    faults = [fault for path in modules for fault in faults_of(path, lines_per_fault=options.lines_per_fault)]
    if options.list:
        print("\n".join(f"{fault.path}:{fault.line}\n  - {fault.before}\n  + {fault.after}" for fault in faults))
        return 0
    recorded = CoveringTests(repository=repository, modules=found(repository, MODULES), folder=options.folder / "lines")
    recorded.record(tests, workers=options.workers)
    results = Results(options.folder / "results.jsonl", tests=digest(*map(_text, tests)))
    try_all(faults, results, recorded, tests, options)
    equivalents = Equivalents.read(FOLDER / "equivalent.toml")
    text, share = report(faults, results, equivalents)
    print(text)
    return 0 if share >= LEAST_SHARE else 1


def faults_of(path: str, *, lines_per_fault: int) -> list[Fault]:
    return sampled_faults(path, _text(path), lines_per_fault=lines_per_fault)


def try_all(
    faults: Sequence[Fault],
    results: Results,
    recorded: CoveringTests,
    test_files: Sequence[str],
    options: argparse.Namespace,
) -> None:
    """Try the faults without a result, then run the tests that detected them on the unchanged source.

    Raises:
        RuntimeError: one of these tests fails on the unchanged source, so its detections are invalid.
    """
    missing = [fault for fault in faults if not results.has(fault)]
    if not missing:
        return
    tests = recorded.of(test_files)
    trials.preload()
    for done, trial in enumerate(
        trials.tried(missing, tests, workers=options.workers, most_seconds=options.seconds), start=1
    ):
        results.add(trial)
        outcome = trial.by if trial.seen else f"NOT SEEN by {trial.num_tests} tests"
        place = f"{trial.fault.module}:{trial.fault.line}"
        print(f"{done}/{len(missing)} {place} {trial.seconds:.0f} s: {outcome}", flush=True)
    seeing = {results.by(fault).rpartition(" failed")[0] for fault in missing if results.seen(fault)}
    if broken := trials.failing_without_fault(seeing, tests):
        raise RuntimeError(
            f"without a fault: {broken}; run this test alone, and remove the faults it detected from the results"
        )


def found(repository: Path, patterns: Sequence[str]) -> list[str]:
    """Paths relative to the repository, in the order of the patterns, without duplicates.

    Raises:
        ValueError: a pattern matches no file.
    """
    paths: dict[str, None] = {}
    for pattern in patterns:
        matches = sorted(path.relative_to(repository).as_posix() for path in repository.glob(pattern))
        if not matches:
            raise ValueError(f"{pattern} matches no file; MODULES in tests/mutants/__main__.py lists the modules")
        paths.update(dict.fromkeys(matches))
    return list(paths)


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES, help="patterns of modules (default: all in MODULES)")
    parser.add_argument("--tests", nargs="+", default=[TESTS], help="patterns of test files (default: all)")
    parser.add_argument("--lines-per-fault", type=int, default=6, help="mutable lines per fault (default: 6)")
    parser.add_argument("--workers", type=int, default=2, help="faults tried in parallel (default: 2)")
    parser.add_argument(
        "--seconds", type=float, default=60, help="seconds of tests per fault, fastest first (default: 60)"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("outputs/mutants"), help="folder of results (default: outputs/mutants)"
    )
    parser.add_argument("--list", action="store_true", help="print the faults without trying them")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
