"""Functions to complete: their tests accept a right body and refuse an empty one."""

import builtins

import pytest

from experiments.corpora.function_tasks import TASKS, FunctionTasks

BODIES = {
    "add": "a + b", "subtract": "a - b", "multiply": "a * b", "negate": "-x", "absolute": "abs(x)", "identity": "x",
    "is_equal": "a == b", "is_none": "value is None", "is_string": "isinstance(value, str)",
    "is_list": "isinstance(value, list)", "is_empty": "not items", "size": "len(items)", "first": "items[0]",
    "last": "items[-1]", "total": "sum(numbers)", "largest": "max(numbers)", "smallest": "min(numbers)",
    "in_order": "sorted(items)", "unique": "set(items)", "to_string": "str(value)", "to_integer": "int(text)",
    "upper": "text.upper()", "stripped": "text.strip()", "lines": "text.splitlines()",
}  # fmt: skip


@pytest.mark.parametrize("text", list(FunctionTasks(times=1).texts()), ids=lambda text: text.name)
def test_tests_accept_what_is_right_alone(text):
    name = text.name.split("(")[0]
    exec(f"{text.text} {BODIES[name]}\n{text.tests}", {})
    with pytest.raises((AssertionError, TypeError)):
        exec(f"{text.text} None\n{text.tests}", {})


def test_names_are_distinct_and_hide_no_builtin():
    names = [text.name for text in FunctionTasks(times=3).texts()]
    assert len(set(names)) == 3 * len(TASKS)
    assert not {name.split("(")[0] for name in names} & set(dir(builtins))
