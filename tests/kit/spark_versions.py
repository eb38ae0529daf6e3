"""`python -m kit.spark_versions [VERSION…]`: real queries with a kill in each, on each Spark, Java and Python.

Each combination gets an environment of its own, `build/spark-<version>-py<version>`: what dev.lock pins, with another
PySpark. A cell of the table in docs/spark-versions.md is a run of the tests below; what is not run stays.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pages import marks, put_into_page

from keylane.errors import PeerError
from keylane.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "spark-versions.md"
TABLE = "spark-versions"

PINS = {
    "3.5": ("3.5.9", "0.10.9.7"),
    "4.0": ("4.0.5", "0.10.9.9"),
    "4.1": ("4.1.4", "0.10.9.9"),
    "4.2": ("4.2.1", "0.10.9.9"),
    "4.3": ("4.3.0", "0.10.9.9"),
}
"""The newest patch of each Spark, and the py4j that it asks for."""

PARTS = {
    "lanes": (
        "test_lanes_crashes.py::test_a_lanes_python_worker_is_killed",
        "test_lanes.py::test_every_ordering_runs_each_record_once",
    ),
    "`parallel_map`": ("test_versions.py::test_a_killed_worker_of_parallel_map",),
    "source, sink, `GroupCommits`": ("test_versions.py::test_a_killed_stream_from_source_to_sink",),
    "the sink exactly once": ("test_versions.py::test_a_killed_stream_into_the_exactly_once_sink",),
    "`acknowledged`": ("test_versions.py::test_a_killed_acknowledged_stream",),
    "`availableNow`": (
        "test_versions.py::test_a_killed_run_of_available_now",
        "test_versions.py::test_available_now_reads_what_is_there_and_goes_on_from_its_checkpoint",
    ),
    "Spark's connector, `GroupCommits`": ("test_versions.py::test_a_killed_stream_of_sparks_connector",),
    "refusals": ("test_versions.py::test_what_this_spark_lacks_is_refused_by_name",),
}
"""What each column of the table runs, below tests/spark."""
NOT_OF_THIS_VERSION = "the source needs Spark"
"""The reason of a skip that is no gap."""
HEAD = ("Spark", "Python", "Java", *PARTS)
NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Run:
    """One row of the table."""

    spark: str
    python: str
    java: str
    cells: Mapping[str, str]
    """Of the parts that were run."""

    @property
    def combination(self) -> tuple[str, ...]:
        return (self.spark, self.python, self.java)

    @property
    def passed(self) -> bool:
        return all(cell in ("passed", "–") for cell in self.cells.values()) and "passed" in self.cells.values()

    def words(self, before: Sequence[str] = ()) -> list[str]:
        """The row; what was not run is as it was."""
        known = {**dict.fromkeys(PARTS, NOT_RUN), **dict(zip(HEAD, before, strict=False)), **self.cells}
        return [*self.combination, *(known[part] for part in PARTS)]


def environment(minor: str, python: str) -> Path:
    """The interpreter of the environment, which is made if it is not there or its pins are others now."""
    spark, py4j = PINS[minor]
    lines = (ROOT / "dev.lock").read_text().splitlines()  # pip takes hashes for all or for none
    lock = [line.removesuffix(" \\") for line in lines if not line.startswith(("pyspark=", "py4j=", "    --hash="))]
    lock += [f"pyspark=={spark}", f"py4j=={py4j}"]
    asked = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    version = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
    folder = ROOT / "build" / f"spark-{spark}-py{version}"
    made_of = hashlib.sha256("\n".join([*lock, (ROOT / "pyproject.toml").read_text()]).encode()).hexdigest()
    ready, interpreter = folder / ".ready", folder / "bin" / "python"
    if not ready.exists() or ready.read_text() != made_of:
        print(f"spark-versions: setting up {folder.relative_to(ROOT)}", flush=True)  # noqa: T201
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        (folder / "lock").write_text("\n".join(lock) + "\n")
        pip = [str(interpreter), "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--quiet"]
        subprocess.run([*pip, "--no-warn-script-location", "-r", str(folder / "lock")], check=True)
        subprocess.run([*pip, "--no-build-isolation", "--editable", "."], check=True, cwd=ROOT)
        ready.write_text(made_of)
    return interpreter


def run(minor: str, python: str, java: str | None, parts: Sequence[str]) -> Run:
    """These parts on one Spark; `java` is a home, None takes what keylane finds. Raises `PeerError` without a Java."""
    interpreter = environment(minor, python)
    settings = {**os.environ, "PYTHONNODEBUGRANGES": "1"} | ({} if java is None else {"JAVA_HOME": java})
    found = find_java(settings, PINS[minor][0])
    report = interpreter.parents[1] / "report.xml"
    command = [str(interpreter), "-m", "pytest", "-p", "no:cacheprovider", "-m", "soak or not soak", "-q"]
    command += [f"--junitxml={report}", *(f"tests/spark/{test}" for part in parts for test in PARTS[part])]
    report.unlink(missing_ok=True)
    subprocess.run(command, cwd=ROOT, env=settings, check=False)
    results = outcomes(report.read_text() if report.exists() else "<testsuites/>")
    version = interpreter.parents[1].name.rpartition("py")[2]
    cells = {part: cell([results.get(name_of(test), NOT_RUN) for test in PARTS[part]]) for part in parts}
    return Run(PINS[minor][0], version, str(found.version), cells)


def name_of(test: str) -> str:
    """As pytest's report has it."""
    file, _, name = test.partition("::")
    return f"tests.spark.{file.removesuffix('.py')}::{name}"


