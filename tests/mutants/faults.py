"""Single-line faults of a module, and a sample of them that is stable under edits elsewhere."""

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.Pow: ("**", "*"),
}
OPPOSITES = {
    first: second
    for one, other in (
        ("min", "max"),
        ("any", "all"),
        ("amin", "amax"),
        ("argmin", "argmax"),
        ("minimum", "maximum"),
        ("zeros", "ones"),
        ("zeros_like", "ones_like"),
        ("new_zeros", "new_ones"),
        ("cumsum", "cumprod"),
        ("log", "exp"),
    )
    for first, second in ((one, other), (other, one))
}
# Calls that keep the shape of their object or argument: code still runs without them.
SHAPE_KEEPING = {"clamp", "masked_fill", "where", "abs", "flip", "double", "float", "to", "long", "sorted", "reversed"}
# Integers of these calls are not mutated: a wrong axis nearly always raises, so any test detects it.
TAKING_AXES = {
    *("amax", "amin", "any", "all", "argmax", "argmin", "cat", "cumprod", "cumsum", "expand", "flatten", "flip"),
    *("gather", "index_select", "mean", "movedim", "narrow", "permute", "prod", "repeat_interleave", "scatter"),
    *("scatter_", "scatter_add", "scatter_add_", "select", "size", "softmax", "split", "squeeze", "squeeze_", "stack"),
    *("sum", "transpose", "unbind", "unflatten", "unsqueeze", "unsqueeze_", "view"),
}
OPTIONAL_KEYWORDS = {"min", "max", "default", "right", "reverse", "key", "start", "value", "dtype", "keep", "valid"}


@dataclass(frozen=True)
class Edit:
    """Replacement of bytes [start, end) in one line of a source; lines count from 1."""

    line: int
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        lines = source.encode().splitlines(keepends=True)
        old = lines[self.line - 1]
        lines[self.line - 1] = old[: self.start] + self.text.encode() + old[self.end :]
        return b"".join(lines).decode()


