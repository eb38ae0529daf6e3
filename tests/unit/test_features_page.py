"""docs/features.md: every row names a test that exists, and says when it runs in the soak or on a cluster only; or it
says that it is planned."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "features.md"
PLANNED = "*planned*"
MARKS = ("soak", "cluster", "full")


def rows() -> list[list[str]]:
    """The cells of every row of every table, without heads and rules."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if not row[0].startswith("---") and row[2] != "test"]


@cache
def marks_in(file: str) -> dict[str, str]:
    """Tests, each with the mark that all of it has: "soak", "cluster", or "" where `make test` runs some of it."""
    path = ROOT / "tests" / file
    if not path.exists():
        return {}
    tree = ast.parse(path.read_text())
    pytestmark = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = next(filter(None, map(mark_of, [*pytestmark, *node.decorator_list])), "")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, mark_of(node.value))  # a state machine's TestCase
    return found


def mark_of(decorator: ast.expr) -> str:
    """What a decorator says of the whole test: by itself, or because each of its parameters has a mark (the first one's
    is the test's)."""
    text = ast.unparse(decorator)
    if text.startswith("pytest.mark.parametrize") and isinstance(decorator, ast.Call):
        values = decorator.args[1]
        each = [mark_in(ast.unparse(one)) for one in values.elts] if isinstance(values, ast.List) else []
        return each[0] if each and all(each) else ""
    return mark_in(text) if text.startswith("pytest.mark.") else ""


def mark_in(text: str) -> str:
    return next((mark for mark in MARKS if f"pytest.mark.{mark}" in text), "")


def test_the_page_has_rows() -> None:
    assert len(rows()) > 100


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_names_a_test_that_exists_or_is_planned(row: list[str]) -> None:
    assert len(row) == 3, row
    if row[2] == PLANNED:
        return
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", row[2])
    assert named, f"no test and not {PLANNED}: {row}"
    assert [f"{file}::{test}" for file, test in named if test not in marks_in(file)] == []
    assert row[2] == ", ".join(written(file, test) for file, test in named), "a mark is missing, or one too many"


def written(file: str, test: str) -> str:
    mark = marks_in(file)[test]
    return f"`{file}::{test}`" + (f" ({mark})" if mark else "")


@pytest.mark.parametrize(
    ("decorators", "mark"),
    [
        ("@pytest.mark.soak", "soak"),
        ("@pytest.mark.cluster", "cluster"),
        ("@pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.soak)])", "soak"),
        ("@pytest.mark.parametrize('a', [0, pytest.param(1, marks=pytest.mark.soak)])", ""),
        (
            "@pytest.mark.parametrize('a', [param(0, marks=pytest.mark.cluster), param(1, marks=pytest.mark.soak)])",
            "cluster",
        ),
        ("@given(st.integers())", ""),
    ],
)
def test_a_mark_is_of_all_of_a_test(decorators: str, mark: str) -> None:
    (test,) = ast.parse(f"{decorators}\ndef test_it(a): ...").body
    assert isinstance(test, ast.FunctionDef)
    assert mark_of(test.decorator_list[0]) == mark
