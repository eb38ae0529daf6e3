"""Who stands beside keylane's broker in the benches of rows of load, their options, and the line of each run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import peers

OURS, KAFKA = "keylane", f"Apache Kafka {peers.kafka_release()}"
FLUSHING = f"{KAFKA}, flushed"

Beside = Callable[[ExitStack], Mapping[str, str]]
"""Starts others, which end with the stack: bootstrap address by name."""


def apache_kafka(stack: ExitStack) -> Mapping[str, str]:
    """As it comes, and as one that flushes each batch."""
    plain, flushing = peers.ApacheKafka(), peers.ApacheKafka({"log.flush.interval.messages": "1"})
    return {name: stack.enter_context(one).bootstrap for name, one in ((KAFKA, plain), (FLUSHING, flushing))}


def nobody(_stack: ExitStack) -> Mapping[str, str]:
    return {}


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

    def line(contestant: str, run: Mapping[str, Any]) -> None:
        if "per_s" in run:
            figure = f"{run['per_s']:>10,.0f}/s"
        else:
            figure = ", ".join(f"{what} {value:.1f}" for what, value in run.items() if what != "load")
        print(f"{name:36} {contestant:28} {figure}  load {run['load']:.1f}", flush=True)

    return line
