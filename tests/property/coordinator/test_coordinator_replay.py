"""Replaying any batch of ours gives what was put into it; a batch of another's is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.coordinator.commits import encode_batch, encode_records
from keylane.coordinator.image import Image
from keylane.coordinator.records import (
    GroupValue,
    OffsetValue,
    RecordFormatError,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from keylane.coordinator.replay import Replayer, records_of
from keylane.wire import batches

PAIRS = st.lists(
    st.tuples(
        st.binary(max_size=20) | st.sampled_from([b"k" * size for size in (63, 64, 8_191, 8_192)]),
        st.none() | st.binary(max_size=20) | st.sampled_from([b"v" * size for size in (63, 64, 8_192)]),
    ),
    min_size=1,
    max_size=70,
)


@given(PAIRS, st.sampled_from([0, 1, 4]))
def test_records_of_a_batch(pairs: list[tuple[bytes, bytes | None]], codec: int) -> None:
    batch = b"".join(encode_batch(encode_records(pairs, 5), 7, codec=codec))
    assert list(records_of(batch)) == [(7 + at, *pair) for at, pair in enumerate(pairs)]


@given(PAIRS, st.data(), st.sampled_from([0, 1, 4]))
def test_a_batch_cut_short_or_changed_is_refused_or_read_whole(
    pairs: list[tuple[bytes, bytes | None]], data: st.DataObject, codec: int
) -> None:
    """Whatever its records' bytes are, reading them ends, with records or with an error that says what is wrong."""
    batch = bytearray(b"".join(encode_batch(encode_records(pairs, 5), 7, codec=codec)))
    at = data.draw(st.integers(batches.HEADER_SIZE, len(batch) - 1))
    batch[at] = data.draw(st.integers(0, 255))
    for changed in (bytes(batch), bytes(batch[:at])):
        try:
            found = list(records_of(changed))
        except RecordFormatError:
            continue
        assert len(found) == len(pairs)


def test_other_batches_are_refused() -> None:
    with_header = [batches.NewRecord(b"k", b"v", ((b"name", b"value"),))]
    with pytest.raises(RecordFormatError, match="another form"):
        list(records_of(batches.encode_batch(with_header, timestamp_ms=1)))
    transactional = batches.encode_batch([batches.NewRecord(b"k", b"v")], timestamp_ms=1, attributes=0x10)
    with pytest.raises(RecordFormatError, match="attributes 16"):
        list(records_of(transactional))


def test_offsets_groups_and_tombstones() -> None:
    group = GroupValue("consumer", 3, "range", "m", 5, ())
    pairs: list[tuple[bytes, bytes | None]] = [
        (encode_offset_key("g", "t", 0), encode_offset_value(OffsetValue(1, 2, "", 3))),
        (encode_offset_key("g", "t", 1), encode_offset_value(OffsetValue(4, -1, "m", 5))),
        (encode_offset_key("g", "t", 2), encode_offset_value(OffsetValue(6, -1, "", 7, 8))),
        (encode_offset_key("g", "t", 3), encode_offset_value(OffsetValue(9, 9, "", 9))),
        (encode_offset_key("g", "t", 3), None),
        (b"\0\0" + encode_offset_key("g", "old", 0)[2:], b"\0\0" + (11).to_bytes(8, "big") + b"\0\0" + bytes(8)),
        (encode_group_key("g"), encode_group_value(group._replace(generation=2))),
        (encode_group_key("g"), encode_group_value(group)),
        (encode_group_key("gone"), encode_group_value(group)),
        (encode_group_key("gone"), None),
        (b"\0\x0bof newer software", b"kept, not read"),
    ]
    image = Image()
    store = image.store
    Replayer(image).replay(0, b"".join(encode_batch(encode_records(pairs, 5), 0)))
    assert [store.get("g", "t", p) for p in range(4)] == [
        OffsetValue(1, 2, "", 3),
        OffsetValue(4, -1, "m", 5),
        OffsetValue(6, -1, "", 7, 8),
        None,
    ]
    assert store.get("g", "old", 0) == OffsetValue(11, -1, "", 0)
    assert dict(image.groups()) == {"g": group}
