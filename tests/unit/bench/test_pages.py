from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pages import marks, put_into_page, table

if TYPE_CHECKING:
    from pathlib import Path


def test_a_table_is_put_between_the_marks_and_replaced_there(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = marks("rows")
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    text = table("**Rows**", ("row", "rate"), [("a\\1", 2)])
    for _ in range(2):
        put_into_page(page, "rows", text)
    assert (
        page.read_text() == f"before\n{begin}\n\n**Rows**\n\n| row | rate |\n|---|---:|\n| a\\1 | 2 |\n{end}\nafter\n"
    )


def test_a_page_without_marks_is_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no place")
    with pytest.raises(ValueError, match=r"page\.md has no place for the tables: <!-- rows"):
        put_into_page(page, "rows", "text")


def test_no_rows_are_no_table() -> None:
    assert table("**Rows**", ("row",), []) == ""
