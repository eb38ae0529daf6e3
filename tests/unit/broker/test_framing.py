from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.broker.dispatch import MIN_FRAME_BYTES, FrameError, FrameReader

frames_and_cuts = st.tuples(
    st.lists(st.binary(min_size=MIN_FRAME_BYTES, max_size=300), max_size=8),
    st.lists(st.integers(0, 2_500), max_size=12),
)


@given(frames_and_cuts)
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(case: tuple[list[bytes], list[int]]) -> None:
    frames, cuts = case
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    reader = FrameReader(300)
    found = []
    start = 0
    for cut in [*sorted(cuts), len(stream)]:
        found += reader.feed(stream[start:cut])
        start = max(start, cut)
    assert found == frames


@pytest.mark.parametrize("size", [301, 2**31 - 1, MIN_FRAME_BYTES - 1, 0, -1])
def test_a_size_that_no_request_has_is_refused_before_its_bytes_come(size: int) -> None:
    reader = FrameReader(300)
    with pytest.raises(FrameError, match=f"a request of {size} bytes"):
        reader.feed(size.to_bytes(4, "big", signed=True))


def test_a_large_frame_is_joined_once() -> None:
    reader = FrameReader(10_000_000)
    frame = bytes(range(256)) * 4_000
    assert reader.feed(len(frame).to_bytes(4, "big")) == []
    for start in range(0, len(frame), 1_000):
        pieces = reader.feed(frame[start : start + 1_000])
        assert len(reader._parts) <= 1 + len(frame) // 1_000
    assert pieces == [frame]


def test_a_client_that_speaks_tls_is_named() -> None:
    with pytest.raises(FrameError, match="the client speaks TLS, and this listener does not"):
        FrameReader(300).feed(bytes.fromhex("16030100f5010000f10303"))


def test_what_is_arriving_is_known_with_its_size() -> None:
    reader = FrameReader(300)
    for piece, arriving in ((b"\0\0", 0), (b"\0\x14", 20), (b"x" * 19, 20), (b"x" + b"\0\0\0\x0a", 10), (b"y" * 10, 0)):
        reader.feed(piece)
        assert reader.arriving == arriving
