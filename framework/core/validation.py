"""Range checks of options that are numbers."""

from collections.abc import Callable

from framework.core.option_error import OptionError


def check_whole(option: str, value: object, *, least: int, most: int | None = None, or_null: bool = False) -> None:
    """Check that an option is a whole number from `least` to `most`.

    Args:
        option: name of the option, for the error.
        value: the value given; a bool is not a whole number.
        least: smallest allowed value.
        most: largest allowed value; None: no upper bound.
        or_null: whether None is allowed, too.

    Raises:
        OptionError: the value is not allowed.
    """
    if isinstance(value, int) and not isinstance(value, bool) and least <= value and (most is None or value <= most):
        return
    if or_null and value is None:
        return
    allowed = f">= {least}" if most is None else f"from {least} to {_shown(most)}"
    raise OptionError(option, value, f"a whole number {allowed}" + (", or null" if or_null else ""))


def _shown(bound: int) -> str:
    """A bound in digits, or a long one that is a power of two as such."""
    exponent = bound.bit_length() - 1
    return f"2**{exponent}" if exponent > 32 and bound == 2**exponent else str(bound)


def check_number(option: str, value: object, within: Callable[[float], bool], allowed: str) -> None:
    """Check that an option is a number within a range.

    Args:
        option: name of the option, for the error.
        value: the value given; a bool is not a number.
        within: whether a number is in the range.
        allowed: the range in words.

    Raises:
        OptionError: the value is not allowed.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not within(value):
        raise OptionError(option, value, allowed)
