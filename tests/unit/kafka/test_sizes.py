"""How large a letter is, and what of it is left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keylane.consumer.dead_letters import said_of, shorter
from keylane.kafka.java_settings import translate
from keylane.kafka.sizes import size_of
from keylane.records import Output
from keylane.wire.batches import NewRecord, encode_batch

HEADERS = st.lists(st.tuples(st.text("aä€", max_size=200), st.none() | st.binary(max_size=300)), max_size=5)


@given(st.none() | st.binary(max_size=300), st.binary(max_size=300), HEADERS)
def test_a_size_is_no_less_than_the_batch_s(key: bytes | None, value: bytes, headers: list[tuple[str, bytes]]) -> None:
    wire = tuple((name.encode(), one) for name, one in headers)
    batch = encode_batch([NewRecord(key, value, wire)], timestamp_ms=5)
    assert len(batch) <= size_of(Output("t", key, value, headers)) <= len(batch) + 120 + 10 * len(headers)


def test_a_letter_says_less_step_by_step_and_never_less_than_its_origin() -> None:
    own = ("own", b"1")
    letter = Output("dead", b"k", b"v", [own, *said_of(("t", 3, 7), 5, ValueError("€" * 500), 2)])
    short = shorter(letter)
    assert short is not None
    assert dict(short.headers)["keylane.error.text"] == "€".encode() * 33
    least = shorter(short)
    assert least is not None
    assert list(least.headers) == [
        own,
        ("keylane.topic", b"t"),
        ("keylane.partition", b"3"),
        ("keylane.offset", b"7"),
        ("keylane.attempts", b"2"),
    ]
    assert (least.key, least.value) == (b"k", b"v")
    assert shorter(least) is None


def test_java_s_largest_request_is_librdkafka_s_largest_message() -> None:
    assert translate({"max.request.size": "5000000"}) == {"message.max.bytes": "5000000"}
