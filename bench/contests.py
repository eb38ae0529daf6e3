"""The options of the benches that hold rows of load against Apache Kafka, and the line that each run prints."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def arguments(name: str, about: str | None, pattern: str, sizes: str) -> argparse.Namespace:
    """Of `make NAME`; `pattern` is an example of rows, and `sizes` what `--sizes` measures as well."""
    parser = argparse.ArgumentParser(prog=f"make {name}", description=about)
    add = parser.add_argument
    add("--rows", nargs="*", default=["*"], metavar="NAME", help=f"rows by name or pattern: '{pattern}' (all)")
    add("--sizes", action="store_true", help=f"also {sizes}")
    add("--repeat", type=int, default=3, help="runs a row and contestant; the median counts (3)")
    add("--seconds", type=float, default=4, help="length of a run (4)")
    add("--quick", action="store_true", help="each row once, for a second")
    add("--folder", default=None, metavar="DIR", help="a folder on the disk to measure (the temporary folder)")
    add("--json", type=Path, default=Path(f"artifacts/{name}.json"), help="where results are merged into")
    add("--page", type=Path, metavar="FILE", help="also put the tables into this page (docs/benchmarks.md)")
    return parser.parse_args()


def reporter(name: str) -> Callable[[str, Any], None]:
    """Prints a line for each run of the row of that name."""

    def line(contestant: str, run: Any) -> None:
        print(f"{name:36} {contestant:28} {run['per_s']:>10,.0f}/s  load {run['load']:.1f}", flush=True)

    return line
