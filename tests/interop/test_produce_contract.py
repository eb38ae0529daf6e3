"""Batches whose checksum is right and whose records cannot be read: refused, as by Apache Kafka."""

from __future__ import annotations

import datetime
import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from keylane.wire.batches import HEADER_SIZE, NewRecord, compress, encode_batch
from keylane.wire.primitives import varint
from kit.protocol import part, until

if TYPE_CHECKING:
    from kit.protocol import ProtocolClient

NUMBERS = itertools.count()
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)


def record(
    number: int, key: bytes = varint(1) + b"k", value: bytes = varint(1) + b"v", headers: bytes = varint(0)
) -> bytes:
    fields = b"\0" + varint(0) + varint(number) + key + value + headers
    return varint(len(fields)) + fields


def batch(body: bytes, codec: int) -> bytes:
    """Of two records, whatever the body is."""
    head = bytearray(encode_batch([NewRecord(b"k", b"v")] * 2, timestamp_ms=int(time.time() * 1000))[:HEADER_SIZE])
    head[8:12] = (HEADER_SIZE - 12 + len(body)).to_bytes(4, "big")
    head[21:23] = codec.to_bytes(2, "big")
    head[17:21] = crc32c(body, crc32c(bytes(head[21:]))).to_bytes(4, "big")
    return bytes(head) + body


@pytest.fixture
def topic(client: ProtocolClient) -> str:
    name = f"produced-{next(NUMBERS)}"
    wanted = part(
        "create_topics", 7, "CreatableTopic", name=name, num_partitions=1, replication_factor=1, assignments=(),
        configs=(),
    )  # fmt: skip
    client.ask("create_topics", 7, topics=(wanted,), timeout=datetime.timedelta(minutes=1), validate_only=False)
    until(lambda: produced(client, name, batch(record(0) + record(1), NONE)), lambda code: code == ErrorCode.none)
    return name


def produced(client: ProtocolClient, topic: str, records: bytes) -> Any:
    one = part("produce", 8, "PartitionProduceData", index=0, records=records)
    data = part("produce", 8, "TopicProduceData", name=topic, partition_data=(one,))
    answer = client.ask(
        "produce", 8, transactional_id=None, acks=-1, timeout=datetime.timedelta(seconds=30), topic_data=(data,)
    )
    return answer.responses[0].partition_responses[0].error_code


GOOD = record(0)
BROKEN = {
    "too few": GOOD,
    "too many": GOOD + record(1) + record(2),
    "a byte more": GOOD + record(1) + b"\0",
    "a key that runs past its record": GOOD + record(1, key=varint(100) + b"k"),
    "a value that runs past its record": GOOD + record(1, value=varint(100) + b"v"),
    "fewer than no headers": GOOD + record(1, headers=varint(-1)),
    "headers that are not there": GOOD + record(1, headers=varint(5)),
    "a header without a name": GOOD + record(1, headers=varint(1) + varint(-1) + varint(-1)),
    "more behind the headers": GOOD + record(1, headers=varint(0) + b"\0\0"),
    "a number without end": GOOD + record(1, key=b"\x80" * 6 + b"\1"),
    "other bytes": bytes(range(1, 60)),
}


@pytest.mark.parametrize("codec", [NONE, GZIP, ZSTD])
def test_records_that_cannot_be_read_are_refused(client: ProtocolClient, topic: str, codec: int) -> None:
    codes = {what: produced(client, topic, batch(compress(codec, body), codec)) for what, body in BROKEN.items()}
    assert codes == dict.fromkeys(BROKEN, ErrorCode.invalid_record)
    assert produced(client, topic, batch(compress(codec, GOOD + record(1)), codec)) == ErrorCode.none


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_what_cannot_be_unpacked_is_refused(client: ProtocolClient, topic: str, codec: int) -> None:
    """Apache Kafka calls it an unknown error; here it is named, and a producer does not send it again either."""
    for body in (b"garbage" * 5, compress(codec, GOOD + record(1))[:-9]):
        assert produced(client, topic, batch(body, codec)) in (ErrorCode.invalid_record, ErrorCode.unknown_server_error)
