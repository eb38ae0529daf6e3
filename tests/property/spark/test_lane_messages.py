"""Whatever pieces a socket brings, the messages are those that a `Connection` sent."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.consumer.snapshot import Snapshot
from keylane.spark.channel import FROM_DRIVER, FROM_LANES, Answer, Messages, Moved, UnreadableMessageError, read_message
from keylane.spark.reports import Sent


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


class Hostile:
    """Raises where it is unpickled."""

    def __init__(self, error: str) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"raise {self.error}('as it is unpickled')",)


OTHERS = st.none() | st.integers() | st.binary(max_size=9) | st.lists(st.integers(), max_size=3)
HOSTILE = st.sampled_from(["ValueError", "RecursionError", "MemoryError", "EOFError", "AttributeError"]).map(Hostile)
MESSAGES = st.sampled_from([Sent().report(Snapshot(processed=1)), Answer(1, None), Moved(passed=2)])


@given(OTHERS | HOSTILE, MESSAGES, st.integers(0, 1_000))
def test_what_is_no_message_is_refused_and_nothing_else_is_raised(other: Any, message: Any, size: int) -> None:
    sent = pickle.dumps(message)
    for data in (pickle.dumps(other), sent[: size % len(sent)]):
        with pytest.raises(UnreadableMessageError):
            read_message(data, FROM_LANES)
    assert type(read_message(sent, (*FROM_LANES, *FROM_DRIVER))) is type(message)