def outcomes(report: str) -> dict[str, str]:
    """What became of each test, by `pytest --junitxml`."""
    found = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        outcome = "passed"
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = "failed"
            elif child.tag == "skipped":
                reason = child.get("message", "")
                outcome = "–" if reason.startswith(NOT_OF_THIS_VERSION) else f"not run: {reason}"
        found[f"{case.get('classname')}::{case.get('name', '').partition('[')[0]}"] = outcome
    return found


def cell(outcomes: Sequence[str]) -> str:
    """Of the tests of one part."""
    return next((one for one in outcomes if one not in ("passed", "–")), "passed" if "passed" in outcomes else "–")


def merged(page: str, runs: Sequence[Run]) -> str:
    """The table with these rows in the place of the same combination's, in order."""
    begin, end = marks(TABLE)
    old = page.partition(begin)[2].partition(end)[0].splitlines()
    rows = {
        tuple(words[:3]): words for line in old if len(words := _words(line)) == len(HEAD) and words[0][:1].isdigit()
    }
    rows |= {one.combination: one.words(rows.get(one.combination, ())) for one in runs}
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    ordered = sorted(rows.values(), key=lambda row: [[int(part) for part in word.split(".")] for word in row[:3]])
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in ordered)]) + "\n"


def _words(line: str) -> list[str]:
    return [word.strip() for word in line.strip().strip("|").split("|")]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make spark-versions", description=__doc__)
    parser.add_argument("versions", nargs="*", default=[*PINS], metavar="VERSION", help=f"of {', '.join(PINS)}; all")
    parser.add_argument("--python", default=sys.executable, help="the interpreter (this one)")
    parser.add_argument("--java", help="a Java's home (what keylane finds)")
    parser.add_argument("--parts", nargs="+", metavar="WORD", default=[""], help="columns with such a word; all")
    parser.add_argument("--page", action="store_true", help="write the rows into docs/spark-versions.md")
    args = parser.parse_args()
    if unknown := [one for one in args.versions if one not in PINS]:
        parser.error(f"{', '.join(unknown)}: give some of {', '.join(PINS)}")
    parts = [part for part in PARTS if any(word in part for word in args.parts)]
    if unknown := [word for word in args.parts if not any(word in part for part in PARTS)]:
        parser.error(f"--parts {' '.join(unknown)}: give words of {'; '.join(PARTS)}")
    runs = []
    for minor in args.versions:
        try:
            runs.append(run(minor, args.python, args.java, parts))
        except PeerError as error:
            print(f"spark-versions: {minor}: {error}", file=sys.stderr)  # noqa: T201
            return 1
        if args.page:
            put_into_page(PAGE, TABLE, merged(PAGE.read_text(), runs))
    for one in runs:
        told = zip(HEAD, one.words(), strict=True)
        print("; ".join(f"{name} {word}" for name, word in told))  # noqa: T201
    return 0 if all(one.passed for one in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
