"""What `make compat` found: JSON, and the tables of docs/compatibility.md, which are put between their marks."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from compat.results import Outcome

EMBEDDED, APACHE = BROKERS = ("keylane", "apache")

Found = dict[str, Any]
"""By suite: its `version`, and `skipped` (what the machine lacks), or `outcomes` by broker as lists."""


def read(path: Path) -> Found:
    """What earlier runs left; suites that are run again take the place of the old ones."""
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, found: Found) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def add(found: Found, suite: str, version: str, broker: str, outcomes: Sequence[Outcome]) -> None:
    one = found.get(suite, {})
    brokers = one.get("outcomes", {}) if one.get("version") == version else {}
    found[suite] = {"version": version, "outcomes": brokers | {broker: [list(outcome) for outcome in outcomes]}}


def counts(outcomes: Sequence[Sequence[str]]) -> Counter[str]:
    return Counter(outcome[1] for outcome in outcomes)


def markdown(found: Found) -> str:
    """A table of all suites, and then what failed or is excluded, by suite; both brokers in both."""
    lines = [
        "| suite | version | passed | failed | excluded | of what applies | Apache Kafka: passed | failed | excluded |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    details = []
    for suite, one in found.items():
        row = f"| {suite} | {one['version']}"
        if "skipped" in one:
            lines.append(f"{row} | | | | not run: {one['skipped']} | | | |")
            continue
        cells = [cell for broker in BROKERS for cell in _cells(one["outcomes"].get(broker))]
        lines.append(f"{row} | {' | '.join(cells[:-1])} |")  # Apache Kafka's share is nobody's
        details += _details(suite, one["outcomes"])
    return "\n".join([*lines, *details]) + "\n"


def _cells(outcomes: Sequence[Sequence[str]] | None) -> list[str]:
    """Passed, failed, excluded, and the share of what applies."""
    if outcomes is None:
        return ["not run", "", "", ""]
    count = counts(outcomes)
    applies = count["passed"] + count["failed"]
    share = f"{count['passed'] / applies:.0%}" if applies else ""
    return [str(count["passed"]), str(count["failed"]), str(count["excluded"]), share]


def _details(suite: str, brokers: dict[str, Sequence[Sequence[str]]]) -> list[str]:
    """Every failure, and what is excluded by reason: of Apache Kafka only what is not so on the embedded broker."""
    lines = []
    seen: set[tuple[str, str]] = set()
    for broker in BROKERS:
        where = " on Apache Kafka" if broker == APACHE else ""
        reasons: dict[str, list[str]] = {}
        for name, verdict, note in brokers.get(broker, ()):
            if verdict == "failed":
                lines.append(f"- **failed{where}** `{name}`: {note}")
            elif verdict == "excluded" and (name, note) not in seen:
                reasons.setdefault(note, []).append(f"`{name}`")
                seen.add((name, note))
        lines += [f"- {why}{where}: {', '.join(names)}" for why, names in reasons.items()]
    return ["", f"**{suite}**", "", *lines] if lines else []
