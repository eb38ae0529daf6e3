"""`Parked`: what becomes of a record that an operator sets aside: a dead letter, or why there is none."""

from __future__ import annotations


class Parked:
    """What becomes of a record that an operator sets aside."""

    __slots__ = ("dlq", "failure", "why")

    def __init__(self, dlq: str, why: str) -> None:
        self.dlq = dlq
        self.why = why
        self.failure: str | None = None
        """Why there is no letter."""

    def fail(self, text: str) -> None:
        """There is no letter, and the record runs as ever."""
        self.failure = text
