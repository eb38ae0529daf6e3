"""Control batches: the markers that end a transaction in a log. Consumers do not hand them on.

A control batch is a record batch with the producer's id and epoch, the attributes transactional and control, and one
record: key `version i16, type i16` (0 is ABORT, 1 is COMMIT), value `version i16, coordinator epoch i32`.

Source: KIP-98, `EndTxnMarker.json` and `ControlRecordType` of Apache Kafka.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from keylane.wire.batches import (
    CONTROL_MASK,
    TRANSACTIONAL_MASK,
    BatchError,
    NewRecord,
    decode_records,
    encode_batch,
)

if TYPE_CHECKING:
    from keylane.wire.batches import Buffer

ABORT, COMMIT = 0, 1
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
VERSION = 0


def marker_record(*, committed: bool) -> tuple[bytes, bytes]:
    """Key and value of a marker; the coordinator's epoch is always 0."""
    return _KEY.pack(VERSION, COMMIT if committed else ABORT), _VALUE.pack(VERSION, 0)


def encode_marker(
    producer_id: int, producer_epoch: int, *, committed: bool, timestamp_ms: int, base_offset: int = 0
) -> bytes:
    """A control batch that commits or aborts this producer's transaction."""
    return encode_batch(
        [NewRecord(*marker_record(committed=committed))],
        timestamp_ms=timestamp_ms,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL_MASK | CONTROL_MASK,
    )


def is_commit(batch: Buffer) -> bool | None:
    """Whether a control batch commits (True) or aborts (False); None when it is no marker. Raises `BatchError`."""
    records = decode_records(batch)
    if len(records) != 1 or records[0].key is None or len(records[0].key) < _KEY.size:
        raise BatchError(f"a control batch of {len(records)} records without a type")
    _, kind = _KEY.unpack_from(records[0].key)
    return {COMMIT: True, ABORT: False}.get(kind)
