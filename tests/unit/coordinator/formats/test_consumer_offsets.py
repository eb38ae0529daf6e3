"""The formats of `__consumer_offsets` against bytes that Apache Kafka 4.3.1 wrote."""

import struct

import pytest
from crc32c import crc32c

from keylane.coordinator.formats import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    RecordFormatError,
    TopicCommit,
    UnknownKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_batch,
    encode_commit,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
    encode_records,
    java_string_hash,
    partition_for,
)
from keylane.wire.batches import CRC_START, HEADER, read_header

CRC_OFFSET = 17

OFFSET_KEY = bytes.fromhex("00010007776561746865720007666c696768747300000000")
OFFSET_VALUE_V4 = bytes.fromhex(
    "0004000000000000002a000000050e62674142414149414151414300000001a1fda17e6e0100105317dbfb02054bd193b1a6980ec467af"
)
OFFSET_VALUE_V1 = bytes.fromhex("0001000000000000006300016d000001a1fda184f0000001a202c7e0f0")
UNICODE_KEY = bytes.fromhex("0001000d6772757070652dc3a4f09f98800007666c696768747300000001")
UNICODE_VALUE_V4 = bytes.fromhex(
    "00040000010000000000ffffffff07636166c3a900000001a1fda17e9b0100105317dbfb02054bd193b1a6980ec467af"
)
GROUP_KEY = bytes.fromhex("00020006737461746963")
EMPTY_GROUP_VALUE = bytes.fromhex("0003000000000000ffffffff000001a1fda17ee800000000")
LEFT_GROUP_VALUE = bytes.fromhex("00030008636f6e73756d657200000002ffffffff000001a1fda196da00000000")
STATIC_GROUP_VALUE = bytes.fromhex(
    "00030008636f6e73756d657200000001000572616e676500286f6e652d31616261383333392d333734372d343261362d613162372d6637"
    "65393334383339373337000001a1fda17ef70000000100286f6e652d31616261383333392d333734372d343261362d613162372d663765"
    "39333438333937333700036f6e650003636c69000a2f3132372e302e302e31000493e0000017700000001d0003000000010007666c6967"
    "6874730000000000000000ffffffff0000000000230000000000010007666c696768747300000003000000000000000100000002000000"
    "00"
)
EXPIRING_BATCH = bytes.fromhex(
    "00000000000000020000006e0000000002403e56bd000000000000000001a1fda184f0000001a1fda184f0ffffffffffffffffffff00000000"
    "0000000178000000320001000872657461696e65640007666c6967687473000000013a0001000000000000006300016d000001a1fda184f000"
    "0001a202c7e0f000"
)
"""A whole batch of Kafka's: one commit by a v2 request with a retention of its own."""

STATIC_MEMBER = "one-1aba8339-3747-42a6-a1b7-f7e934839737"


def test_offset_key() -> None:
    assert decode_key(OFFSET_KEY) == OffsetKey("weather", "flights", 0)
    assert encode_offset_key("weather", "flights", 0) == OFFSET_KEY
    assert decode_key(UNICODE_KEY) == OffsetKey("gruppe-ä😀", "flights", 1)
    assert encode_offset_key("gruppe-ä😀", "flights", 1) == UNICODE_KEY


def test_offset_value_of_the_flexible_version() -> None:
    # The client that committed these (confluent-kafka 2.16) sends a NUL behind its metadata: it is kept like any other.
    assert decode_offset_value(OFFSET_VALUE_V4) == OffsetValue(42, 5, "bgABAAIAAQAC\0", 0x1A1FDA17E6E)
    assert decode_offset_value(UNICODE_VALUE_V4) == OffsetValue(1 << 40, -1, "café\0", 0x1A1FDA17E9B)


def test_offset_value_with_an_expiry() -> None:
    value = OffsetValue(99, -1, "m", 0x1A1FDA184F0, 0x1A1FDA184F0 + 86_400_000)
    assert decode_offset_value(OFFSET_VALUE_V1) == value
    assert encode_offset_value(value) == OFFSET_VALUE_V1


def test_offset_values_of_old_versions() -> None:
    offset, text, time = (7).to_bytes(8, "big"), b"\0\1m", (9).to_bytes(8, "big")
    assert decode_offset_value(b"\0\0" + offset + text + time) == OffsetValue(7, -1, "m", 9)
    assert decode_offset_value(b"\0\2" + offset + text + time) == OffsetValue(7, -1, "m", 9)
    assert decode_offset_value(b"\0\3" + offset + b"\0\0\0\5" + text + time) == OffsetValue(7, 5, "m", 9)


def test_offset_value_written() -> None:
    expected = "0003000000000000002a0000000500016d0000000000000009"
    assert encode_offset_value(OffsetValue(42, 5, "m", 9)).hex() == expected


def test_whole_batch() -> None:
    """Kafka's batch but for the base sequence: Kafka writes 0 where no sequence is meant, and we write -1."""
    theirs = bytearray(EXPIRING_BATCH)
    HEADER.pack_into(theirs, 0, *read_header(EXPIRING_BATCH)._replace(length=0x6E, base_sequence=-1))
    struct.pack_into(">I", theirs, CRC_OFFSET, crc32c(theirs[CRC_START:]))
    commit = TopicCommit("flights", [1], [99], [-1], ["m"])
    records = encode_commit("retained", [commit], 0x1A1FDA184F0, 0x1A1FDA184F0 + 86_400_000)
    assert b"".join(encode_batch(records, base_offset=2)) == theirs
    pair = (encode_offset_key("retained", "flights", 1), OFFSET_VALUE_V1)
    assert b"".join(encode_batch(encode_records([pair], 0x1A1FDA184F0), base_offset=2)) == theirs


