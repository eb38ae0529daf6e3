"""What a check says of a file, whoever wrote the file."""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["sound", "torn", "leftover", "damaged", "behind", "missing"]
"""`torn`: a crash cut an unacknowledged write short, and a start cuts it off. `leftover`: means nothing, and a start
removes it. `behind`: sound by itself, and behind damage in the same log. Only the last three are bad."""


class Finding(NamedTuple):
    """One file."""

    path: str
    state: State
    size: int = 0
    """Bytes."""
    position: int = 0
    """Where sound content ends, in a file that is torn or damaged."""
    reason: str = ""

    @property
    def is_bad(self) -> bool:
        return self.state in ("damaged", "behind", "missing")
