"""`make bench-earlier`: the broker of this checkout beside the one of an earlier commit, by turns, row by row.

It says whether a change has made it slower: medians, and their ratio. Both brokers are warm and idle but for the row.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archives import unpack
from broker import speed as records
from contests import OURS
from offsets import speed as offsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EARLIER = "earlier"
ROWS = ("produce 1*B", "fetch 1*B", "commit, 1 client, *", "commit, * × 100 *", "commit, 100 partitions", "fetch, 4 *")
LINE = "{:36} {:>12} {:>12} {:>8}"
_READY = re.compile(r"ready on (\S+:\d+) ")


def sources(commit: str, folder: Path) -> Path:
    """The package as it was in that commit. Raises `SystemExit` where git does not know it."""
    archive = folder / "earlier.tar"
    command = ["git", "archive", f"--output={archive}", commit, "src"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"--commit {commit}: {ran.stderr.strip()}: give a commit of this repository")
    unpack(archive, folder)
    return folder / "src"


@contextlib.contextmanager
def earlier_broker(path: Path, folder: Path) -> Iterator[str]:
    """Its bootstrap address; it ends with its standard input."""
    command = [sys.executable, "-m", "keylane.broker", "--until-stdin-ends", "--data-dir", str(folder), "--port", "0"]
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout is not None
        found = _READY.search(process.stdout.readline())
        if found is None:
            raise SystemExit(f"the broker in {path} did not start: run it by hand to see why")
        yield found[1]


def line(name: str, runs: Mapping[str, list[dict[str, Any]]]) -> str:
    """A row of the table."""
    ours, earlier = (statistics.median(run["per_s"] for run in runs[who]) for who in (OURS, EARLIER))
    return LINE.format(name, f"{ours:,.0f}", f"{earlier:,.0f}", f"{ours / earlier:.3f}")


def quietly(_name: str, _run: Any) -> None:
    """The table has the medians alone."""


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that brokers and load generators end with us
    parser = argparse.ArgumentParser(prog="make bench-earlier", description=__doc__)
    add = parser.add_argument
    add("--commit", required=True, help="the commit to stand beside: HEAD~1, a tag")
    add("--rows", nargs="*", default=ROWS, metavar="NAME", help=f"rows by name or pattern ({'; '.join(ROWS)})")
    add("--repeat", type=int, default=7, help="runs a row and broker; the median counts (7)")
    add("--seconds", type=float, default=4, help="length of a run (4)")
    add("--folder", default=None, metavar="DIR", help="a folder on the disk to measure (the temporary folder)")
    options = parser.parse_args()
    print(LINE.format("per second", OURS, EARLIER, "ratio"), flush=True)
    with tempfile.TemporaryDirectory(prefix="keylane-bench-", dir=options.folder) as temporary:
        folder = Path(temporary)
        path = sources(options.commit, folder)

        def beside(stack: contextlib.ExitStack) -> Mapping[str, str]:
            return {EARLIER: stack.enter_context(earlier_broker(path, Path(tempfile.mkdtemp(dir=folder)) / "data"))}

        of_records = [row for row in records.selected(options.rows) if "rebalance" not in row.what]
        if of_records:
            with records.Contest(folder, beside) as contest:
                contest.warm_up(8)
                for row in of_records:
                    found = contest.play(replace(row, peers=(EARLIER,)), options.repeat, options.seconds, quietly)
                    print(line(row.name, found), flush=True)
        of_offsets = offsets.selected(options.rows)
        if of_offsets:
            with offsets.Contest(folder / "offsets", beside) as commits:
                commits.warm_up()
                for one in of_offsets:
                    row_beside = replace(one, peer=EARLIER, is_against_disk=False)
                    standings = commits.play(row_beside, options.repeat, options.seconds, quietly)
                    runs = {name: standing.runs for name, standing in standings.items()}
                    print(line(one.name, runs), flush=True)


if __name__ == "__main__":
    main()
