"""Search over a drafter's conventions, and its conclusion in words with intervals."""

from collections.abc import Callable
from dataclasses import dataclass, field

from experiments.diagnosis.conventions import Setting, Variations
from experiments.diagnosis.positions import Positions
from framework.core.option_error import OptionError

MOST_CHANGES = 4  # conventions that differ at once
GIVEN = "as given"
CLEAR = 0.2  # lead over the most common token that the interval must exclude before nothing is said to fit


@dataclass
class Findings:
    """Settings by their measured positions, or by the reader's refusal.

    Attributes:
        measured: in the order of measurement.
        refused: settings that the drafter's reader refuses, with its reason.
        chosen: the setting from which the search goes on; None: none is measured yet.
    """

    given: Setting
    measured: dict[tuple[str, ...], tuple[Setting, Positions]] = field(default_factory=dict)
    refused: dict[tuple[str, ...], str] = field(default_factory=dict)
    chosen: Setting | None = None

    @property
    def best(self) -> Setting:
        """The given setting, or one proved better; if the given one is refused, that with the most accepted tokens."""
        assert self.chosen is not None, "examine() raises if nothing can be measured"
        return self.chosen

    def of(self, setting: Setting) -> Positions:
        return self.measured[setting.names][1]

    @property
    def comparisons(self) -> int:
        return max(1, len(self.measured) - 1)

    def ranked(self) -> list[tuple[Setting, Positions]]:
        """All measured settings, the one with the most accepted tokens first."""
        return sorted(self.measured.values(), key=lambda each: -each[1].accepted)

    def rivals(self) -> list[tuple[Setting, str]]:
        """Settings that the best one is not proved better than, each with the interval of the difference."""
        found = []
        for setting, positions in self.measured.values():
            ahead = self.of(self.best).ahead_of(positions, comparisons=self.comparisons)
            if setting is not self.best and ahead.low <= 0:
                found.append((setting, str(ahead)))
        return found

    @property
    def is_above_chance(self) -> bool:
        """Whether the best setting is more accurate than always drafting the most common token."""
        return self.of(self.best).above_chance().low > 0

    @property
    def fits_as_given(self) -> bool:
        """Whether no mistake was found."""
        return self.best is self.given and self.is_above_chance


def examine(given: Setting, variations: Variations, depth: int, measured: Callable[[Setting], Positions]) -> Findings:
    """Change one convention after another, each time from the best setting so far, until none is proved better.

    Args:
        given: the setting to begin with.
        variations: settings that differ in one convention.
        depth: number of the target's layers.
        measured: positions of a setting; raises an OptionError if the drafter's reader refuses it.

    Raises:
        OptionError: the reader refuses every setting.
    """
    findings = Findings(given)
    first = _try(findings, given, measured)
    now = given
    for _ in range(MOST_CHANGES):
        for setting in variations(now, depth):
            _try(findings, setting, measured)
        if not findings.measured:
            assert first is not None
            raise first
        top = findings.ranked()[0][0]
        if findings.chosen is not None:
            ahead = findings.of(top).ahead_of(findings.of(findings.chosen), comparisons=findings.comparisons)
            if top is findings.chosen or ahead.low <= 0:
                break
        findings.chosen = now = top
    return findings


def _try(findings: Findings, setting: Setting, measured: Callable[[Setting], Positions]) -> OptionError | None:
    """Measure a setting, unless an equal one is known."""
    if setting.names in findings.measured or setting.names in findings.refused:
        return None
    if len(set(setting.names)) < len(setting.names):
        return None
    if any(_is_same(setting, other, findings.given) for other, _ in findings.measured.values()):
        return None
    try:
        findings.measured[setting.names] = setting, measured(setting)
    except OptionError as error:
        if not error.option.endswith("path"):  # a mistake of the user, not of the files
            raise
        findings.refused[setting.names] = error.problem or str(error)
        return error
    if setting is findings.given:
        findings.chosen = setting
    return None


def _is_same(setting: Setting, other: Setting, given: Setting) -> bool:
    return setting.tensors is other.tensors and setting.remedies(given) == other.remedies(given)


def setting_name(setting: Setting) -> str:
    return "; ".join(setting.names) or GIVEN


def in_words(findings: Findings) -> list[str]:
    """The conclusion: the setting that the drafter was trained for, and how to set it; or that none fits."""
    best, given = findings.best, findings.given
    positions, rivals = findings.of(best), findings.rivals()
    if not findings.is_above_chance:
        above = positions.above_chance()
        found = (
            f"the best setting, {setting_name(best)}, is right at {positions.accuracy:.1%} of "
            f"{positions.number} positions; always drafting the most common token, at {positions.most_common:.1%} "
            f"(difference {above})."
        )
        if above.high > CLEAR:
            return [f"No conclusion: {found}", "More positions may decide: set prompts.count or max_new_tokens higher."]
        return [
            f"None of these settings fits: {found}",
            "The drafter was trained for another target or tokenizer, was hardly trained, or has a mistake that is not "
            "among them.",
        ]
    lines = []
    if best is given:
        proved = "every other setting is worse" if not rivals else "no other setting is proved better"
        lines.append(f"The drafter fits as given: {proved}.")
    elif given.names in findings.refused:
        lines.append(f"As given, the drafter cannot be read: {findings.refused[given.names]}.")
        lines.append(f"It was trained for: {setting_name(best)}.")
    else:
        before = findings.of(given)
        ahead = positions.ahead_of(before, comparisons=findings.comparisons)
        lines.append(
            f"The drafter was trained for: {setting_name(best)}. It drafts {positions.accepted:.2f} right tokens at "
            f"each of {positions.number} positions, and {before.accepted:.2f} as given (difference {ahead})."
        )
    if rivals:
        listed = ", ".join(f"{setting_name(setting)} (difference {ahead})" for setting, ahead in rivals)
        lines.append(f"No clear winner between {setting_name(best)} and: {listed}. More prompts may decide.")
    if best is not given:
        lines += [f"To change: {remedy}" for remedy in best.remedies(given)]
    return lines
