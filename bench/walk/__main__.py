"""`make walk`: the files that one record, one commit and one row pass, each with what it says of itself."""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pages import put_into_page

from walk import walks
from walk.tracer import each_time

if TYPE_CHECKING:
    from collections.abc import Callable

WALKS: dict[str, Callable[[], list[walks.Files]]] = {"record": walks.record, "commit": walks.commit, "row": walks.row}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make walk", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(WALKS), metavar="NAME", help=" ".join(WALKS))
    parser.add_argument("--page", type=Path, metavar="FILE", help="put the tours into this page, too")
    options = parser.parse_args()
    if unknown := set(options.names) - WALKS.keys():
        parser.error(f"{' '.join(sorted(unknown))}: no walk; there are {' '.join(WALKS)}")
    for name in options.names:
        text = tour(name, each_time(WALKS[name]()))
        print(text)
        if options.page is not None:
            put_into_page(options.page, f"walk of a {name}", text)
    return 0


def tour(name: str, files: list[str]) -> str:
    """In Markdown."""
    places = ((number, Path(file)) for number, file in enumerate(files, 1))
    lines = [f"{number}. `{file.relative_to(walks.ROOT.parent)}`: {purpose(file)}" for number, file in places]
    return "\n".join([f"One {name} passes {len(files)} files.", "", *lines, ""])


def purpose(file: Path) -> str:
    """The first paragraph of a file's docstring, in one line."""
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(docstring.split("\n\n", 1)[0].split())


if __name__ == "__main__":
    sys.exit(main())
