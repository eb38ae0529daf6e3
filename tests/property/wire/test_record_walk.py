"""A batch that a walk has passed is one whose records can be read; and whatever was written is passed."""

from __future__ import annotations

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from keylane.wire import packing
from keylane.wire.batches import (
    CODECS,
    HEADER_SIZE,
    BatchError,
    BatchHeader,
    NewRecord,
    compress,
    decode_records,
    encode_batch,
    read_header,
    recompressed,
)
from keylane.wire.record_walk import MAX_NOTED, RecordWalk, Wanted

field = st.none() | st.binary(max_size=200) | st.binary(min_size=1, max_size=9).map(lambda piece: piece * 3_000)
few = st.lists(
    st.builds(
        NewRecord,
        field,
        field,
        st.lists(st.tuples(st.binary(max_size=90), st.none() | st.binary(max_size=90)), max_size=3).map(tuple),
        st.integers(-20_000, 20_000),
    ),
    min_size=1,
    max_size=8,
)
ANY = Wanted()
many = st.builds(lambda some, times: some * times, few, st.integers(1, 50))
"""Also of one form, one after the other."""
records = few | many
codecs = st.sampled_from(sorted(CODECS))


def packed(new: list[NewRecord], codec: int) -> tuple[bytes, BatchHeader]:
    batch = encode_batch(new, timestamp_ms=100_000)
    return recompressed(batch, read_header(batch), codec, None)


def walked(batch: bytes, header: BatchHeader, wanted: Wanted = ANY) -> RecordWalk:
    walk = RecordWalk(batch, header, wanted)
    for _ in walk.steps():
        pass
    return walk


@given(records, codecs, st.integers(1, 9).map(lambda power: 4**power))
def test_what_was_written_is_passed(new: list[NewRecord], codec: int, piece_bytes: int) -> None:
    batch, header = packed(new, codec)
    usual = packing.PIECE_BYTES
    packing.PIECE_BYTES = piece_bytes
    try:
        walk = walked(batch, header, Wanted(has_keys=True))
        timed = walked(batch, header, Wanted(has_keys=True, times_ms=(90_000, 110_000)))
    finally:
        packing.PIECE_BYTES = usual
    assert walk.keyless == timed.keyless == [number for number, one in enumerate(new) if one.key is None]
    times = [(number, 100_000 + one.timestamp_delta_ms) for number, one in enumerate(new)]
    assert timed.out_of_time == [(number, time) for number, time in times if not 90_000 <= time <= 110_000]


@given(records, codecs, st.data())
def test_what_is_passed_can_be_read(new: list[NewRecord], codec: int, choice: st.DataObject) -> None:
    batch, header = packed(new, 0)
    body = bytearray(batch[HEADER_SIZE:])
    for _ in range(choice.draw(st.integers(1, 3))):
        body[choice.draw(st.integers(0, len(body) - 1))] = choice.draw(st.integers(0, 255))
    del body[choice.draw(st.integers(0, len(body))) :]
    damaged = with_body(header, codec, bytes(body))
    try:
        walked(damaged, read_header(damaged))
    except BatchError:
        return
    assert len(decode_records(damaged)) == len(new)


def with_body(header: BatchHeader, codec: int, body: bytes) -> bytes:
    empty = encode_batch([NewRecord(None, None)], timestamp_ms=header.base_timestamp)
    head = bytearray(empty[:HEADER_SIZE])
    content = compress(codec, body)
    head[8:12] = (HEADER_SIZE - 12 + len(content)).to_bytes(4, "big")
    head[21:23] = codec.to_bytes(2, "big")
    head[57:61] = header.record_count.to_bytes(4, "big")
    head[17:21] = crc32c(content, crc32c(bytes(head[21:]))).to_bytes(4, "big")
    return bytes(head) + content


def test_no_more_are_noted_than_tell_anybody_anything() -> None:
    batch, header = packed([NewRecord(None, None)] * (MAX_NOTED + 5_000), 4)
    assert walked(batch, header, Wanted(has_keys=True)).keyless == list(range(MAX_NOTED))
    assert len(walked(batch, header, Wanted(times_ms=(0, 1))).out_of_time) == MAX_NOTED


def test_of_records_of_one_form_each_is_looked_at() -> None:
    """One length, or the end of one number, in the midst of many that are alike."""
    batch, header = packed([NewRecord(b"key", b"value", ((b"h", b"x"),), 100)] * 300, 0)
    at = batch.index(b"value", len(batch) // 2)
    refused = 0
    for place in range(at - 9, at + 10):
        for byte in (0, 3, 0x7F, 0x80, 0xFF):
            damaged = with_body(header, 0, batch[HEADER_SIZE:place] + bytes([byte]) + batch[place + 1 :])
            try:
                walked(damaged, header)
            except BatchError:
                refused += 1
            else:
                decode_records(damaged)
    assert refused > 20
