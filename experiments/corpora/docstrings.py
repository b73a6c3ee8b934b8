"""Summarisation prompts: functions of the standard library, with their docstrings' first lines as references."""

import ast
import warnings
from collections.abc import Iterator
from textwrap import dedent

from experiments.corpora.standard_library import StandardLibrary
from framework.core.validation import check_whole
from framework.prompts.prompt_source import Text

SHORTEST_BODY = 3  # lines besides the docstring; fewer leave nothing to summarise
SHORTEST_SUMMARY = 4  # words
OPENING = '\n    """'


class Docstrings:
    """Prompts of a function without its docstring, then its head again up to the opening quotes of the docstring.

    The continuation is a summary, so no instruction tuning is needed. The reference is the first line of the removed
    docstring.
    """

    def __init__(self, *, split: str, longest: int, folder: str | None = None):
        """
        Args:
            split: split of the files, "held_out" or "train".
            longest: maximum lines of a function, docstring excluded.
            folder: folder of the library; None: that of the running Python.

        Raises:
            ValueError: an unknown split, or `longest` too small.
            FileNotFoundError: this Python ships without its sources.
        """
        check_whole("longest", longest, least=SHORTEST_BODY)
        self._files = StandardLibrary(split=split, folder=folder)
        self._longest = longest

    def texts(self) -> Iterator[Text]:
        """Yield one prompt per function in order of files and lines; the category is the file's."""
        for file in self._files.texts():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # about the library's code
                try:
                    tree = ast.parse(file.text)
                except SyntaxError:  # written for another version of Python
                    continue
            functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
            for function in sorted(functions, key=lambda node: node.lineno):
                if found := self._asked(function, file.text.splitlines()):
                    name = f"{file.name}:{function.lineno} {function.name}"
                    yield Text(name, file.category, found[0], reference=found[1])

    def _asked(self, function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> tuple[str, str] | None:
        """Prompt and reference of a function; None for an unsuitable function."""
        docstring, first = ast.get_docstring(function), function.body[0]
        if not docstring or first.end_lineno is None or function.end_lineno is None:
            return None
        head, body = lines[function.lineno - 1 : first.lineno - 1], lines[first.end_lineno : function.end_lineno]
        summary = docstring.splitlines()[0].strip()
        # A docstring on the line of its def leaves no head to repeat.
        if not head or len(summary.split()) < SHORTEST_SUMMARY or len(body) < SHORTEST_BODY:
            return None
        if len(head) + len(body) > self._longest:
            return None
        whole, again = (dedent("\n".join(part)) for part in (head + body, head))
        if whole[0].isspace():  # a multi-line string is indented less than the code, so dedent fails
            return None
        return f"{whole}\n\n\n{again}{OPENING}", summary
