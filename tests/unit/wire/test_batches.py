from __future__ import annotations

import pytest

from keylane.wire.batches import (
    HEADER_SIZE,
    BatchError,
    NewRecord,
    UnsupportedCodecError,
    UnsupportedMagicError,
    batches,
    check_crc,
    decode_records,
    encode_batch,
    read_header,
)

RECORDS = [NewRecord(b"a", b"1"), NewRecord(None, None, ((b"h", None), (b"", b"x")), 7), NewRecord(b"", b"")]


def test_the_layout_byte_by_byte() -> None:
    """As Kafka documents it, for one record: key "k", value "v", header "h": "x", at 1000 ms."""
    expected = bytes.fromhex(
        "0000000000000000"  # base offset
        "0000003e"  # length
        "00000000"  # partition leader epoch
        "02"  # magic
        "00000000"  # checksum: test_every_flipped_bit_behind_the_checksum_is_noticed
        "0000"  # attributes
        "00000000"  # last offset delta
        "00000000000003e8"  # base timestamp
        "00000000000003e8"  # max timestamp
        "ffffffffffffffff"  # producer id
        "ffff"  # producer epoch
        "ffffffff"  # base sequence
        "00000001"  # records
        "18"  # record length 12
        "000000"  # attributes, timestamp delta, offset delta
        "026b0276"  # key, value
        "0202680278"  # headers
    )
    data = encode_batch([NewRecord(b"k", b"v", ((b"h", b"x"),))], timestamp_ms=1_000)
    assert data[:17] + data[21:] == expected[:17] + expected[21:]


def test_header_fields() -> None:
    data = encode_batch(
        RECORDS,
        timestamp_ms=1_000,
        base_offset=40,
        producer_id=5,
        producer_epoch=2,
        base_sequence=9,
        attributes=0x10,
        partition_leader_epoch=3,
    )
    header = read_header(data)
    assert header.length == len(data)
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 42, 43)
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 1_007)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, 9)
    assert (header.leader_epoch, header.magic, header.record_count) == (3, 2, 3)
    assert header.is_transactional
    assert not header.is_control
    assert header.codec == 0


def test_offset_and_leader_epoch_are_outside_the_checksum() -> None:
    data = bytearray(b"before" + encode_batch(RECORDS, timestamp_ms=1))
    data[6:14] = (2**40).to_bytes(8, "big")
    data[18:22] = (11).to_bytes(4, "big")
    assert check_crc(data, 6, read_header(data, 6))
    assert read_header(data, 6)._replace(crc=0) == read_header(encode_batch(RECORDS, timestamp_ms=1))._replace(
        base_offset=2**40, leader_epoch=11, crc=0
    )
    assert [record.offset for record in decode_records(data, 6)] == [2**40, 2**40 + 1, 2**40 + 2]


def test_every_flipped_bit_behind_the_checksum_is_noticed() -> None:
    data = encode_batch(RECORDS, timestamp_ms=1)
    for position in range(17, len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x10
        assert not check_crc(changed, 0, read_header(changed))


def test_batches_leaves_out_a_cut_off_end() -> None:
    one, two = encode_batch(RECORDS, timestamp_ms=1), encode_batch(RECORDS[:1], timestamp_ms=2)
    assert [position for position, _ in batches(one + two)] == [0, len(one)]
    for cut in (1, len(two) - 1, len(two) - 5):
        assert [position for position, _ in batches(one + two[:cut])] == [0]


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_other_formats_are_refused_by_name(magic: int) -> None:
    data = bytearray(encode_batch(RECORDS, timestamp_ms=1))
    data[16] = magic
    with pytest.raises(UnsupportedMagicError, match=f"message format {magic}"):
        read_header(data)
    if magic < 2:
        with pytest.raises(UnsupportedMagicError):
            read_header(data[:30])  # an old message set may be shorter than a batch header


def test_short_and_senseless_headers_are_refused() -> None:
    data = bytearray(encode_batch(RECORDS, timestamp_ms=1))
    with pytest.raises(BatchError, match="60 are left"):
        read_header(data[: HEADER_SIZE - 1])
    for length in (-1, 0, HEADER_SIZE - 13):
        data[8:12] = length.to_bytes(4, "big", signed=True)
        with pytest.raises(BatchError, match=f"length {length}"):
            read_header(data)


def test_damaged_records_are_errors_and_never_more() -> None:
    data = encode_batch(RECORDS, timestamp_ms=1)
    for position in range(HEADER_SIZE, len(data)):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] = value
            try:
                decode_records(changed)
            except BatchError:
                continue
    with pytest.raises(BatchError, match="are left"):
        decode_records(data[:-1])


def test_a_codec_that_is_not_known_is_named() -> None:
    data = bytearray(encode_batch(RECORDS, timestamp_ms=1))
    data[22] = 6
    with pytest.raises(UnsupportedCodecError, match="compression 6"):
        decode_records(data)


@pytest.mark.parametrize(("codec", "name"), [(1, "gzip"), (2, "snappy"), (3, "lz4"), (4, "zstd")])
def test_broken_compression_is_an_error(codec: int, name: str) -> None:
    data = bytearray(encode_batch(RECORDS, timestamp_ms=1))
    data[22] = codec
    with pytest.raises(BatchError, match=f"{name} records cannot be unpacked|are left"):
        decode_records(data)


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch([], timestamp_ms=1)
    with pytest.raises(ValueError, match="uncompressed"):
        encode_batch(RECORDS, timestamp_ms=1, attributes=1)
