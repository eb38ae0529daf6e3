"""Plain tables, fields, lines and runs of numbers on standard output: what others wrote shows no control character."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from keylane.telling import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.desk import Report

PLAIN_WIDTH = 250
"""Columns of a table that goes to a file or a pipe: nothing is cut there."""


def say(line: str = "", *, flush: bool = False) -> None:
    """A line of its own, whatever is in it. Nothing else in the command line prints."""
    print(visible(line), flush=flush)  # noqa: T201


def say_json(value: object, indent: int | None = None) -> None:
    """JSON, which escapes all that is not ASCII by itself."""
    print(json.dumps(value, indent=indent))  # noqa: T201


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
        table.add_row(*(Text("–" if cell is None else visible(str(cell))) for cell in row))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)


def print_fields(report: Report) -> None:
    """A line each."""
    for name, value in report.items():
        say(f"{name}: {'–' if value is None else value}")
