"""What the reports of all benches share: tables, and their place in the docs' pages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """In Markdown; nothing without rows."""
    if not rows:
        return ""
    lines = [title, "", f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def put_into_page(path: Path, name: str, text: str) -> None:
    """Between the page's marks of that name. Raises `ValueError` when it has none."""
    begin, end = marks(name)
    page = path.read_text()
    made, count = re.subn(
        f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n\n{text}\n{end}", page, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"{path} has no place for the tables: {begin} … {end}")
    path.write_text(made)


def marks(name: str) -> tuple[str, str]:
    """What stands before and after the tables of that name."""
    return f"<!-- {name}: written by the harness -->", f"<!-- end of {name} -->"
