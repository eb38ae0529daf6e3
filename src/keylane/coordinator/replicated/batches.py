"""What stands in the replicated log, purely: commits put together in one batch, notes, and what a table takes of it.

The records are those of `__consumer_offsets`, with keys and values of Apache Kafka's formats. A note is one record
more, with a key type of keylane's own that readers of such records leave alone; its value names who wrote it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.coordinator.formats import Records, encode_batch, encode_record
from keylane.coordinator.replicated.follower import Place
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.wire.batches import (
    DELETE_HORIZON_MASK,
    TIMESTAMP_TYPE_MASK,
    decode_records,
    fetched_batches,
    read_header,
)
from keylane.wire.primitives import read_varint, varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from keylane.coordinator.replicated.leadership import Batch

OWN_KEY_TYPE = (27_500).to_bytes(2, "big")
"""Far from Kafka's own; the number is that of keylane's own API."""
NOTE_KEY = OWN_KEY_TYPE + b"note"
_NOTE_VERSION = (0).to_bytes(2, "big")
_REWRITTEN = TIMESTAMP_TYPE_MASK | DELETE_HORIZON_MASK


def encode(batch: Batch, server: str, now_ms: int, codec: int) -> bytes:
    """The batch as it is produced; `server` is told in a note."""
    records = [entry.records for entry in batch.entries] or [_note(server, now_ms)]
    producer_id, epoch = batch.producer
    whole = joined(records)._replace(producer_id=producer_id, producer_epoch=epoch, base_sequence=batch.sequence)
    return b"".join(encode_batch(whole, 0, codec=codec))


def joined(parts: Sequence[Records]) -> Records:
    """The records of all parts, one behind the other, as those of one batch."""
    if len(parts) == 1:
        return parts[0]
    bodies = []
    count = 0
    for part in parts:
        bodies.append(_behind(count, part))
        count += part.record_count
    return Records(b"".join(bodies), count, max(part.timestamp_ms for part in parts))


def _note(server: str, now_ms: int) -> Records:
    return Records(encode_record(0, NOTE_KEY, _NOTE_VERSION + server.encode()), 1, now_ms)


def _behind(first: int, part: Records) -> bytes:
    """Records of ours as they are behind so many others."""
    if not first:
        return part.body
    body, at = part.body, 0
    pieces: list[bytes] = []
    for _ in range(part.record_count):
        size, at = read_varint(body, at)
        end = at + size
        head = body[at : at + 2]  # the record's attributes and its timestamp delta, which are 0
        delta, rest = read_varint(body, at + 2)
        moved = varint(first + delta)
        pieces += (varint(len(head) + len(moved) + end - rest), head, moved, body[rest:end])
        at = end
    return b"".join(pieces)


def read(data: bytes, position: int) -> Iterator[tuple[Place, bytes]]:
    """The whole batches in what a fetch from `position` brought, without those before it.

    Raises `BatchError` for one that is damaged.
    """
    for at, header in fetched_batches(data, position):
        producer = Producer(header.producer_id, header.producer_epoch)
        yield Place(header.base_offset, header.next_offset, producer), data[at : at + header.length]


def as_written(batch: bytes) -> bytes | None:
    """A batch of the log as a server wrote it; None for one with nothing in it. Raises `BatchError` for damage."""
    header = read_header(batch)
    if header.record_count == 0 or header.is_control:
        return None  # compaction left nothing in it, or it is the end of a transaction that nobody of ours began
    if header.attributes & _REWRITTEN or header.base_timestamp != header.max_timestamp:
        # A broker that compacts, or stamps records with its own time, writes other time deltas than we do.
        rows = decode_records(batch)
        body = b"".join(encode_record(one.offset - header.base_offset, one.key or b"", one.value) for one in rows)
        records = Records(body, len(rows), header.max_timestamp)
        return b"".join(encode_batch(records, header.base_offset, header.last_offset_delta))
    return batch
