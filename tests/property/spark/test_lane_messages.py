"""Whatever pieces a socket brings, the messages are those that a `Connection` sent."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from keylane.spark.channel import Messages


def framed(message: bytes, *, long: bool) -> bytes:
    """As `multiprocessing.connection` sends it; the long form is for messages of 2 GB."""
    length = struct.pack("!iQ", -1, len(message)) if long else struct.pack("!i", len(message))
    return length + message


@given(st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=8), st.lists(st.integers(1, 12)))
def test_messages_come_whole_and_in_order(sent: list[tuple[bytes, bool]], sizes: list[int]) -> None:
    stream = b"".join(framed(message, long=long) for message, long in sent)
    messages = Messages()
    found: list[bytes] = []
    for size in [*sizes, len(stream)]:
        piece, stream = stream[:size], stream[size:]
        found += messages.take(piece)
    assert found + messages.take(stream) == [message for message, _ in sent]