@dataclass(frozen=True)
class Fault:
    """One edited line of a module.

    Attributes:
        path: path of the module, relative to the repository.
        function: qualified name of the function.
        line: number of the line, from 1.
        first_line: first line of its statement, or of the header of a compound one.
        last_line: last line of the same; tests that run any of these lines cover the fault.
        before: original line, stripped.
        after: edited line, stripped.
        occurrence: number of earlier lines in the function with the same text.
        source: source of the module with the fault.
    """

    path: str
    function: str
    line: int
    first_line: int
    last_line: int
    before: str
    after: str
    occurrence: int
    source: str

    @property
    def module(self) -> str:
        return Path(self.path).stem

    @property
    def key(self) -> str:
        """Digest that is stable under edits elsewhere and under a move of the module."""
        return digest(self.module, self.function, self.before, str(self.occurrence), self.after)


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def sampled_faults(path: str, source: str, *, lines_per_fault: int) -> list[Fault]:
    """Sample one fault per `lines_per_fault` mutable lines of each function, at least one per function.

    Lines and their faults are chosen by digests of their text, so an edit of one function leaves the samples of all
    others unchanged.
    """
    by_function: dict[str, dict[int, list[Fault]]] = {}
    for fault in all_faults(path, source):
        by_function.setdefault(fault.function, {}).setdefault(fault.line, []).append(fault)
    sample = []
    for function, by_line in by_function.items():
        number = -(-len(by_line) // lines_per_fault)
        lines = sorted(
            by_line.values(), key=lambda faults: digest(function, faults[0].before, str(faults[0].occurrence))
        )
        sample += [min(faults, key=lambda fault: fault.key) for faults in lines[:number]]
    return sorted(sample, key=lambda fault: fault.line)


def all_faults(path: str, source: str) -> Iterator[Fault]:
    """Every single-line fault in the bodies of a module's functions."""
    tree = ast.parse(source)
    original, lines = ast.dump(tree), source.splitlines()
    for name, function in _functions(tree):
        for statement in _statements(function):
            first, last = _extent(statement)
            for edit in dict.fromkeys(_edits(statement, lines, constructs=function.name == "__init__")):
                edited = edit.apply(source)
                if not _is_another_program(edited, original):
                    continue
                before, after = lines[edit.line - 1].strip(), edited.splitlines()[edit.line - 1].strip()
                earlier = [line.strip() for line in lines[function.lineno : edit.line - 1]]
                yield Fault(path, name, edit.line, first, last, before, after, earlier.count(before), edited)


def _is_another_program(source: str, original: str) -> bool:
    try:
        return ast.dump(ast.parse(source)) != original
    except SyntaxError:
        return False


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods with their qualified names; a nested function belongs to the enclosing one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _statements(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    """Statements of a function's body, without docstrings, raise, assert and import statements."""
    pending = list(function.body)
    while pending:
        statement = pending.pop(0)
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_text and not isinstance(statement, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
            yield statement
        pending += [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]


def _extent(statement: ast.stmt) -> tuple[int, int]:
    """First and last line of a statement, or of the header of a compound statement."""
    body = getattr(statement, "body", None)
    return statement.lineno, body[0].lineno - 1 if body else statement.end_lineno


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions of a statement, without nested statements, annotations and f-strings."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and isinstance(node, ast.stmt):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.stmt | ast.JoinedStr) or not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.expr):
                yield child
            yield from _expressions(child)


def _edits(statement: ast.stmt, lines: list[str], *, constructs: bool) -> Iterator[Edit]:
    if not constructs:
        yield from _of_statement(statement)
    axes = _axes(statement)
    for node in _expressions(statement):
        if id(node) not in axes:
            for edit in _of_expression(node, _Lines(lines)):
                if edit is not None:
                    yield edit


def _of_statement(statement: ast.stmt) -> Iterator[Edit]:
    """Edits that remove the statement or negate its condition."""
    if isinstance(statement, ast.If | ast.While) and not isinstance(statement.test, ast.Compare | ast.UnaryOp):
        test = statement.test
        if test.lineno == test.end_lineno:
            yield Edit(test.lineno, test.col_offset, test.end_col_offset, f"not ({ast.unparse(test)})")
    if statement.lineno != statement.end_lineno:
        return
    # Any test detects a missing name, so plain assignments are not removed; nor are statements of constructors.
    writes = isinstance(statement, ast.Assign) and all(
        isinstance(each, ast.Subscript | ast.Attribute) for each in statement.targets
    )
    calls = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    leaves = isinstance(statement, ast.Break | ast.Continue)
    if writes or calls or leaves or isinstance(statement, ast.AugAssign):
        yield Edit(statement.lineno, statement.col_offset, statement.end_col_offset, "pass")


def _axes(statement: ast.stmt) -> set[int]:
    """Ids of the constants that are an axis or the `strict` argument of `zip`."""
    found = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TAKING_AXES:
            found |= {id(inner) for argument in node.args for inner in (argument, *ast.iter_child_nodes(argument))}
        if isinstance(node, ast.keyword) and node.arg in ("dim", "axis", "strict"):
            found |= {id(inner) for inner in ast.walk(node.value)}
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            found |= {id(inner) for inner in ast.walk(node.slice)}
    return found


class _Lines:
    """Builder of edits by source positions; None for edits that span several lines."""

    def __init__(self, lines: list[str]):
        self._lines = [line.encode() for line in lines]

    def replace(self, node: ast.expr | ast.keyword, text: str) -> Edit | None:
        return self.between((node.lineno, node.col_offset), _end(node), text)

    def between(self, start: tuple[int, int], end: tuple[int, int], text: str) -> Edit | None:
        return Edit(start[0], start[1], end[1], text) if start[0] == end[0] else None

    def token(self, left: ast.expr, right: ast.expr, old: str, new: str) -> Edit | None:
        """Edit that replaces the operator between two operands."""
        (line, start), end = _end(left), (right.lineno, right.col_offset)
        if line != end[0]:  # an operator at the start of a line is on the line of its right operand
            line, start = end[0], 0
        gap = self._lines[line - 1][start : end[1]].decode()
        found = (
            re.search(rf"(?<!\w){re.escape(old)}(?!\w)", gap) if old.isidentifier() else re.search(re.escape(old), gap)
        )
        return Edit(line, start + found.start(), start + found.end(), new) if found else None


def _end(node: ast.expr | ast.keyword) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset


def _of_expression(node: ast.expr, lines: _Lines) -> Iterator[Edit | None]:
    match node:
        case ast.Compare(left, operators, comparators):
            for one, operator, other in zip([left, *comparators], operators, comparators, strict=False):
                yield lines.token(one, other, *COMPARISONS[type(operator)])
        case ast.BinOp(left, operator, right) if type(operator) in ARITHMETIC:
            yield lines.token(left, right, *ARITHMETIC[type(operator)])
        case ast.BoolOp(operator, values):
            swap = ("and", "or") if isinstance(operator, ast.And) else ("or", "and")
            for one, other in pairwise(values):
                yield lines.token(one, other, *swap)
        case ast.UnaryOp(operator):
            start, length = (node.lineno, node.col_offset), len("not ") if isinstance(operator, ast.Not) else 1
            yield lines.between(start, (node.lineno, node.col_offset + length), "")
        case ast.Constant(value):
            yield from _of_constant(node, value, lines)
        case ast.Slice(lower, upper, _):
            for bound in (lower, upper):
                if bound is not None and not isinstance(bound, ast.Constant):
                    yield lines.replace(bound, "")
        case ast.IfExp(test) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield lines.between((test.lineno, test.col_offset), _end(test), f"not ({ast.unparse(test)})")
        case ast.Call():
            yield from _of_call(node, lines)


def _of_constant(node: ast.Constant, value: object, lines: _Lines) -> Iterator[Edit | None]:
    if isinstance(value, bool):
        yield lines.replace(node, str(not value))
    elif isinstance(value, int):
        yield lines.replace(node, str(value + 1))
        if value > 0:
            yield lines.replace(node, str(value - 1))
    elif isinstance(value, float):
        yield lines.replace(node, "1.0" if value == 0 else "0.0")


def _of_call(node: ast.Call, lines: _Lines) -> Iterator[Edit | None]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    line, end = _end(node.func)
    if name in OPPOSITES:
        yield Edit(line, end - len(name), end, OPPOSITES[name])
    is_method = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) != "torch"
    moves = name == "to" and not ast.unparse(node.args[0]).endswith("dtype")  # moves have no effect on a CPU
    if name in SHAPE_KEEPING and is_method and not moves:
        yield lines.between(_end(node.func.value), _end(node), "")
    elif name in SHAPE_KEEPING and isinstance(node.func, ast.Name) and node.args:
        yield lines.replace(node, ast.unparse(node.args[0]))
    if name == "where" and len(node.args) == 3:
        one, other = node.args[1:]
        if one.lineno == other.end_lineno:
            swapped = f"{ast.unparse(other)}, {ast.unparse(one)}"
            yield lines.between((one.lineno, one.col_offset), _end(other), swapped)
    everything = [*node.args, *node.keywords]
    for place, argument in enumerate(everything):
        if isinstance(argument, ast.keyword) and argument.arg in OPTIONAL_KEYWORDS and len(everything) > 1:
            before = _end(everything[place - 1]) if place else (argument.lineno, argument.col_offset)
            yield lines.between(before, _end(argument), "")
