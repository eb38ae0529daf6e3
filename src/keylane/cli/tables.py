"""Plain tables, fields and runs of numbers on standard output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.desk import Report

PLAIN_WIDTH = 250
"""Columns of a table that goes to a file or a pipe: nothing is cut there."""


def runs_text(numbers: list[int]) -> str:
    """`0–3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("–".join(map(str, run)) for run in runs)


def print_table(headings: Iterable[str], rows: Iterable[Iterable[Any]], numbers: Iterable[int] = ()) -> None:
    """A row an item; None is a dash; columns with these indexes are numbers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    right = set(numbers)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("–" if cell is None else str(cell)) for cell in row))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)


def print_fields(report: Report) -> None:
    """A line each."""
    for name, value in report.items():
        print(f"{name}: {'–' if value is None else value}")
