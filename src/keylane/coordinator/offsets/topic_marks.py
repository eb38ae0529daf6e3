"""Three bytes that stand for a topic's name in the rows of the store, for as long as some group has an offset in it."""

from __future__ import annotations

from keylane.coordinator.offsets.rows import MARK_BYTES


class TopicMarks:
    """Owned by the store. A mark that no row has any more is given to another topic."""

    def __init__(self) -> None:
        self._marks: dict[str, bytes] = {}
        self._topics: dict[bytes, str] = {}
        self._entries: dict[bytes, int] = {}
        """Rows with the mark."""
        self._free: list[bytes] = []

    def of(self, topic: str) -> bytes:
        """The mark of a topic that is about to have rows."""
        mark = self._marks.get(topic)
        if mark is None:
            # More than 16,777,216 topics have an offset: no Kafka cluster has as many.
            mark = self._free.pop() if self._free else len(self._topics).to_bytes(MARK_BYTES, "big")
            self._marks[topic], self._topics[mark], self._entries[mark] = mark, topic, 0
        return mark

    def known(self, topic: str) -> bytes | None:
        """The mark of a topic; None when it has no rows."""
        return self._marks.get(topic)

    def topic(self, mark: bytes) -> str:
        return self._topics[mark]

    def topics(self) -> set[str]:
        """Every topic with rows."""
        return set(self._marks)

    def count(self, mark: bytes, more: int) -> None:
        """So many more rows have this mark (or fewer: negative)."""
        self._entries[mark] += more
        if not self._entries[mark]:
            del self._entries[mark]
            del self._marks[self._topics.pop(mark)]
            self._free.append(mark)
