"""Dead letters of share groups: a record in the topic that the group names, for each record that the group gives up
(KIP-1191).

The headers of a letter say which record it is, how often it was delivered, and why it was given up. Where the group
copies records, the letter has the record's key and value as well, and never its headers. A record whose letter is
refused, as by a topic that does not take any, is archived without, as in Apache Kafka; the log says which and why.

Source: Apache Kafka's `ShareGroupDLQStateManager`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keylane.broker.group_configs import COPIES_RECORDS, LETTERS_TOPIC
from keylane.broker.handlers.produce import RefusedError, append_own
from keylane.broker.reads import LogRead, Wanted, read_one
from keylane.broker.topic_settings import TAKES_LETTERS
from keylane.broker.topics import check_topic_name, collision
from keylane.errors import UsageError
from keylane.storage.filesystem import StorageError
from keylane.telling import logger_of
from keylane.wire import codes
from keylane.wire.batches import HEADER_SIZE, BatchError, NewRecord, batches, decode_records, encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from keylane.broker.node import Node
    from keylane.broker.topic_files import Topic
    from keylane.coordinator.share_groups.partition import GivenUp
    from keylane.coordinator.share_groups.records import Place
    from keylane.wire.batches import BatchRecord

READ_BYTES = 1_048_576
"""What is read of a log at a time to copy records."""
REJECTED, DELIVERED_TOO_OFTEN = "Offset rejected by client.", "Offset delivery count exceeded the threshold."
"""Kafka's sentences."""
RECORD_BYTES, HEADER_BYTES = 40, 10
"""What the numbers of a record, and of a header, take at most."""

logger = logger_of("keylane.broker")


def begin_letters(node: Node) -> None:
    """From now on the letters of this node's groups are written."""
    assert node.coordinator.share is not None, node
    node.coordinator.share.write_letters = _Letters(node).write


class _Letters:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def write(self, place: Place, given_up: GivenUp) -> int:
        """Letters of these from the first on; the last offset that is through."""
        last = given_up.last
        try:
            topic = await self._topic(place.group)
            originals: Mapping[int, BatchRecord] = {}
            if self._node.group_configs.choice(place.group, COPIES_RECORDS) == "true":
                last, originals = await self._read(place, given_up.first, given_up.last)
            about = self._about(place, given_up)
            letters = [_letter(offset, about, originals.get(offset)) for offset in range(given_up.first, last + 1)]
            now_ms = self._node.clock()
            for letters_of_batch in _by_size(letters, topic.values.max_message_bytes):
                records = encode_batch(letters_of_batch, timestamp_ms=now_ms)
                await append_own(topic.name, place.partition % topic.partition_count, records, self._node)
        except (UsageError, RefusedError, StorageError) as error:
            logger.error(  # noqa: TRY400 - it is told in a sentence
                "share group %s: offsets %d to %d of %s-%d are given up without dead letters: %s",
                place.group, given_up.first, last, self._node.topic_name(place.topic_id), place.partition, error,
            )  # fmt: skip
        return last

    def _about(self, place: Place, given_up: GivenUp) -> Mapping[str, str]:
        """What the letters of these have in common; the offset has its place in between."""
        share = self._node.coordinator.share
        assert share is not None, place
        limit = share.groups.settings_of(place.group).limits.deliveries
        is_rejected = given_up.is_rejected or given_up.delivered < limit
        return {
            "topic": self._node.topic_name(place.topic_id) or str(place.topic_id),
            "partition": str(place.partition),
            "offset": "",
            "group": place.group,
            "delivery.count": str(given_up.delivered),
            "message": REJECTED if is_rejected else DELIVERED_TOO_OFTEN,
        }

    async def _topic(self, group: str) -> Topic:
        """The one that the group names, which is made if that is allowed. Raises `UsageError`, and `StorageError`."""
        name, config = self._node.group_configs.choice(group, LETTERS_TOPIC), self._node.config
        topic = self._node.topics.get(name)
        if not name:
            raise UsageError(f"{LETTERS_TOPIC} is empty by now")
        if topic is not None and not topic.values.takes_letters:
            raise UsageError(f"topic {name} takes none: set {TAKES_LETTERS}=true")
        if topic is None and not config.errors_deadletterqueue_auto_create_topics_enable:
            raise UsageError(
                f"topic {name} does not exist: make it with {TAKES_LETTERS}=true, or set "
                "errors.deadletterqueue.auto.create.topics.enable=true"
            )
        prefix = config.errors_deadletterqueue_topic_name_prefix
        if not name.startswith(prefix):
            raise UsageError(
                f"topic {name} does not begin with {prefix}: name another in {LETTERS_TOPIC}, or set "
                "errors.deadletterqueue.topic.name.prefix"
            )
        return await self._made(name) if topic is None else topic

    async def _made(self, name: str) -> Topic:
        check_topic_name(name)
        topics = self._node.topics
        if (other := topics.colliding(name)) is not None:
            raise UsageError(collision(name, other))
        settings = {TAKES_LETTERS: "true", "message.timestamp.type": "CreateTime"}
        try:
            return await topics.create(name, self._node.config.num_partitions, settings)
        except FileExistsError as error:
            if (topic := topics.get(name)) is not None:
                return topic
            raise UsageError(str(error)) from error

    async def _read(self, place: Place, first: int, last: int) -> tuple[int, Mapping[int, BatchRecord]]:
        """Of these offsets as many as are read at a time: the last one, and the records that are there."""
        name = self._node.topic_name(place.topic_id)
        log = None if name is None else self._node.topics.log(name, place.partition)
        read = LogRead(log, place.partition, Wanted(first, READ_BYTES), committed_only=False)
        fetched = await read_one(read, READ_BYTES)
        if fetched.error_code != codes.NONE:
            return last, {}
        end, found = await asyncio.to_thread(_records, fetched.records, first, last)
        return end, found


def _records(buffer: bytes, first: int, last: int) -> tuple[int, dict[int, BatchRecord]]:
    """The records of these offsets, and the last offset that is looked at; what cannot be read is left out."""
    end = last
    found: dict[int, BatchRecord] = {}
    for position, header in batches(buffer):
        end = min(last, header.last_offset)
        if header.is_control or header.last_offset < first:
            continue
        if header.base_offset > last:
            break
        try:
            records = decode_records(buffer, position)
        except BatchError as error:
            logger.warning("offsets %d to %d are not copied: %s", header.base_offset, header.last_offset, error)
            continue
        found |= {record.offset: record for record in records if first <= record.offset <= last}
    return end, found


def _letter(offset: int, about: Mapping[str, str], original: BatchRecord | None) -> NewRecord:
    named = {**about, "offset": str(offset)}
    headers = tuple((f"__dlq.errors.{name}".encode(), value.encode()) for name, value in named.items())
    key, value = (None, None) if original is None else (original.key, original.value)
    return NewRecord(key, value, headers)


def _by_size(letters: Iterable[NewRecord], most_bytes: int) -> Iterator[Sequence[NewRecord]]:
    """Those of one batch each: as many as surely fit, and one at least."""
    batch: list[NewRecord] = []
    size = HEADER_SIZE
    for letter in letters:
        more = RECORD_BYTES + len(letter.key or b"") + len(letter.value or b"")
        more += sum(HEADER_BYTES + len(name) + len(value or b"") for name, value in letter.headers)
        if batch and size + more > most_bytes:
            yield batch
            batch, size = [], HEADER_SIZE
        batch.append(letter)
        size += more
    if batch:
        yield batch
