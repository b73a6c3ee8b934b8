"""Whole numbers that are given as knobs, and their ranges."""


def check_whole(key: str, value: object, *, least: int, most: int | None = None, or_null: bool = False) -> None:
    """
    Args:
        key: the yaml key the value comes from, for the message.
        most: the largest that is allowed; None sets no such bound.
        or_null: None is allowed, too.

    Raises:
        ValueError: the value is no whole number in that range, nor null where null is allowed.
    """
    if isinstance(value, int) and not isinstance(value, bool) and least <= value and (most is None or value <= most):
        return
    if or_null and value is None:
        return
    allowed = f">= {least}" if most is None else f"from {least} to {most}"
    raise ValueError(f"{key} is {value!r}; allowed: a whole number {allowed}" + (", or null" if or_null else ""))
