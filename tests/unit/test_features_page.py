"""docs/features.md: every row names a test that exists, or says that it is planned."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "features.md"
PLANNED = "*planned*"


def rows() -> list[list[str]]:
    """The cells of every row of every table, without heads and rules."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if not row[0].startswith("---") and row[2] != "test"]


@cache
def names_in(file: str) -> set[str]:
    path = ROOT / "tests" / file
    if not path.exists():
        return set()
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if hasattr(node, "name")}


def test_the_page_has_rows() -> None:
    assert len(rows()) > 100


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_names_a_test_that_exists_or_is_planned(row: list[str]) -> None:
    assert len(row) == 3, row
    if row[2] == PLANNED:
        return
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", row[2])
    assert named, f"no test and not {PLANNED}: {row}"
    assert row[2] == ", ".join(f"`{file}::{test}`" for file, test in named)
    assert [f"{file}::{test}" for file, test in named if test not in names_in(file)] == []
