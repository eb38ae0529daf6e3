"""Batches against kio's own reader and writer, and compressed ones against the libraries that make them."""

from __future__ import annotations

import datetime
import io
import zlib

import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, Record, RecordHeader
from kio.records.writers import write_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from keylane.wire.batches import (
    HEADER_SIZE,
    BatchRecord,
    NewRecord,
    check_crc,
    decode_records,
    encode_batch,
    read_header,
)

content = st.none() | st.binary(max_size=200)
new_records = st.lists(
    st.builds(
        NewRecord,
        content,
        content,
        st.lists(st.tuples(st.binary(max_size=20), content), max_size=3).map(tuple),
        st.integers(0, 10_000),
    ),
    min_size=1,
    max_size=20,
)
numbers = st.fixed_dictionaries(
    {
        "base_offset": st.integers(0, 2**62),
        "producer_id": st.integers(-1, 2**62),
        "producer_epoch": st.integers(-1, 2**15 - 1),
        "base_sequence": st.integers(-1, 2**31 - 1),
        "partition_leader_epoch": st.integers(-1, 2**31 - 1),
    }
)
TIME = 1_700_000_000_000


@given(new_records, numbers)
def test_what_is_written_is_what_is_read(records: list[NewRecord], fields: dict[str, int]) -> None:
    data = encode_batch(records, timestamp_ms=TIME, **fields)
    assert check_crc(data, 0, read_header(data))
    assert decode_records(data) == [
        BatchRecord(
            fields["base_offset"] + index, TIME + record.timestamp_delta_ms, record.key, record.value, record.headers
        )
        for index, record in enumerate(records)
    ]


@given(new_records, numbers)
def test_kio_reads_what_is_written(records: list[NewRecord], fields: dict[str, int]) -> None:
    whole_seconds = [record._replace(timestamp_delta_ms=1_000 * record.timestamp_delta_ms) for record in records]
    data = encode_batch(whole_seconds, timestamp_ms=TIME, **fields)
    read, size = read_batch(data, 0)
    assert size == len(data)
    assert read.base_offset == fields["base_offset"]
    assert read.producer_id == fields["producer_id"]
    assert read.producer_epoch == fields["producer_epoch"]
    assert read.base_sequence == fields["base_sequence"]
    assert read.partition_leader_epoch == fields["partition_leader_epoch"]
    for index, (found, record) in enumerate(zip(read.records, whole_seconds, strict=True)):
        assert (found.key, found.value) == (record.key, record.value)
        assert found.offset == fields["base_offset"] + index
        assert tuple((header.key, header.value) for header in found.headers) == record.headers


@given(new_records)
def test_what_kio_writes_is_read(records: list[NewRecord]) -> None:
    moment = TZAwareMicros.parse(datetime.datetime.fromtimestamp(TIME / 1_000, datetime.UTC))
    batch = NewRecordBatch(
        producer_id=i64(3),
        producer_epoch=i16(1),
        base_sequence=i32(0),
        attributes=i16(0),
        records=tuple(
            Record(
                attributes=i8(0),
                timestamp=moment,
                offset=i64(index),
                key=record.key,
                value=record.value,
                headers=tuple(RecordHeader(key=name, value=value) for name, value in record.headers),
            )
            for index, record in enumerate(records)
        ),
    )
    out = io.BytesIO()
    write_batch(out, batch)
    data = out.getvalue()
    assert check_crc(data, 0, read_header(data))
    assert [(record.key, record.value, record.headers) for record in decode_records(data)] == [
        (record.key, record.value, record.headers) for record in records
    ]


def compressed(data: bytes, codec: int, body: bytes) -> bytes:
    """The same batch with its records replaced by compressed ones (the checksum is not set)."""
    head = bytearray(data[:HEADER_SIZE])
    head[8:12] = (HEADER_SIZE - 12 + len(body)).to_bytes(4, "big")
    head[22] = codec
    return bytes(head) + body


@given(new_records)
def test_compressed_records_are_the_same_records(records: list[NewRecord]) -> None:
    plain = encode_batch(records, timestamp_ms=TIME)
    body = plain[HEADER_SIZE:]
    packer = zlib.compressobj(wbits=31)
    streamed = zstandard.ZstdCompressor().compressobj()  # as clients do: without a content size in the frame
    for codec, packed in (
        (1, packer.compress(body) + packer.flush()),
        (4, streamed.compress(body) + streamed.flush()),
        (4, zstandard.ZstdCompressor().compress(body)),
    ):
        batch = compressed(plain, codec, packed)
        assert read_header(batch).codec == codec
        assert decode_records(batch) == decode_records(plain)
