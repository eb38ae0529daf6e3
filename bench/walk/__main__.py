"""`make walk`: prints the files that one record, one commit and one row pass through, and fails above the limits."""

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

MAX_FILES = 15
"""Of one walk: as many as a reader opens to follow it."""
MAX_LINES = 600
"""Of one file."""

WALKS: dict[str, Callable[[], list[walks.Files]]] = {"record": walks.record, "commit": walks.commit, "row": walks.row}


def main() -> int:
    options = arguments()
    if unknown := set(options.names) - WALKS.keys():
        print(f"{' '.join(sorted(unknown))}: no walk; there are {' '.join(WALKS)}", file=sys.stderr)
        return 2
    found = {name: each_time(WALKS[name]()) for name in options.names}
    for name, files in found.items():
        print(markdown(name, files) if options.markdown else text(name, files), end="\n\n")
        if options.page is not None:
            put_into_page(options.page, f"walk of a {name}", markdown(name, files) + "\n")
    wrong = [line for name, files in found.items() for line in faults(name, files)]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def text(name: str, files: list[str]) -> str:
    lines = [f"{number:4}  {named(file):<50}{size(file):5}" for number, file in enumerate(files, 1)]
    return "\n".join([f"one {name}: {len(files)} files, {sum(map(size, files))} lines", *lines])


def markdown(name: str, files: list[str]) -> str:
    """The same as a tour: each file with what it says of itself."""
    lines = [f"{number}. `{named(file)}`: {purpose(Path(file))}" for number, file in enumerate(files, 1)]
    return "\n".join([f"One {name} passes {len(files)} files.", "", *lines])


def faults(name: str, files: list[str]) -> list[str]:
    """One line for each limit that is passed."""
    found = [
        f"one {name}: {named(file)} has {size(file)} lines, allowed are {MAX_LINES}"
        for file in files
        if size(file) > MAX_LINES
    ]
    if len(files) > MAX_FILES:
        found.append(f"one {name}: {len(files)} files, allowed are {MAX_FILES}")
    return found


def named(file: str) -> str:
    return str(Path(file).relative_to(walks.ROOT.parent))


def size(file: str) -> int:
    return len(Path(file).read_text().splitlines())


def purpose(file: Path) -> str:
    """The first paragraph of a file's docstring, in one line."""
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(docstring.split("\n\n", 1)[0].split())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make walk", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", default=list(WALKS), metavar="NAME", help=" ".join(WALKS))
    add("--markdown", action="store_true", help="print a tour: each file with what it is for")
    add("--page", type=Path, metavar="FILE", help="also put the tour into this page (docs/architecture.md)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
