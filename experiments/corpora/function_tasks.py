"""Prompts for code completion: beginnings of short functions, with tests."""

from collections.abc import Iterator

from framework.core.validation import check_whole
from framework.prompts.prompt_source import Text

# (signature, docstring, tests)
TASKS = (
    ("add(a, b)", "Return the sum of a and b.", "assert add(2, 3) == 5 and add(-1, 1) == 0"),
    ("subtract(a, b)", "Return a minus b.", "assert subtract(5, 3) == 2 and subtract(1, 4) == -3"),
    ("multiply(a, b)", "Return the product of a and b.", "assert multiply(4, 3) == 12 and multiply(0, 7) == 0"),
    ("negate(x)", "Return x with the opposite sign.", "assert negate(3) == -3 and negate(-2) == 2"),
    ("absolute(x)", "Return the absolute value of x.", "assert absolute(-3) == 3 and absolute(2) == 2"),
    ("identity(x)", "Return x.", "assert identity(7) == 7 and identity('a') == 'a'"),
    ("is_equal(a, b)", "Return True if a and b are equal.", "assert is_equal(1, 1) is True and not is_equal(1, 2)"),
    ("is_none(value)", "Return True if value is None.", "assert is_none(None) is True and is_none(0) is False"),
    ("is_string(value)", "Return True if value is a string.", "assert is_string('a') and not is_string(1)"),
    ("is_list(value)", "Return True if value is a list.", "assert is_list([]) and not is_list(())"),
    ("is_empty(items)", "Return True if items has no elements.", "assert is_empty([]) and not is_empty([1])"),
    ("size(items)", "Return the number of items.", "assert size([1, 2]) == 2 and size([]) == 0"),
    ("first(items)", "Return the first of the items.", "assert first([4, 5, 6]) == 4 and first('ab') == 'a'"),
    ("last(items)", "Return the last of the items.", "assert last([4, 5, 6]) == 6 and last('ab') == 'b'"),
    ("total(numbers)", "Return the sum of the numbers.", "assert total([1, 2, 3]) == 6 and total([]) == 0"),
    ("largest(numbers)", "Return the largest of the numbers.", "assert largest([3, 9, 2]) == 9"),
    ("smallest(numbers)", "Return the smallest of the numbers.", "assert smallest([3, 9, 2]) == 2"),
    ("in_order(items)", "Return a sorted list of the items.", "assert in_order([3, 1, 2]) == [1, 2, 3]"),
    ("unique(items)", "Return a set of the items.", "assert unique([1, 1, 2]) == {1, 2}"),
    ("to_string(value)", "Return value as a string.", "assert to_string(12) == '12' and to_string('a') == 'a'"),
    ("to_integer(text)", "Return text as an integer.", "assert to_integer('12') == 12"),
    ("upper(text)", "Return text in upper case.", "assert upper('aB') == 'AB'"),
    ("stripped(text)", "Return text without leading and trailing whitespace.", "assert stripped('  a ') == 'a'"),
    ("lines(text)", "Return a list of the lines of text.", "assert lines('a\\nb') == ['a', 'b']"),
)


class FunctionTasks:
    """Signatures, docstrings and the word `return` of short functions, with assertions as tests."""

    def __init__(self, *, times: int):
        """
        Args:
            times: number of prompts per function; every prompt is decoded with its own seed.

        Raises:
            ValueError: times < 1.
        """
        check_whole("times", times, least=1)
        self._times = times

    def texts(self) -> Iterator[Text]:
        """Yield the beginnings of all functions, then all again; names are numbered."""
        for number in range(1, self._times + 1):
            for signature, docstring, tests in TASKS:
                prompt = f'def {signature}:\n    """{docstring}"""\n    return'
                yield Text(f"{signature} {number}", "functions", prompt, tests=tests)
