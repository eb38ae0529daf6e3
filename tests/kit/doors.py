"""What one function alone does in `src`, and where another one does it by itself.

- A text of an error that may be anybody's: `keylane.foreign_errors`, where nothing raises.
- A message's headers: `keylane.records.headers_of`, which keeps the client's refusal.
- An offset by time, or the end of a log: `keylane.kafka.admin` and `.logs`, which say of which records.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SOURCES = Path(__file__).parents[2] / "src" / "keylane"
Find = Callable[[ast.AST], "Iterable[tuple[int, str]]"]
"""Finds lines and their texts in a file."""

FOREIGN = {"Exception", "BaseException"}
"""Who catches, or is given, one of these has an error of anybody's."""
SPEAKING = {"str", "repr", "format", "debug", "info", "warning", "error", "exception"}
"""Calls that make a text of what they are given."""


def foreign_texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a text is made of an error that may be anybody's, by something else than `keylane.foreign_errors`: line and
    text. Of a name that a handler of all exceptions binds, of a parameter of such a type, and of `….failure.error`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.name and _names_in(node.type) & FOREIGN:
            names = {node.name}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            names = {one.arg for one in every if _names_in(one.annotation) & FOREIGN}
        elif isinstance(node, ast.Module):
            names = set()
        else:
            continue
        for part in ast.walk(node):
            if any(ast.unparse(one) in names or _is_failures(one) for one in _spoken(part)):
                yield part.lineno, ast.unparse(part)  # type: ignore[attr-defined] # only what has a line speaks


def _spoken(node: ast.AST) -> list[ast.expr]:
    """What a text is made of here."""
    if isinstance(node, ast.FormattedValue):
        return [node.value]
    is_speaking = isinstance(node, ast.Call) and _name(node.func) in SPEAKING
    return list(node.args) if is_speaking and isinstance(node, ast.Call) else []


def _is_failures(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "error" and ast.unparse(node.value).endswith("failure")


def _names_in(node: ast.expr | None) -> set[str]:
    return set() if node is None else {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def header_reads(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a message's headers are read by something else than `keylane.records`: line and text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "headers" and _is_message(node.value):
            yield node.lineno, ast.unparse(node)


def _is_message(node: ast.expr) -> bool:
    return ast.unparse(node).lower().endswith(("message", "payload", "messages[0]"))


OFFSET_QUESTIONS = {"get_watermark_offsets", "list_offsets", "offsets_for_times"}
"""Of the client: each answers by an isolation level, so whoever asks has to know which."""


def offset_questions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where brokers are asked for an offset by time, or for a log's end: line and text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in OFFSET_QUESTIONS:
            yield node.lineno, ast.unparse(node.func)


def by_others(
    find: Callable[[ast.AST], Iterable[tuple[int, str]]], doors: Iterable[str], without: Iterable[str] = ()
) -> list[str]:
    """Each place that `find` finds in `src/keylane`, but for these files, and for what is below these folders."""
    return [
        f"{path.relative_to(SOURCES)}:{line}: {text}"
        for path in sorted(SOURCES.rglob("*.py"))
        if (name := str(path.relative_to(SOURCES))) not in doors and name.split("/")[0] not in without
        for line, text in sorted(set(find(ast.parse(path.read_text()))))
    ]


def _name(function: ast.expr) -> str:
    return str(getattr(function, "id", getattr(function, "attr", "")))
