"""Three bytes that stand for a topic's name in the rows of a store, for as long as some group has an offset in it."""

from __future__ import annotations

import sys
from array import array

from keylane.coordinator.offsets.rows import MARK_BYTES


class TopicMarks:
    """Owned by the store. A mark is a number; one that no row has any more is given to another topic."""

    def __init__(self) -> None:
        self._marks: dict[str, bytes] = {}
        self._topics: list[str] = []
        """By number, and so is `_rows`."""
        self._rows = array("Q")
        """How many have the mark."""
        self._free: list[int] = []

    def of(self, topic: str) -> bytes:
        """The mark of a topic that is about to have rows."""
        mark = self._marks.get(topic)
        if mark is None:
            if not self._free:
                self._free.append(len(self._topics))
                self._topics.append("")
                self._rows.append(0)
            number = self._free.pop()
            topic = self._topics[number] = sys.intern(topic)
            # More than 16,777,216 topics have an offset: no Kafka cluster has as many.
            mark = self._marks[topic] = number.to_bytes(MARK_BYTES, "big")
        return mark

    def known(self, topic: str) -> bytes | None:
        """The mark of a topic; None when it has no rows."""
        return self._marks.get(topic)

    def topic(self, mark: bytes) -> str:
        return self._topics[int.from_bytes(mark, "big")]

    def topics(self) -> set[str]:
        """Every topic with rows."""
        return set(self._marks)

    def count(self, mark: bytes, more: int) -> None:
        """So many more rows have this mark (or fewer: negative)."""
        number = int.from_bytes(mark, "big")
        self._rows[number] += more
        if not self._rows[number]:
            del self._marks[self._topics[number]]
            self._topics[number] = ""
            self._free.append(number)
