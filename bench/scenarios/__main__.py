"""`make bench-scenarios`: run them beside a plain consumer on the embedded broker; each says what it expects first."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from pages import put_into_page

from keylane.broker.process import BrokerProcess
from scenarios.stories import STORIES, Outcome


def main() -> int:
    options = arguments()
    unknown = set(options.names) - STORIES.keys()
    if unknown:
        print(f"{' '.join(unknown)}: no scenario; there are {' '.join(STORIES)}", file=sys.stderr)
        return 2
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="keylane-bench-") as folder, BrokerProcess(Path(folder, "data")) as broker:
        for name in options.names:
            print(f"{name}: {STORIES[name].__doc__}", flush=True)
            outcome = STORIES[name](broker.bootstrap)
            outcomes.append(outcome)
            print(f"  expected: {outcome.expected}")
            print(
                f"  plain consumer {outcome.vanilla:.2f} {outcome.unit}, keylane {outcome.keylane:.2f} {outcome.unit}"
            )
    options.out.mkdir(parents=True, exist_ok=True)
    found = {"cpus": os.cpu_count(), "outcomes": [asdict(one) for one in outcomes]}
    (options.out / "scenarios.json").write_text(json.dumps(found, indent=1) + "\n")
    if options.page is not None:
        put_into_page(options.page, "scenarios", markdown(outcomes))
    missed = [one.name for one in outcomes if not one.holds]
    if missed:
        print(f"not as expected: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def markdown(outcomes: list[Outcome]) -> str:
    """The table for the docs."""
    lines = ["| scenario | expected | plain consumer | keylane | |", "|---|---|---:|---:|---:|"]
    for one in outcomes:
        figures = f"{one.vanilla:.2f} {one.unit} | {one.keylane:.2f} {one.unit} | {one.vanilla / one.keylane:.0f}×"
        lines.append(f"| {one.name} | {one.expected} | {figures} |")
    return "\n".join(lines) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-scenarios", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", default=list(STORIES), metavar="NAME", help=" ".join(STORIES))
    add("--out", type=Path, default=Path("artifacts"), metavar="DIR", help="where scenarios.json goes (artifacts)")
    add("--page", type=Path, metavar="FILE", help="also put the table into this page (docs/benchmarks.md)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
