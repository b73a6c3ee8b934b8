"""The record of one measured point: every key of record.json is named here and nowhere else."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from experiments.results.renamed_keys import with_current_keys

RECORD_FILE = "record.json"  # in the folder of its point
STAGES = ("draft", "target", "verify", "commit", "observe", "replay", "learn")  # of a round, in order
VERSION = 2  # a file without a version has version 1; some of its keys have since been renamed


@dataclass(frozen=True)
class Record:
    """Results of one measured point, as JSON values. Keys that an older file lacks are empty or None.

    Attributes:
        name: name of the point, unique in its folder.
        study: name of the study; points of one study are compared with each other.
        point: settings that distinguish the point (drafter, gamma, temperature, ...), flat.
        models: names, parameters and dtypes of target and drafter (`model_names.Models`).
        config: the whole resolved configuration.
        seconds: decoding time of all batches, one value per repeat.
        chat: whether prompts were turns of a chat.
        seeds: one seed per prompt.
        counts: numbers of rounds, tokens and prompts.
        metrics: values by name; ARCHITECTURE.md defines them.
        differences: positions where greedy texts differ from those of another decoder, by decoder.
        stages: seconds per stage of a round.
        stages_ms_per_round: milliseconds per stage and round, with the time predicted from separately timed parts.
        trace: first runs of the stages in the first batch, as [stage, begin, end] in milliseconds, by decoder: "own"
            and "baseline".
        rounds_histogram: number of rounds by accepted nodes, and of target passes by the chosen gamma.
        round_profile: profile that the gamma policy decided by, as in its file; None: it decides by none.
        prompts: one row per prompt.
        command, commit, versions, machine: command line, source version, package versions and hardware.
        started: start of the measurement, in UTC.
        ranks: number of processes that shared the prompts.
        tensor_parallel: number of processes that shared the target; None: each had all of it.
        attention: attention implementation of the target.
        reads_one_by_one: whether the target scores a draft token by token.
        measuring_seconds: duration of the whole measurement.
        version: version of these keys.
        others: keys of the file that this version does not know; kept when the record is written again.
    """

    name: str = ""
    study: str = ""
    point: dict[str, Any] = field(default_factory=dict)
    models: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    seconds: Any = None
    chat: bool | None = None
    seeds: list[int] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    differences: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, Any] = field(default_factory=dict)
    stages_ms_per_round: dict[str, Any] = field(default_factory=dict)
    trace: dict[str, Any] = field(default_factory=dict)
    rounds_histogram: dict[str, Any] = field(default_factory=dict)
    round_profile: dict[str, Any] | None = None
    prompts: list[dict[str, Any]] = field(default_factory=list)
    command: str | None = None
    commit: str | None = None
    versions: dict[str, Any] | None = None
    machine: dict[str, Any] | None = None
    started: str | None = None
    ranks: int | None = None
    tensor_parallel: int | None = None
    attention: str | None = None
    reads_one_by_one: bool | None = None
    measuring_seconds: float | None = None
    version: int = VERSION
    others: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read the content of a record.json of this version or an earlier one.

        Raises:
            KeyError, TypeError: the content lacks point or metrics, or is not a mapping.
        """
        if not all(isinstance(content[key], dict) for key in ("point", "metrics")):
            raise TypeError("point and metrics must be objects")
        if "version" not in content:
            content = {**with_current_keys(content), "version": 1}
        known = {each.name for each in fields(cls)} - {"others"}
        found = {key: value for key, value in content.items() if key in known and value is not None}
        others = {key: value for key, value in content.items() if key not in known}
        return cls(**found, others=others)

    def to_json(self) -> dict[str, Any]:
        """The content of record.json: every key with a known value."""
        known = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "others"}
        return {key: value for key, value in known.items() if value is not None} | self.others