def test_group_records() -> None:
    assert decode_key(GROUP_KEY) == GroupKey("static")
    assert encode_group_key("static") == GROUP_KEY
    empty = decode_group_value(EMPTY_GROUP_VALUE)
    assert empty == GroupValue("", 0, None, None, 0x1A1FDA17EE8, ())
    assert encode_group_value(empty) == EMPTY_GROUP_VALUE
    left = decode_group_value(LEFT_GROUP_VALUE)
    assert (left.protocol_type, left.generation, left.members) == ("consumer", 2, ())
    assert encode_group_value(left) == LEFT_GROUP_VALUE


def test_group_with_a_static_member() -> None:
    group = decode_group_value(STATIC_GROUP_VALUE)
    assert group._replace(members=()) == GroupValue("consumer", 1, "range", STATIC_MEMBER, 0x1A1FDA17EF7, ())
    (member,) = group.members
    assert isinstance(member, MemberValue)
    assert member[:6] == (STATIC_MEMBER, "one", "cli", "/127.0.0.1", 300_000, 6_000)
    assert member.subscription.startswith(b"\0\3\0\0\0\1\0\7flights")
    assert member.assignment.startswith(b"\0\0\0\0\0\1\0\7flights\0\0\0\3")
    assert encode_group_value(group) == STATIC_GROUP_VALUE


def test_group_values_of_old_versions() -> None:
    def text(value: str) -> bytes:
        return len(value).to_bytes(2, "big") + value.encode()

    head = text("consumer") + (3).to_bytes(4, "big") + text("range") + text("m")
    tail = (6000).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"s" + (1).to_bytes(4, "big") + b"a"
    who = text("m") + text("client") + text("/host")
    one = (1).to_bytes(4, "big")
    v0 = decode_group_value(b"\0\0" + head + one + who + tail)
    expected = GroupValue(
        "consumer", 3, "range", "m", -1, (MemberValue("m", None, "client", "/host", 6000, 6000, b"s", b"a"),)
    )
    assert v0 == expected
    rebalance = (9000).to_bytes(4, "big")
    v1 = decode_group_value(b"\0\1" + head + one + who + rebalance + tail)
    assert v1.members[0].rebalance_timeout_ms == 9000
    v2 = decode_group_value(b"\0\2" + head + (77).to_bytes(8, "big") + one + who + rebalance + tail)
    assert v2.state_timestamp_ms == 77


def test_group_value_of_the_flexible_version() -> None:
    def text(value: str) -> bytes:
        return bytes([len(value) + 1]) + value.encode()

    member = text("m") + b"\0" + text("client") + text("/host") + (9).to_bytes(4, "big") + (6).to_bytes(4, "big")
    member += b"\2s" + b"\2a" + b"\0"
    value = b"\0\4" + text("consumer") + (3).to_bytes(4, "big") + text("range") + b"\0" + (5).to_bytes(8, "big")
    value += b"\2" + member + b"\0"
    assert decode_group_value(value) == GroupValue(
        "consumer", 3, "range", None, 5, (MemberValue("m", None, "client", "/host", 9, 6, b"s", b"a"),)
    )


@pytest.mark.parametrize(
    ("group", "partitions", "expected"),
    [("weather", 4, 0), ("retained", 4, 0), ("dyn", 4, 1), ("static", 4, 2), ("gruppe-ä😀", 4, 3)],
)
def test_partition_of_a_group(group: str, partitions: int, expected: int) -> None:
    """Where Apache Kafka put these groups with four partitions."""
    assert partition_for(group, partitions) == expected


def test_java_hash() -> None:
    assert java_string_hash("") == 0
    assert java_string_hash("hello") == 99162322
    assert java_string_hash("polygenelubricants") == -(1 << 31)
    assert partition_for("polygenelubricants", 50) == 0


def test_unknown_key_type() -> None:
    assert decode_key(b"\0\3anything") == UnknownKey(3)


@pytest.mark.parametrize("cut", range(len(OFFSET_VALUE_V4)))
def test_cut_value_is_refused(cut: int) -> None:
    with pytest.raises(RecordFormatError):
        decode_offset_value(OFFSET_VALUE_V4[:cut])


def test_bad_bytes_are_refused() -> None:
    with pytest.raises(RecordFormatError, match="left over"):
        decode_key(OFFSET_KEY + b"x")
    with pytest.raises(RecordFormatError, match="version 9"):
        decode_offset_value(b"\0\x09" + OFFSET_VALUE_V4[2:])
    with pytest.raises(RecordFormatError, match="UTF-8"):
        decode_key(b"\0\2\0\2\xff\xff")
    with pytest.raises(RecordFormatError, match="null"):
        decode_key(b"\0\2\xff\xff")
    length_at = 2 + 8 + 4  # of a flexible value's metadata: behind version, offset and leader epoch
    with pytest.raises(RecordFormatError, match="more than 5 bytes"):
        decode_offset_value(OFFSET_VALUE_V4[:length_at] + b"\xff" * 6)
    with pytest.raises(RecordFormatError, match="ends within a varint"):
        decode_offset_value(OFFSET_VALUE_V4[:length_at] + b"\xff")
    with pytest.raises(ValueError, match="32767"):
        encode_group_key("g" * 32_768)
