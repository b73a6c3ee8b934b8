"""Functions to be summed up in a line: the standard library's own, whose docstrings tell what their authors wrote."""

import ast
import warnings
from collections.abc import Iterator
from textwrap import dedent

from framework.prompts.prompt_source import Text, key
from framework.prompts.standard_library import StandardLibrary
from framework.whole_numbers import check_whole

SHORTEST_BODY = 3  # lines beside the docstring: fewer leave nothing to sum up
SHORTEST_SUMMARY = 4  # words
OPENING = '\n    """'


class Docstrings:
    """A function without its docstring, then its head once more up to the opening quotes: what comes next sums it up.

    Any model that has read Python can go on from there. The reference is the first line that was taken out.
    """

    def __init__(self, *, split: str, longest: int, folder: str | None = None):
        """
        Args:
            split: "held_out" or "train"; of files.
            longest: lines of a function, the docstring not counted.
            folder: where the library lies; None asks the running Python.

        Raises:
            ValueError: an unknown split, or no line allowed.
            FileNotFoundError: this Python ships without its sources.
        """
        check_whole(key("longest"), longest, least=SHORTEST_BODY)
        self._files = StandardLibrary(split=split, folder=folder)
        self._longest = longest

    def texts(self) -> Iterator[Text]:
        """Yield the functions in the order of their files and lines; the category is that of the file."""
        for file in self._files.texts():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # of what others wrote
                try:
                    tree = ast.parse(file.text)
                except SyntaxError:  # written for another Python
                    continue
            functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
            for function in sorted(functions, key=lambda node: node.lineno):
                if found := self._asked(function, file.text.splitlines()):
                    name = f"{file.name}:{function.lineno} {function.name}"
                    yield Text(name, file.category, found[0], reference=found[1])

    def _asked(self, function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> tuple[str, str] | None:
        """What is asked and its answer; None for a function that is no good example."""
        docstring, first = ast.get_docstring(function), function.body[0]
        if not docstring or first.end_lineno is None or function.end_lineno is None:
            return None
        head, body = lines[function.lineno - 1 : first.lineno - 1], lines[first.end_lineno : function.end_lineno]
        summary = docstring.splitlines()[0].strip()
        # A docstring on the line of its def leaves no head to begin again with.
        if not head or len(summary.split()) < SHORTEST_SUMMARY or len(body) < SHORTEST_BODY:
            return None
        if len(head) + len(body) > self._longest:
            return None
        whole, again = (dedent("\n".join(part)) for part in (head + body, head))
        if whole[0].isspace():  # a string that reaches further left than the code around it
            return None
        return f"{whole}\n\n\n{again}{OPENING}", summary
