from __future__ import annotations

from typing import Any

import pytest
from crc32c import crc32c

from keylane.broker.handlers.produce import RefusedError, check_batch
from keylane.wire import codes
from keylane.wire.batches import HEADER, NewRecord, encode_batch

LIMIT = 1_000
FIELDS = (
    "base_offset",
    "length",
    "leader_epoch",
    "magic",
    "crc",
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
)
GOOD = encode_batch([NewRecord(b"k", b"v")] * 3, timestamp_ms=1)


def changed(**fields: Any) -> bytes:
    """A good batch with other header fields and a checksum that holds."""
    values = dict(zip(FIELDS, HEADER.unpack_from(GOOD), strict=True)) | fields
    data = bytearray(GOOD)
    HEADER.pack_into(data, 0, *values.values())
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def test_a_good_batch_is_taken() -> None:
    assert check_batch(GOOD, LIMIT).record_count == 3
    for codec in range(5):
        assert check_batch(changed(attributes=codec), LIMIT).codec == codec
    check_batch(changed(leader_epoch=-1), LIMIT)
    check_batch(changed(attributes=0x09), LIMIT)  # LogAppendTime: stored as it comes, as Apache Kafka does
    check_batch(changed(attributes=0x14), LIMIT)  # transactional: whether it may be is checked after
    check_batch(changed(producer_id=7, producer_epoch=0, base_sequence=0), LIMIT)


@pytest.mark.parametrize(
    ("records", "code", "says"),
    [
        (b"", codes.INVALID_RECORD, "0 are left"),
        (GOOD[:60], codes.INVALID_RECORD, "60 are left"),
        (GOOD[:-1], codes.INVALID_RECORD, "in a field of"),
        (GOOD + GOOD, codes.INVALID_RECORD, "exactly one record batch"),
        (GOOD + b"\0", codes.INVALID_RECORD, "exactly one record batch"),
        (changed(magic=1), codes.INVALID_RECORD, "message format 1"),
        (changed(magic=0), codes.INVALID_RECORD, "message format 0"),
        (changed(length=10), codes.INVALID_RECORD, "shorter than its header"),
        (GOOD[:-1] + b"!", codes.CORRUPT_MESSAGE, "checksum does not hold"),
        (changed(base_offset=5), codes.INVALID_RECORD, "starts with offset 0, not 5"),
        (changed(record_count=0, last_offset_delta=-1), codes.INVALID_RECORD, "0 records"),
        (changed(record_count=2), codes.INVALID_RECORD, "2 records with a last offset delta of 2"),
        (changed(last_offset_delta=-2), codes.INVALID_RECORD, "last offset delta of -2"),
        (changed(attributes=0x20), codes.INVALID_RECORD, "control records"),
        (changed(attributes=0x30), codes.INVALID_RECORD, "control records"),
        (changed(attributes=0x40), codes.INVALID_RECORD, "attributes 0x0040 are not known"),
        (changed(attributes=0x05), codes.UNSUPPORTED_COMPRESSION_TYPE, "compression type 5"),
        (changed(producer_id=7, producer_epoch=0, base_sequence=-1), codes.INVALID_RECORD, "sequence -1"),
        (changed(producer_id=7, producer_epoch=-1, base_sequence=0), codes.INVALID_RECORD, "epoch -1"),
        (
            encode_batch([NewRecord(None, bytes(LIMIT))], timestamp_ms=1),
            codes.MESSAGE_TOO_LARGE,
            r"the limit is 1000 \(message\.max\.bytes\)",
        ),
    ],
)
def test_a_bad_batch_is_refused_with_kafkas_code(records: bytes, code: int, says: str) -> None:
    with pytest.raises(RefusedError, match=says) as caught:
        check_batch(records, LIMIT)
    assert caught.value.code == code
