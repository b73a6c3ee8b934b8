"""Results of trials: a JSON lines file, a table, and the share of detected faults."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.faults import Fault, digest
from tests.mutants.trials import Trial


class Results:
    """File of results, with one JSON line per trial.

    A detected fault is tried again only after a change of its module; an undetected one also after a change of the
    tests.
    """

    def __init__(self, path: Path, *, tests: str):
        """
        Args:
            path: the file; created with the first result. An incomplete last line, left by a kill, is removed.
            tests: digest of all tests.
        """
        self._path = path
        self._tests = tests
        self._by_key: dict[str, dict[str, object]] = {}
        if path.exists():
            text = path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]
            path.write_text(whole, encoding="utf-8")
            for record in map(json.loads, whole.splitlines()):
                self._by_key[record["key"]] = record

    def add(self, trial: Trial) -> None:
        fault = trial.fault
        record = {
            "key": _key(fault),
            "module": fault.module,
            "function": fault.function,
            "line": fault.line,
            "before": fault.before,
            "after": fault.after,
            "seen": trial.seen,
            "by": trial.by,
            "num_tests": trial.num_tests,
            "seconds": trial.seconds,
            "tests": self._tests,
        }
        self._by_key[_key(fault)] = record
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            file.flush()

    def has(self, fault: Fault) -> bool:
        record = self._by_key.get(_key(fault))
        return record is not None and (bool(record["seen"]) or record["tests"] == self._tests)

    def seen(self, fault: Fault) -> bool:
        return bool(self._by_key[_key(fault)]["seen"])

    def by(self, fault: Fault) -> str:
        """The test that detected the fault, and how it ended."""
        return str(self._by_key[_key(fault)]["by"])

    def num_tests(self, fault: Fault) -> int:
        return int(str(self._by_key[_key(fault)]["num_tests"]))


def _key(fault: Fault) -> str:
    return digest(fault.key, fault.source)


@dataclass(frozen=True)
class Equivalents:
    """Equivalent faults, which break no guarantee, each with the reason."""

    reasons: dict[tuple[str, str, str, str], str]

    @classmethod
    def read(cls, path: Path) -> "Equivalents":
        """Read a TOML file with tables [[equivalent]] of module, function, before, after and reason."""
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", [])
        reasons = {}
        for table in tables:
            if not table["reason"].strip():
                raise ValueError(f"{path}: {table['function']}: {table['before']} has no reason")
            reasons[table["module"], table["function"], table["before"], table["after"]] = table["reason"].strip()
        return cls(reasons)

    def reason(self, fault: Fault) -> str | None:
        return self.reasons.get((fault.module, fault.function, fault.before, fault.after))

    def stale(self, faults: Sequence[Fault]) -> list[str]:
        """Entries that match no fault."""
        known = {(fault.module, fault.function, fault.before, fault.after) for fault in faults}
        return [f"{module}: {function}: {before}" for module, function, before, after in self.reasons.keys() - known]


@dataclass(frozen=True)
class Summary:
    """Results of one module or of all: number of faults, undetected faults, and number of equivalent ones."""

    name: str
    num_faults: int
    survivors: list[Fault]
    num_equivalent: int

    @classmethod
    def of(cls, name: str, faults: Sequence[Fault], results: Results, equivalents: Equivalents) -> "Summary":
        unseen = [fault for fault in faults if not results.seen(fault)]
        survivors = [fault for fault in unseen if equivalents.reason(fault) is None]
        return cls(name, len(faults), survivors, len(unseen) - len(survivors))

    @property
    def num_seen(self) -> int:
        return self.num_faults - len(self.survivors) - self.num_equivalent

    @property
    def share(self) -> float:
        """Detected faults ÷ faults that are not equivalent."""
        real = self.num_faults - self.num_equivalent
        return self.num_seen / real if real else 1.0

    def row(self) -> str:
        columns = (self.num_faults, self.num_seen, self.num_equivalent, len(self.survivors))
        return f"{self.name:<24}" + "".join(f"{number:>12}" for number in columns) + f"{self.share:>9.1%}"


def report(faults: Sequence[Fault], results: Results, equivalents: Equivalents) -> tuple[str, float]:
    """Table by module, followed by the survivors; and the share of detected faults."""
    header = f"{'module':<24}" + "".join(f"{name:>12}" for name in ("faults", "seen", "equivalent", "survivors"))
    by_module: dict[str, list[Fault]] = {}
    for fault in faults:
        by_module.setdefault(fault.module, []).append(fault)
    total = Summary.of("all", faults, results, equivalents)
    rows = [Summary.of(module, its, results, equivalents).row() for module, its in by_module.items()]
    lines = [f"{header}{'share':>9}", *rows, total.row()]
    for fault in total.survivors:
        lines += [
            "",
            f"{fault.path}:{fault.line} {fault.function}, not seen by {results.num_tests(fault)} tests",
            f"  - {fault.before}",
            f"  + {fault.after}",
        ]
    return "\n".join(lines), total.share
