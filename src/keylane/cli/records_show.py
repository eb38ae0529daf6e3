"""`keylane records show`: where records stand, as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.cli.tables import print_fields, say
from keylane.desk.records import IN_LOG

if TYPE_CHECKING:
    from keylane.cli.asking import Report
    from keylane.desk.records import InLog

STANDINGS = {
    "below": "below: complete, below the committed offset",
    "complete": "complete: the offset map has it so",
    "incomplete": "incomplete: not complete, and records behind it are",
    "beyond": "beyond: not complete, nor is any record behind it",
    "no commit": "no commit: the group has committed nothing in the partition",
}


def print_records(report: Report) -> None:
    """A line for each field, a blank line between records."""
    for number, one in enumerate(report["records"]):
        if number:
            say()
        in_log: InLog = one["in_log"]
        shown = one | {"standing": STANDINGS[one["standing"]], "in_log": f"{in_log}: {IN_LOG[in_log]}"}
        steps = shown.pop("steps", [])
        print_fields(shown)
        for step in steps:
            name = f"{step['step']}/{step['key']}" if step["key"] else step["step"]
            answer = f": {step['answer']}" if "answer" in step else ""
            say(f"step {name}: {step['bytes']} bytes, kept {step['kept']}{answer}")
