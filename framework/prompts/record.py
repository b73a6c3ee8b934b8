"""A record of named fields as a text: what JSON lines and datasets have in common."""

from collections.abc import Mapping
from typing import Any

from framework.prompts.prompt_source import Text, key


def text_of(
    record: Mapping[str, Any], *, field: str, category_field: str | None, name: str, category: str, place: str
) -> Text:
    """The text that a record holds.

    Args:
        record: values by field.
        field: whose value is the text; of a list of strings (the turns of a dialogue) the first is taken.
        category_field: whose value is the category; None takes `category`.
        name: of the text.
        category: where no field gives it.
        place: of the record, for errors.

    Raises:
        ValueError: a field is missing, or the first holds no text.
    """
    text = _value(record, "field", field, place)
    if isinstance(text, list) and text:
        text = text[0]
    if not isinstance(text, str):
        raise ValueError(f"{place}: {field!r} holds {text!r}; {key('field')} must name a string or a list of strings")
    if category_field is not None:
        category = str(_value(record, "category_field", category_field, place))
    return Text(name=name, category=category, text=text)


def _value(record: Mapping[str, Any], knob: str, field: str, place: str) -> Any:
    if field not in record:
        present = ", ".join(record) or "none"
        raise ValueError(f"{place}: {key(knob)} is {field!r}; fields present: {present}")
    return record[field]
