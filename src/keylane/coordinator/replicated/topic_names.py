"""`TopicNames`: which topics the names in one partition's commits stand for, where topics come and go elsewhere.

The idea: a committed offset is of a topic, and is kept under its name, which another topic may get. So beside the
commits the log has a record for each name, with the id of the topic that has it (KIP-516). Where another id is told,
the offsets of before end, as Apache Kafka ends them with their topic; then the new id is written. A name without a
record is one from before there were any, or one whose first commit was just made: its offsets are those of the topic
that has the name.

Earlier ids stay in the record: a broker that is behind may tell one, and nothing ends for that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

from keylane.coordinator.formats import RecordFormatError, encode_records
from keylane.coordinator.replicated.batches import OWN_KEY_TYPE
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from keylane.coordinator.journal.image import Image
    from keylane.coordinator.replicated.journal import LogJournal
    from keylane.storage.filesystem import StorageError

logger = logger_of("keylane.coordinator")

MOST_IDS = 16
"""That a record keeps."""
RECORDS_A_BATCH = 1_000
"""Half a megabyte, with the longest names."""
_KEY = OWN_KEY_TYPE + b"topic/"
_VERSION = (0).to_bytes(2, "big")
_ID_BYTES = 16


def key_of(topic: str) -> bytes:
    return _KEY + topic.encode()


def encode_ids(ids: Sequence[UUID]) -> bytes:
    """The newest first."""
    return _VERSION + b"".join(one.bytes for one in ids)


def decode_ids(value: bytes) -> list[UUID]:
    """Raises `RecordFormatError`."""
    ids = value[len(_VERSION) :]
    if not value.startswith(_VERSION) or len(ids) % _ID_BYTES:
        raise RecordFormatError(f"a topic's ids in a form that this release cannot read: {value.hex()}")
    return [UUID(bytes=ids[at : at + _ID_BYTES]) for at in range(0, len(ids), _ID_BYTES)]


class TopicNames:
    """Of one offsets partition that is led here. Belongs to the event loop's thread."""

    def __init__(
        self,
        partition: int,
        image: Image,
        journal: LogJournal,
        end_offsets: Callable[[str], Awaitable[None]],
        clock: Callable[[], int],
    ) -> None:
        """`end_offsets` ends what all groups have committed in a topic, durably."""
        self._partition = partition
        self._image = image
        self._journal = journal
        self._end_offsets = end_offsets
        self._clock = clock
        self._turn = asyncio.Lock()

    def has(self, topic: str) -> bool:
        """Whether the log says which topic this name stands for."""
        return (self._partition, key_of(topic)) in self._image.kept

    def of_commits(self, group: str | None = None) -> set[str]:
        """The topics that a group, or some group, has offsets in."""
        store = self._image.store
        return store.topics() if group is None else {topic for topic, _ in store.partitions_of(group)}

    def all(self) -> set[str]:
        """Those, and the names that the log has records of."""
        return self.of_commits() | self._named()

    def _named(self) -> set[str]:
        keys = (key for partition, key in self._image.kept if partition == self._partition)
        return {key[len(_KEY) :].decode() for key in keys if key.startswith(_KEY)}

    def agree_with(self, ids: Mapping[str, UUID]) -> bool:
        """Whether there is nothing to learn of these."""
        return all(topic_id in self._ids_of(topic) for topic, topic_id in ids.items())

    async def learn(self, ids: Mapping[str, UUID]) -> None:
        """These names stand for these topics now: offsets of others end, durably. Raises `StorageError`."""
        async with self._turn:  # or what is committed behind the end would end again
            found = {}
            for topic, topic_id in ids.items():
                before = self._ids_of(topic)
                if topic_id in before:
                    continue
                if before:
                    await self._end(topic, before[0], topic_id)
                found[key_of(topic)] = encode_ids([topic_id, *before][:MOST_IDS])
            await self._append(list(found.items()))

    async def forget(self, present: Collection[str]) -> None:
        """End the records of names that neither a topic, as `present` has them, nor an offset has. Raises
        `StorageError`."""
        needed = self.of_commits().union(present)
        await self._append([(key_of(topic), None) for topic in self._named() - needed])

    async def _end(self, topic: str, before: UUID, now: UUID) -> None:
        logger.warning(
            "topic %r was made anew (its id was %s and is %s): what %d groups had committed in it ends, as at Apache "
            "Kafka",
            topic,
            before,
            now,
            sum(1 for _ in self._image.store.entries_of(topic)),
        )
        await self._end_offsets(topic)

    def _ids_of(self, topic: str) -> list[UUID]:
        kept = self._image.kept.get((self._partition, key_of(topic)))
        return [] if kept is None else decode_ids(kept.value)

    async def _append(self, pairs: Sequence[tuple[bytes, bytes | None]]) -> None:
        for first in range(0, len(pairs), RECORDS_A_BATCH):
            records = encode_records(pairs[first : first + RECORDS_A_BATCH], self._clock())
            await self._journal.append(self._partition, records, _nothing_waits)


def _nothing_waits(failure: StorageError | None, base_offset: int) -> None:
    """The table has the records, or the caller is told why not."""
