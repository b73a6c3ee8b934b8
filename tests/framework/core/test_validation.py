"""Whole-number options: their ranges, and errors for any other value."""

import pytest

from framework.core.validation import check_whole


@pytest.mark.parametrize(
    ("value", "bounds"), [(3, {}), (10**12, {}), (3, {"most": 3}), (5, {"most": 5}), (None, {"or_null": True})]
)
def test_a_number_in_its_range_passes(value, bounds):
    check_whole("part.option", value, least=3, **bounds)


@pytest.mark.parametrize(
    ("value", "bounds", "allowed"),
    [
        (2, {}, ">= 3"),
        (3.0, {}, ">= 3"),
        ("4", {}, ">= 3"),
        (True, {}, ">= 3"),
        (None, {}, ">= 3"),
        (float("nan"), {}, ">= 3"),
        (6, {"most": 5}, "from 3 to 5"),
        (2, {"or_null": True}, ">= 3, or null"),
        (False, {"most": 5, "or_null": True}, "from 3 to 5, or null"),
    ],
)
def test_anything_else_is_refused_by_its_key(value, bounds, allowed):
    with pytest.raises(ValueError) as raised:
        check_whole("part.option", value, least=3, **bounds)
    assert str(raised.value) == f"part.option is {value!r}; allowed: a whole number {allowed}"
