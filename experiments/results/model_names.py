"""Names of a point's models: the end of their path, their number of parameters and their dtype."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from experiments.results.record import Record

if TYPE_CHECKING:
    from torch import nn

Models = Mapping[str, Any]
"""Facts of the models of a point as JSON values, by role: "target" and "drafter", which may have several or none."""

DOWNLOADED = "models--"  # prefix of a model's folder in the cache of the hub


@dataclass(frozen=True)
class ModelFacts:
    """Name and size of a model or a trained part, in words as `str`.

    Attributes:
        name: last two parts of its path, or its hub name; its class if it has no path.
        parameters: number of parameters; shared ones count once.
        dtype: dtype of most parameters, followed by the method that quantised them, if any.
    """

    name: str
    parameters: int
    dtype: str

    @classmethod
    def of(cls, model: "nn.Module") -> Self:
        """Facts of a model; its path is its `name_or_path`, as in transformers."""
        sizes: Counter[str] = Counter()
        for parameter in model.parameters():
            sizes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
        method = getattr(model, "quantization_method", None)
        kind = [name for name, _ in sizes.most_common(1)] + ([str(getattr(method, "value", method))] if method else [])
        name = short_name(str(getattr(model, "name_or_path", None) or type(model).__name__))
        return cls(name=name, parameters=sizes.total(), dtype=" ".join(kind))

    def __str__(self) -> str:
        return f"{self.name} ({in_short(self.parameters)}, {self.dtype})"


def short_name(path: str) -> str:
    """Last two parts of a path, or the hub name of a folder in the hub's cache: Qwen/Qwen3-8B."""
    parts = Path(path).parts
    for part in parts:
        if part.startswith(DOWNLOADED):
            return part.removeprefix(DOWNLOADED).replace("--", "/")
    return "/".join(part for part in parts[-2:] if part != "/")


def in_short(number: int) -> str:
    """A number of parameters with its unit: 296k, 6.0M, 7.6B."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= 0.9995 * size:
            return f"{number / size:.{1 if number < 9.95 * size else 0}f}{unit}"
    return str(number)


def facts(models: Iterable["nn.Module"]) -> list[dict[str, Any]]:
    """Facts of several models as JSON values."""
    return [asdict(ModelFacts.of(model)) for model in models]


def names(models: Models, role: str) -> str:
    """Names of the models in a role, without their sizes; "" if there are none."""
    return " + ".join(str(each["name"]) for each in models.get(role, []))


def in_words(models: Models, role: str) -> str:
    """Names and sizes of the models in a role; "" if there are none."""
    return " + ".join(str(ModelFacts(**each)) for each in models.get(role, []))


def target_of(record: Record) -> str:
    """Name and size of a record's target; for an older record, its yaml and dtype."""
    target, dtype = record.point.get("target"), record.point.get("dtype")
    return in_words(record.models, "target") or " ".join(str(known) for known in (target, dtype) if known)


def drafters_of(records: Iterable[Record]) -> dict[str, str]:
    """Names and sizes of the models of every drafter that has some, by drafter."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        if words := in_words(record.models, "drafter"):
            found.setdefault(str(record.point.get("drafter")), {})[words] = None
    return {drafter: ", ".join(words) for drafter, words in found.items()}


def model_lines(records: Iterable[Record]) -> list[str]:
    """Lines that name the targets, and the models of the drafters."""
    records = list(records)
    targets = [target for target in dict.fromkeys(map(target_of, records)) if target]
    drafters = [f"{drafter} {words}" for drafter, words in drafters_of(records).items()]
    named = {"target" if len(targets) == 1 else "targets": targets, "draft models": drafters}
    return [f"{role}: {'; '.join(words)}" for role, words in named.items() if words]
