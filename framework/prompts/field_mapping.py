"""Mapping from a record of named fields to a text, shared by JSON lines and datasets."""

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from framework.core.option_error import OptionError
from framework.prompts.prompt_source import Text

# Keys of a turn's speaker and words, and names of the user and of the model: ShareGPT's, and those of chat templates.
TURNS = (
    ("from", "value", ("human", "user"), ("gpt", "assistant", "chatgpt", "bard", "bing")),
    ("role", "content", ("user",), ("assistant",)),
)


@dataclass(frozen=True)
class Fields:
    """Names of a record's fields. A dot addresses a field of a nested record: translation.en.

    Attributes:
        field: field of the text, a string; or of the turns of a dialogue, a list of strings whose first is the text, or
            of turns with a speaker, as in ShareGPT. Prompts are the user's, since the target answers them; the model's
            are kept as answers where they alternate with the user's.
        reference_field: field of the reference answer; None: texts have none.
        category_field: field of the category; None: all texts get the category of their source.
        tests: Python code that raises an error unless the completed text is right, with names of fields in braces, such
            as "{test}"; None: texts have none.

    Raises:
        ValueError: `tests` is no text, or has braces around anything but the name of a field.
    """

    field: str
    reference_field: str | None
    category_field: str | None
    tests: str | None

    def __post_init__(self) -> None:
        allowed = "text with names of fields in braces, such as {test}; other braces are doubled: {{ and }}"
        if self.tests is not None and not isinstance(self.tests, str):
            raise OptionError("tests", self.tests, allowed)
        try:
            parts = list(Formatter().parse(self.tests or ""))
        except ValueError as error:
            raise OptionError("tests", self.tests, allowed, str(error)) from error
        for _, field, form, conversion in parts:
            if field == "" or form or conversion:
                raise OptionError("tests", self.tests, allowed, "which holds other braces")

    def text_of(self, record: Mapping[str, Any], *, name: str, category: str, place: str) -> Text:
        """The text of a record.

        Args:
            record: values by field.
            name: name of the text.
            category: category of the text if category_field is None.
            place: location of the record, for error messages.

        Raises:
            ValueError: a field is missing, or holds no text.
        """
        said = _value(record, "field", self.field, place)
        turns = said if isinstance(said, list) and said else [said]
        answers: list[Any] = []
        if isinstance(turns[0], Mapping):
            turns, answers = _by_speaker(turns)
            turns = turns or [said]
        if not all(isinstance(answer, str) for answer in answers):  # such as null beside the call of a tool
            answers = []
        if not all(isinstance(turn, str) for turn in turns):
            problem = f"which holds {said!r} in {place}"
            raise OptionError("field", self.field, "the name of a string, or of turns with one of the user", problem)
        reference = None
        if self.reference_field is not None:
            reference = _value(record, "reference_field", self.reference_field, place)
            if not isinstance(reference, str):
                problem = f"which holds {reference!r} in {place}"
                raise OptionError("reference_field", self.reference_field, "the name of a string", problem)
        if self.category_field is not None:
            category = str(_value(record, "category_field", self.category_field, place))
        return Text(
            name,
            category,
            turns[0],
            reference=reference,
            next_turns=tuple(turns[1:]),
            answers=tuple(answers),
            tests=self._filled_tests(record, place),
        )

    def _filled_tests(self, record: Mapping[str, Any], place: str) -> str | None:
        if self.tests is None:
            return None
        parts = Formatter().parse(self.tests)
        return "".join(
            text if field is None else text + str(_value(record, "tests", field, place)) for text, field, _, _ in parts
        )


def _by_speaker(turns: list[Any]) -> tuple[list[Any], list[Any]]:
    """Words of the user and of the model in a dialogue of turns with a speaker.

    There are none of the user if the turns have other keys. Answers are returned only if user and model alternate,
    after a system message at most; the last user turn may be unanswered.
    """
    for speaker, words, user, model in TURNS:
        if all(isinstance(turn, Mapping) and speaker in turn and words in turn for turn in turns):
            said = [turn[words] for turn in turns if turn[speaker] in user]
            spoken = turns[1:] if turns[0][speaker] == "system" else turns
            alternates = all(turn[speaker] in (user, model)[place % 2] for place, turn in enumerate(spoken))
            return said, [turn[words] for turn in spoken[1::2]] if alternates else []
    return [], []


def _value(record: Mapping[str, Any], option: str, field: str, place: str) -> Any:
    if field in record:
        return record[field]
    value: Any = record
    for part in field.split("."):
        if not isinstance(value, Mapping) or part not in value:
            present = ", ".join(record) or "none"
            raise OptionError(option, field, present, f"which {place} lacks")
        value = value[part]
    return value
