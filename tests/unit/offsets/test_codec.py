"""The metadata format: the bytes of the format page, what the JVM Parallel Consumer wrote, and hostile input."""

from __future__ import annotations

import base64
import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import zstandard

from keylane.errors import MetadataError, UsageError
from keylane.offsets import Encoding, OffsetMap, decode, encode
from keylane.offsets.codec import MAX_BODY_BYTES

EXAMPLE = OffsetMap(100, [100, 103], 105)
WRITTEN = [encoding for encoding in Encoding if encoding.is_written]


def metadata(data: bytes) -> str:
    return base64.b64encode(data).decode()


def zstd(body: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False, **options).compress(body)


# --- the bytes ---


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("bAAGNgA=", Encoding.BITSET_V1),
        ("bwAAAAY2AA==", Encoding.BITSET_V2),
        ("bgABAAIAAQAC", Encoding.RUN_LENGTH_V1),
        ("ZQAAAAEAAAACAAAAAQAAAAI=", Encoding.RUN_LENGTH_V2),
    ],
)
def test_the_format_pages_example_in_each_plain_encoding(text: str, encoding: Encoding) -> None:
    assert decode(text, 100) == EXAMPLE
    assert encode(EXAMPLE, encoding) == text
    assert encode(EXAMPLE, encoding.label) == text


def test_the_smallest_encoding_is_written() -> None:
    assert encode(EXAMPLE) == "bAAGNgA="


def jvm_maps() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((Path(__file__).parent / "parallel_consumer_maps.json").read_text())
    return rows


@pytest.mark.parametrize("row", jvm_maps(), ids=lambda row: f"{row['base']}+{row['highest_completed'] - row['base']}")
def test_what_the_jvm_parallel_consumer_wrote_is_read_and_written_alike(row: dict[str, Any]) -> None:
    """Written by its 0.5.3.3, each map in every encoding that can carry it."""
    expected = OffsetMap(row["base"], [range(*run) for run in row["incomplete"]], row["highest_completed"])
    assert len(row["metadata"]) >= 4
    for label, text in row["metadata"].items():
        assert decode(text, row["base"]) == expected, label
        if "zstd" not in label and "ByteArray" not in label:
            assert encode(expected, label) == text, label


def test_the_jvm_maps_hold_every_encoding() -> None:
    assert {label for row in jvm_maps() for label in row["metadata"]} == {encoding.label for encoding in Encoding}


@pytest.mark.parametrize("text", ["", None])
def test_empty_metadata_holds_nothing_complete(text: str | None) -> None:
    assert decode(text, 42) == OffsetMap(42)


@pytest.mark.parametrize("data", [b"n", b"e", b"n\0\0", b"e\0\0\0\0", b"l\0\0\0", b"o\0\0\0\0\0", b"L", b"L\0"])
def test_an_empty_range_has_several_spellings(data: bytes) -> None:
    assert decode(metadata(data), 42) == OffsetMap(42)


@pytest.mark.parametrize("encoding", WRITTEN, ids=lambda e: e.label)
def test_an_empty_map_is_empty_metadata_unless_an_encoding_is_named(encoding: Encoding) -> None:
    assert encode(OffsetMap(42)) == ""
    assert encode(OffsetMap(42), encoding) != ""
    assert decode(encode(OffsetMap(42), encoding), 42) == OffsetMap(42)


def test_early_writers_left_the_pad_byte_out() -> None:
    assert decode(metadata(b"l\0\x06\x36"), 100) == EXAMPLE


def test_runs_of_zero_in_the_middle_join_their_neighbours() -> None:
    assert decode(metadata(b"n" + struct.pack(">5h", 2, 0, 3, 1, 0)), 10) == OffsetMap(10, range(10, 15), 15)


def test_byte_arrays_are_read() -> None:
    body = bytes([0, 1, 1, 0, 1, 1, 0])
    assert decode(metadata(b"L" + body), 100) == EXAMPLE
    assert decode(metadata(b"\xee" + zstd(body)), 100) == EXAMPLE


def test_a_zstd_frame_with_its_content_size_is_read_too() -> None:
    body = struct.pack(">4h", 1, 2, 1, 2)
    assert decode(metadata(b"J" + zstandard.ZstdCompressor(write_content_size=True).compress(body)), 100) == EXAMPLE


# --- forced encodings ---


def test_v1_refuses_what_it_cannot_carry_and_v2_carries_it() -> None:
    wide = OffsetMap(0, [0, 16_000], 32_767)  # 32,768 offsets, but no run is that long
    with pytest.raises(UsageError, match=r"'BitSet v1' carries lengths up to 32767, not 32768"):
        encode(wide, Encoding.BITSET_V1)
    with pytest.raises(UsageError, match="BitSet v1 zstd"):
        encode(wide, "bitset_v1_zstd")
    assert decode(encode(wide, Encoding.RUN_LENGTH_V1), 0) == wide
    assert decode(encode(wide, Encoding.BITSET_V2), 0) == wide

    long_run = OffsetMap(0, [0], 32_768)
    with pytest.raises(UsageError, match="not 32768"):
        encode(long_run, Encoding.RUN_LENGTH_V1)
    assert decode(encode(long_run, Encoding.RUN_LENGTH_V2), 0) == long_run

    fits = OffsetMap(0, [0], 32_766)
    assert decode(encode(fits, Encoding.BITSET_V1), 0) == fits
    assert decode(encode(OffsetMap(0, [0], 32_767), "RunLength v1"), 0) == OffsetMap(0, [0], 32_767)


