"""Argument types that more than one command takes."""

from __future__ import annotations

import argparse
import math
import re
from datetime import UTC, datetime

SPARK_MASTERS = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|spark://.+|k8s://.+|yarn")
"""The forms of master URLs that Spark takes for a session; it answers any other one with a page of Java."""


def add_offset_targets(command: argparse.ArgumentParser) -> None:
    """Where offsets are to go: one of these."""
    target = command.add_mutually_exclusive_group(required=True)
    target.add_argument("--to-earliest", action="store_true", help="where the log starts")
    target.add_argument("--to-latest", action="store_true", help="where the log ends")
    target.add_argument("--to-datetime", metavar="TIME", help="the first record at or after this time (ISO 8601)")
    target.add_argument("--to-offset", type=int, metavar="N", help="this offset")


def spark_master(text: str) -> str:
    """A master that Spark could know."""
    if not SPARK_MASTERS.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: give local[N], spark://HOST:PORT, k8s://… or yarn")
    return text


def assignment(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: give NAME=VALUE")
    return name, value


def seconds(text: str) -> float:
    """A time of more than 0 seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of seconds above 0")
    return value


def milliseconds(option: str, text: str) -> int:
    """An ISO 8601 time (UTC where it says no zone) in milliseconds since the epoch. Raises `UsageError`."""
    from keylane.errors import UsageError

    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text}: give a time like 2026-11-21T08:00:00 or 2026-11-21T08:00+01:00") from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
