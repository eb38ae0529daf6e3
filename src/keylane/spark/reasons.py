"""What Spark's text of a failure says, in one line. Pure.

The idea: Spark's texts are long, and their first line is often a headline: the reason stands on the next one, or is the
last line of a traceback of Python's.
"""

from __future__ import annotations

import re

HEADLINE = re.compile(r"An error occurred while calling \S+\.?$")
"""Py4J's own, which names a method of Spark's."""
PYTHONS = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt|Warning)\b(?:: .*)?$")
"""The line that ends a traceback."""
MOST_LINES = 4
"""Of a sentence that goes over several."""


def reason_of(text: str) -> str:
    """The first line that says something, with those that it goes on in, and with what Python raised; empty for an
    empty text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and HEADLINE.match(lines[0]):
        lines = [lines[1].removeprefix(":").strip(), *lines[2:]]
    if not lines:
        return ""
    count = 1
    while lines[count - 1].endswith(":") and count < min(len(lines), MOST_LINES):
        count += 1
    while lines[0].endswith(":") and not lines[count - 1].endswith((".", ":")) and count < min(len(lines), MOST_LINES):
        count += 1
    said = " ".join(lines[:count])
    if "Traceback (most recent call last):" not in text:
        return said
    raised = next((line for line in reversed(lines) if PYTHONS.match(line)), None)
    said = said.partition("Traceback (most recent call last):")[0].strip().rstrip(":")
    return said if raised is None or raised in said else f"{said}: {raised}"
