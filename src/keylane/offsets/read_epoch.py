"""`ReadEpoch`: the leader epoch that the commits of one partition carry (KIP-320)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keylane.offsets.tracker import OffsetMap


class ReadEpoch:
    """No record that a commit has complete is of a later leader epoch than `value`; -1 while that is not known.

    It is the epoch of the newest record that was read, or that of the commit that one began at. Of a map that was
    committed without one, nobody knows: then there is none before its end was read.
    """

    __slots__ = ("_unknown_until", "value")

    def __init__(self, committed: OffsetMap, epoch: int = -1) -> None:
        self._unknown_until = committed.highest_completed if epoch < 0 else -1
        self.value = epoch

    def observe(self, offset: int, epoch: int | None) -> None:
        """The newest record that was read; without an epoch by brokers that have none."""
        if epoch is not None and epoch > self.value and offset >= self._unknown_until:
            self.value = epoch
