"""Prompts for code completion: beginnings of short functions, with tests."""

from collections.abc import Iterator
from typing import NamedTuple

from framework.core.validation import check_whole
from framework.prompts.prompt_source import Text


class Task(NamedTuple):
    """A function to complete, and an assertion that holds for a right one."""

    signature: str
    docstring: str
    tests: str


TASKS = (
    Task("add(a, b)", "Return the sum of a and b.", "assert add(2, 3) == 5 and add(-1, 1) == 0"),
    Task("subtract(a, b)", "Return a minus b.", "assert subtract(5, 3) == 2 and subtract(1, 4) == -3"),
    Task("multiply(a, b)", "Return the product of a and b.", "assert multiply(4, 3) == 12 and multiply(0, 7) == 0"),
    Task("negate(x)", "Return x with the opposite sign.", "assert negate(3) == -3 and negate(-2) == 2"),
    Task("absolute(x)", "Return the absolute value of x.", "assert absolute(-3) == 3 and absolute(2) == 2"),
    Task("identity(x)", "Return x.", "assert identity(7) == 7 and identity('a') == 'a'"),
    Task("is_equal(a, b)", "Return True if a and b are equal.", "assert is_equal(1, 1) is True and not is_equal(1, 2)"),
    Task("is_none(value)", "Return True if value is None.", "assert is_none(None) is True and is_none(0) is False"),
    Task("is_string(value)", "Return True if value is a string.", "assert is_string('a') and not is_string(1)"),
    Task("is_list(value)", "Return True if value is a list.", "assert is_list([]) and not is_list(())"),
    Task("is_empty(items)", "Return True if items has no elements.", "assert is_empty([]) and not is_empty([1])"),
    Task("size(items)", "Return the number of items.", "assert size([1, 2]) == 2 and size([]) == 0"),
    Task("first(items)", "Return the first of the items.", "assert first([4, 5, 6]) == 4 and first('ab') == 'a'"),
    Task("last(items)", "Return the last of the items.", "assert last([4, 5, 6]) == 6 and last('ab') == 'b'"),
    Task("total(numbers)", "Return the sum of the numbers.", "assert total([1, 2, 3]) == 6 and total([]) == 0"),
    Task("largest(numbers)", "Return the largest of the numbers.", "assert largest([3, 9, 2]) == 9"),
    Task("smallest(numbers)", "Return the smallest of the numbers.", "assert smallest([3, 9, 2]) == 2"),
    Task("in_order(items)", "Return a sorted list of the items.", "assert in_order([3, 1, 2]) == [1, 2, 3]"),
    Task("unique(items)", "Return a set of the items.", "assert unique([1, 1, 2]) == {1, 2}"),
    Task("to_string(value)", "Return value as a string.", "assert to_string(12) == '12' and to_string('a') == 'a'"),
    Task("to_integer(text)", "Return text as an integer.", "assert to_integer('12') == 12"),
    Task("upper(text)", "Return text in upper case.", "assert upper('aB') == 'AB'"),
    Task("stripped(text)", "Return text without leading and trailing whitespace.", "assert stripped('  a ') == 'a'"),
    Task("lines(text)", "Return a list of the lines of text.", "assert lines('a\\nb') == ['a', 'b']"),
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
        """Yield the beginnings of all functions `times` times, with numbered names."""
        for number in range(1, self._times + 1):
            for task in TASKS:
                prompt = f'def {task.signature}:\n    """{task.docstring}"""\n    return'
                yield Text(f"{task.signature} {number}", "functions", prompt, tests=task.tests)
