"""Argument types that more than one command takes."""

from __future__ import annotations

import argparse


def assignment(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: give NAME=VALUE")
    return name, value
