"""The PromptSource contract (framework/prompts/prompt_source.py), executable."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice

from framework.conformance.report import Check, Report, require, run_checks
from framework.conformance.test_doubles import no_global_randomness
from framework.prompts.prompt_source import PromptSource, Text

MOST_TEXTS = 1000


def check_prompt_source(factory: Callable[[], PromptSource], *, most: int = MOST_TEXTS) -> Report:
    """Check a prompt source against its contract.

    Args:
        factory: constructor of the source; called twice.
        most: number of texts read, from the first one on.

    Returns:
        the report; `report.require()` raises Breach if a rule is broken.
    """
    checks = _PromptSourceChecks(factory, most)
    return run_checks(type(checks.source).__name__, list(checks.all()))


class _PromptSourceChecks:
    """One prompt source, with a method per rule; each raises Breach or returns an optional remark."""

    def __init__(self, factory: Callable[[], PromptSource], most: int):
        self.factory, self.most = factory, most
        self.source = factory()

    def all(self) -> Iterator[Check]:
        """Rules of the contract, those that others rely on first."""
        yield Check("texts yields objects of class Text, at least one", self.yields_texts, essential=True)
        yield Check("texts, turns and references are strings, and no text is blank", self.strings, essential=True)
        yield Check("every text has a name of its own", self.names)
        yield Check("every call of texts yields the same texts in the same order", self.repeatable)
        yield Check("two iterations at the same time do not disturb each other", self.independent)
        yield Check("another source with the same options yields the same texts", self.determined)

    @cached_property
    def texts(self) -> list[Text]:
        """The texts of the first call."""
        return self._read(self.source)

    def _read(self, source: PromptSource) -> list[Text]:
        with no_global_randomness("texts", "draw with a generator of the source, seeded by an option"):
            return list(islice(source.texts(), self.most))

    def yields_texts(self) -> str:
        for number, text in enumerate(self.texts):
            require(
                isinstance(text, Text),
                f"texts yields {text!r} as number {number}; yield framework.prompts.prompt_source.Text(name=..., "
                "category=..., text=...)",
            )
        require(bool(self.texts), "texts yields nothing; raise FileNotFoundError where there is nothing to read")
        return f"the first {self.most} texts" if len(self.texts) == self.most else f"{len(self.texts)} texts"

    def strings(self) -> None:
        for text in self.texts:
            fields = {"name": text.name, "category": text.category, "text": text.text}
            fields |= {} if text.reference is None else {"reference": text.reference}
            require(
                isinstance(text.next_turns, tuple),
                f"next_turns of {text.name!r} is {text.next_turns!r}; a tuple of strings is required",
            )
            fields |= {f"next_turns[{turn}]": said for turn, said in enumerate(text.next_turns)}
            for name, value in fields.items():
                require(isinstance(value, str), f"{name} of {text.name!r} is {value!r}; a string is required")
                require(
                    name in ("category", "reference") or bool(value.strip()),
                    f"{name} of {text.name!r} is {value!r}; leave blank texts out, and name every text",
                )

    def names(self) -> None:
        (name, times), *_ = Counter(text.name for text in self.texts).most_common(1)
        require(
            times == 1,
            f"{times} texts are named {name!r}; number them, for example FILE:LINE: records and tables tell prompts "
            "apart by their names",
        )

    def repeatable(self) -> None:
        self._require_same(
            self._read(self.source),
            "the second call of texts; start from the beginning in every call: no iterator and no position may be kept",
        )

    def independent(self) -> None:
        one, other = self.source.texts(), self.source.texts()
        together = [pair for pair, _ in zip(zip(one, other, strict=False), range(self.most), strict=False)]
        for each in zip(*together, strict=True):
            self._require_same(list(each), "one of two iterations at the same time; keep no position in the source")

    def determined(self) -> None:
        self._require_same(
            self._read(self.factory()),
            "another source with the same options; sort files and sets, and draw with a seed from the options",
        )

    def _require_same(self, got: list[Text], where: str) -> None:
        require(len(got) == len(self.texts), f"{len(got)} texts instead of {len(self.texts)} in {where}")
        for number, (text, expected) in enumerate(zip(got, self.texts, strict=True)):
            require(
                text == expected, f"text {number} is {text.name!r} instead of {expected.name!r}, or differs, in {where}"
            )
