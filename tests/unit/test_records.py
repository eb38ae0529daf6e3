"""An `Output` is what Kafka can take, or an error where it is made."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from confluent_kafka import Message

import keylane as kl
from keylane.errors import OutputTypeError
from keylane.flow.workers.calls import failure_of
from keylane.records import PlainMessage, Record, RecordView, carried_headers_of


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"value": {"a": 1}}, "Output.value for topic 't' is a value of type dict: give bytes or None"),
        ({"key": 7}, "Output.key for topic 't' is a value of type int: give bytes or None"),
        ({"value": bytearray(b"x")}, "Output.value for topic 't' is a value of type bytearray"),
        ({"topic": None}, "Output.topic is a value of type NoneType: give the name of a topic"),
        ({"topic": ""}, "Output.topic is '': give the name of a topic"),
        ({"headers": {"a": b""}}, "Output.headers for topic 't' is a value of type dict"),
        ({"headers": [("a", 1)]}, "Output.headers for topic 't' is a value of type list"),
        ({"headers": [b"ab"]}, "Output.headers for topic 't' is a value of type list"),
        ({"partition": "0"}, "Output.partition for topic 't' is a value of type str: give a whole number"),
        ({"partition": -1}, "Output.partition for topic 't' is -1: give one from 0 on, or None, which leaves"),
        ({"timestamp_ms": 1.5}, "Output.timestamp_ms for topic 't' is a value of type float: give a whole number"),
    ],
)
def test_a_field_of_another_type_is_refused_where_the_output_is_made(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError) as raised:
        kl.Output(**({"topic": "t"} | fields))
    assert text in str(raised.value)
    assert isinstance(raised.value, OutputTypeError | kl.UsageError)
    assert failure_of(raised.value).final, "another attempt would only fail again"


def test_what_kafka_can_take_is_taken() -> None:
    whole = kl.Output("t", b"k", b"v", [("a", b"1"), ("b", None), ["c", "text"]], 3, 5)  # type: ignore[list-item]
    assert (whole.partition, whole.timestamp_ms) == (3, 5)
    text: Any = "é"
    assert kl.Output("t", text, text) == kl.Output("t", text.encode(), text.encode())
    assert pickle.loads(pickle.dumps(whole)) == whole
    assert kl.Output("t") == kl.Output("t", None, None, ())


def test_what_a_handler_changes_in_the_headers_is_in_no_dead_letter() -> None:
    record = RecordView.of(Message("t", 0, 1, b"k", b"v", [("a", b"1")]))  # one list for all who ask it
    record.headers.append(("b", b"2"))
    assert record.headers == [("a", b"1")]
    assert carried_headers_of(record.message) == [("a", b"1")]


def test_a_record_as_handlers_get_it_is_any_other_record() -> None:
    message = PlainMessage("t", 1, 2, b"k", b"v", (("h", b"x"),), (1, 3), 4)
    record, seen = Record(message), RecordView.of(message)
    names = [name for name in dir(Record) if not name.startswith("_") and not callable(getattr(record, name))]
    assert {"topic", "partition", "offset", "key", "value", "headers"} <= set(names)
    assert [getattr(seen, name) for name in names] == [getattr(record, name) for name in names]
    assert isinstance(seen, Record)
    assert repr(seen) == repr(record)
    travelled = pickle.loads(pickle.dumps(seen))
    assert [getattr(travelled, name) for name in names] == [getattr(record, name) for name in names]
    with pytest.raises(AttributeError):
        seen.colour = "red"  # type: ignore[attr-defined]