@pytest.mark.parametrize("name", [Encoding.BYTE_ARRAY, Encoding.BYTE_ARRAY_ZSTD, "ByteArray", "gzip", ""])
def test_an_encoding_that_is_not_written_is_refused_by_name(name: Encoding | str) -> None:
    with pytest.raises(UsageError, match=r"give one of BitSet v1, .*RunLength v2 zstd"):
        encode(EXAMPLE, name)


def test_a_span_beyond_32_bits_is_refused() -> None:
    with pytest.raises(UsageError, match="at most 2147483647 can be written"):
        encode(OffsetMap(0, [0], 2**31 - 1))
    assert decode(encode(OffsetMap(0, [0], 2**31 - 2)), 0) == OffsetMap(0, [0], 2**31 - 2)


# --- foreign and hostile metadata ---


@pytest.mark.parametrize("version", [1, 2])
def test_kafka_streams_metadata_is_named_and_refused(version: int) -> None:
    with pytest.raises(MetadataError, match=rf"belongs to Kafka Streams \(magic {version}\)"):
        decode(metadata(bytes([version]) + (1_700_000_000_000).to_bytes(8, "big")), 0)


BITS = (1 << 20) - 64
ALTERNATING = b"s" + zstd(struct.pack(">i", BITS) + b"\x55" * (BITS // 8) + b"\0")

HOSTILE = {
    "no Base64": ("not an offset map!", "not Base64"),
    "unpadded": ("bAAGNgA", "not Base64"),
    "URL-safe alphabet": ("bAAG_-A=", "not Base64"),
    "not ASCII": ("bAAGNgé=", "not Base64"),
    "two lines": ("bAAG\nNgA=", "not Base64"),
    "a lone surrogate": ("\udcff", "not Base64"),
    "unknown magic": (metadata(b"Qabc"), r"unknown magic byte b'Q'"),
    "the envelope of the JVM's fork": (metadata(b"X\0\1al\0\6\x36\0"), "that of the Parallel Consumer's envelope"),
    "another program's text": (metadata(b'{"lag": 3}'), r"unknown magic byte b'{'"),
    "BitSet without a length": (metadata(b"l\0"), "1 bytes hold no length"),
    "BitSet of a negative length": (metadata(b"l\xff\xff\0"), "it speaks of -1 offsets"),
    "BitSet cut short": (metadata(b"o\0\0\0\x10\x00\x01"), "16 offsets need 3 bytes, and it has 2"),
    "BitSet that only claims": (metadata(b"o\x7f\xff\xff\xff"), "2147483647 offsets need 268435457 bytes"),
    "BitSet with bytes too many": (metadata(b"l\0\x06\x36\0\0"), "6 offsets need 2 bytes, and it has 3"),
    "BitSet with bits beyond its length": (metadata(b"l\0\x06\x76\0"), "bits are set beyond its 6 offsets"),
    "RunLength cut in a run": (metadata(b"n\0\x01\0"), "3 bytes are no whole number of 2-byte runs"),
    "a negative run": (metadata(b"n" + struct.pack(">3h", 5, -3, 1)), "a run of length -3"),
    "runs beyond the largest span": (metadata(b"e" + struct.pack(">2i", 2**31 - 1, 1)), "speaks of 2147483648 offsets"),
    "runs beyond the largest offset": (metadata(b"e" + struct.pack(">i", 50)), "speaks of 50 offsets, and at most 7"),
    "ByteArray of other bytes": (metadata(b"L\0\1\2\1\0"), "neither 0 nor 1"),
    "no zstd": (metadata(b"Jabcdef"), "zstd frame cannot be read"),
    "empty zstd": (metadata(b"J"), "cut short"),
    "zstd cut short": (metadata(b"s" + zstd(bytes(range(200)))[:-1]), "cut short"),
    "zstd with a tail": (metadata(b"s" + zstd(b"\0\0\0\0\0") + b"x"), "1 bytes follow its zstd frame"),
    "a zstd bomb": (metadata(b"a" + zstd(bytes(50_000_000))), f"more than {MAX_BODY_BYTES} bytes"),
    "a zstd frame that asks for 128 MB": (metadata(b"p\x28\xb5\x2f\xfd\x00\x88\x01\x00\x00"), "too much memory"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_metadata_is_one_line_of_error_and_costs_nothing(name: str) -> None:
    text, says = HOSTILE[name]
    base = 2**63 - 1 - 7 if name == "runs beyond the largest offset" else 100
    tracemalloc.start()
    try:
        with pytest.raises(MetadataError, match=says) as caught:
            decode(text, base)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250
    assert peak < 2_000_000


def test_one_hostile_run_costs_one_run_or_is_refused() -> None:
    text = metadata(b"e\x7f\xff\xff\xff")
    assert decode(text, 100).runs == (range(100, 100 + 2**31 - 1),)
    with pytest.raises(MetadataError, match="speaks of 2147483647 offsets, and at most 1000000 are believed"):
        decode(text, 100, max_span=1_000_000)
    assert decode(metadata(b"l\0\x06\x36\0"), 100, max_span=6) == EXAMPLE
    with pytest.raises(MetadataError, match="at most 5"):
        decode(metadata(b"l\0\x06\x36\0"), 100, max_span=5)


@pytest.mark.full
def test_the_worst_metadata_that_is_believed_costs_megabytes() -> None:
    tracemalloc.start()
    try:
        believed = decode(metadata(ALTERNATING), 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert believed.run_count == BITS // 2
    assert peak < 16_000_000


def test_a_wrong_base_is_the_callers_fault() -> None:
    with pytest.raises(UsageError, match="base=-5"):
        decode("bAAGNgA=", -5)
