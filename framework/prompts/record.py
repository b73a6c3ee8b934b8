"""A record of named fields as a text: what JSON lines and datasets have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from framework.prompts.prompt_source import Text, key


@dataclass(frozen=True)
class Fields:
    """Which fields of a record hold what. A dot goes into a record within: translation.en.

    Attributes:
        field: the text; of a list of strings, the turns of a dialogue, the first is the text and the others come later.
        reference_field: what is to be answered; None where nothing is.
        category_field: the category; None gives all texts that of their source.
    """

    field: str
    reference_field: str | None
    category_field: str | None

    def text_of(self, record: Mapping[str, Any], *, name: str, category: str, place: str) -> Text:
        """The text that a record holds.

        Args:
            record: values by field.
            name: of the text.
            category: where no field gives it.
            place: of the record, for errors.

        Raises:
            ValueError: a field is missing, or holds no text.
        """
        said = _value(record, "field", self.field, place)
        turns = said if isinstance(said, list) and said else [said]
        if not all(isinstance(turn, str) for turn in turns):
            raise ValueError(
                f"{place}: {self.field!r} holds {said!r}; {key('field')} must name a string or a list of strings"
            )
        reference = None
        if self.reference_field is not None:
            reference = _value(record, "reference_field", self.reference_field, place)
            if not isinstance(reference, str):
                raise ValueError(
                    f"{place}: {self.reference_field!r} holds {reference!r}; "
                    f"{key('reference_field')} must name a string"
                )
        if self.category_field is not None:
            category = str(_value(record, "category_field", self.category_field, place))
        return Text(name, category, turns[0], reference=reference, later_turns=tuple(turns[1:]))


def _value(record: Mapping[str, Any], knob: str, field: str, place: str) -> Any:
    if field in record:
        return record[field]
    value: Any = record
    for part in field.split("."):
        if not isinstance(value, Mapping) or part not in value:
            present = ", ".join(record) or "none"
            raise ValueError(f"{place}: {key(knob)} is {field!r}; fields present: {present}")
        value = value[part]
    return value
