"""Summarisation prompts: functions without their docstrings, with the docstrings' first lines as references."""

import ast
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from textwrap import dedent

from experiments.corpora.python_corpus import read_python_corpus
from experiments.corpora.standard_library import StandardLibrary
from framework.core.option_error import OptionError
from framework.core.validation import check_whole
from framework.prompts.prompt_source import Text

SHORTEST_BODY = 3  # lines besides the docstring; fewer leave nothing to summarise
SHORTEST_SUMMARY = 4  # words
OPENING = '\n    """'
PREFIX = "summarize: "  # that of T5 (Raffel et al., 2020)


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
        for function in _documented(self._files.texts(), self._longest):
            prompt = f"{function.code}\n\n\n{function.head}{OPENING}"
            yield Text(function.name, function.category, prompt, reference=function.summary)


class FunctionSummaries:
    """Pairs for a summarising encoder-decoder: a function without its docstring, and the docstring's first line.

    The text begins with T5's prefix for summaries.
    """

    def __init__(self, *, split: str, longest: int, packages: bool, folder: str | None = None):
        """
        Args:
            split: split of the files, "held_out" or "train".
            longest: maximum lines of a function, docstring excluded.
            packages: whether the training split has the library's own tests and the installed packages as well,
                without files that repeat held-out text.
            folder: folder of the library; None: that of the running Python.

        Raises:
            ValueError: an unknown split, packages outside the training split or beside another library, or `longest`
                too small.
            FileNotFoundError: this Python ships without its sources.
        """
        check_whole("longest", longest, least=SHORTEST_BODY)
        self._files = StandardLibrary(split=split, folder=folder)
        if packages and (split != "train" or folder is not None):
            raise OptionError("packages", packages, "false", "beside a folder or a split other than train")
        self._longest, self._packages = longest, packages

    def texts(self) -> Iterator[Text]:
        """Yield one pair per function, in order of files and lines and without repetitions."""
        known: set[tuple[str, str]] = set()
        for function in _documented(self._of_all_files(), self._longest):
            if (pair := (function.code, function.summary)) not in known:
                known.add(pair)
                yield Text(function.name, function.category, PREFIX + function.code, reference=function.summary)

    def _of_all_files(self) -> Iterator[Text]:
        if not self._packages:
            yield from self._files.texts()
            return
        corpus = read_python_corpus()
        for category, texts in (("standard library", corpus.standard_library), ("packages", corpus.packages)):
            for number, text in enumerate(texts):
                yield Text(f"{category} {number}", category, text)


@dataclass(frozen=True)
class _Function:
    """A function with a docstring.

    Attributes:
        name: file, line and name.
        category: the file's.
        code: the function without its docstring.
        head: its lines before the docstring.
        summary: first line of the docstring.
    """

    name: str
    category: str
    code: str
    head: str
    summary: str


def _documented(files: Iterable[Text], longest: int) -> Iterator[_Function]:
    """Yield the functions with a docstring and at most `longest` other lines, in order of files and lines."""
    for file in files:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # about the files' code
            try:
                tree = ast.parse(file.text)
            except SyntaxError:  # written for another version of Python
                continue
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        lines = file.text.splitlines()
        for node in sorted(functions, key=lambda node: node.lineno):
            if function := _function(node, file, lines, longest):
                yield function


def _function(
    function: ast.FunctionDef | ast.AsyncFunctionDef, file: Text, lines: list[str], longest: int
) -> _Function | None:
    """The function of a syntax tree; None if it is unsuitable."""
    docstring, first = ast.get_docstring(function), function.body[0]
    if not docstring or first.end_lineno is None or function.end_lineno is None:
        return None
    head, body = lines[function.lineno - 1 : first.lineno - 1], lines[first.end_lineno : function.end_lineno]
    summary = docstring.splitlines()[0].strip()
    # A docstring on the line of its def leaves no head to repeat.
    if not head or len(summary.split()) < SHORTEST_SUMMARY or len(body) < SHORTEST_BODY:
        return None
    if len(head) + len(body) > longest:
        return None
    code, head_alone = (dedent("\n".join(part)) for part in (head + body, head))
    if code[0].isspace():  # a multi-line string is indented less than the code, so dedent fails
        return None
    name = f"{file.name}:{function.lineno} {function.name}"
    return _Function(name, file.category, code=code, head=head_alone, summary=summary)
