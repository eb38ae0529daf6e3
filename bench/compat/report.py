"""What `make compat` found: JSON, and the tables of docs/compatibility.md, which are put between their marks."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from compat.results import Outcome

Found = dict[str, Any]
"""By suite: its `version`, and `skipped` (what the machine lacks) or `outcomes` as lists."""


def read(path: Path) -> Found:
    """What earlier runs left; suites that are run again take the place of the old ones."""
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, found: Found) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def add(found: Found, suite: str, version: str, outcomes: Sequence[Outcome]) -> None:
    found[suite] = {"version": version, "outcomes": [list(outcome) for outcome in outcomes]}


def counts(outcomes: Sequence[Sequence[str]]) -> Counter[str]:
    return Counter(outcome[1] for outcome in outcomes)


def markdown(found: Found) -> str:
    lines = ["| suite | version | passed | failed | excluded | of what applies |", "|---|---|---:|---:|---:|---:|"]
    details = []
    for suite, one in found.items():
        row = f"| {suite} | {one['version']}"
        if "skipped" in one:
            lines.append(f"{row} | | | | not run: {one['skipped']} |")
            continue
        count = counts(one["outcomes"])
        applies = count["passed"] + count["failed"]
        share = f"{count['passed'] / applies:.0%}" if applies else ""
        lines.append(f"{row} | {count['passed']} | {count['failed']} | {count['excluded']} | {share} |")
        details += _details(suite, one["outcomes"])
    return "\n".join([*lines, *details]) + "\n"


def _details(suite: str, outcomes: Sequence[Sequence[str]]) -> list[str]:
    """Every failure, and what is excluded by reason."""
    failed = [f"- **failed** `{name}`: {note}" for name, verdict, note in outcomes if verdict == "failed"]
    reasons: dict[str, list[str]] = {}
    for name, verdict, note in outcomes:
        if verdict == "excluded":
            reasons.setdefault(note, []).append(f"`{name}`")
    excluded = [f"- {why}: {', '.join(names)}" for why, names in reasons.items()]
    return ["", f"**{suite}**", "", *failed, *excluded] if failed or excluded else []
