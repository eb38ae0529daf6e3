"""What dead letters say, of every kind that is read, and what goes back with a record.

The headers are written here as each kind's documentation and source have them: spring-kafka's reference ("Publishing
Dead-letter Records": numbers as big-endian bytes), KIP-298, KIP-1034 and KIP-1191 (everything as text).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.consumer.dead_letters import (
    OURS,
    ROUNDS,
    SETS,
    Death,
    Letter,
    as_it_was,
    dead_letter,
    note_steps,
    read,
    redriven,
    said_of,
)
from keylane.flow.outcomes import Failure
from keylane.records import PlainMessage

Headers = list[tuple[str, bytes | None]]

OWN: Headers = [("trace", b"1"), ("trace", b"2"), ("empty", None), ("kafka_correlationId", b"c")]
"""Of the record, and among them one whose name begins like Spring's."""

SPRING: Headers = [
    ("kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
    ("kafka_dlt-exception-cause-fqcn", b"java.lang.IllegalStateException"),
    ("kafka_dlt-exception-message", b"Listener failed"),
    ("kafka_dlt-exception-stacktrace", b"at a.B"),
    ("kafka_dlt-original-topic", b"orders"),
    ("kafka_dlt-original-partition", (3).to_bytes(4)),
    ("kafka_dlt-original-offset", (1 << 40).to_bytes(8)),
    ("kafka_dlt-original-timestamp", (1_750_000_000_000).to_bytes(8)),
    ("kafka_dlt-original-timestamp-type", b"CreateTime"),
    ("kafka_dlt-original-consumer-group", b"billing"),
]
RETRY_TOPIC: Headers = [
    ("kafka_original-topic", b"orders"),
    ("kafka_original-partition", (3).to_bytes(4)),
    ("kafka_original-offset", (7).to_bytes(8)),
    ("kafka_original-timestamp", (1_750_000_000_000).to_bytes(8)),
    ("kafka_original-timestamp-type", b"CreateTime"),
    ("kafka_exception-fqcn", b"java.net.SocketTimeoutException"),
    ("kafka_exception-message", b"timed out"),
    ("retry_topic-attempts", (4).to_bytes(4)),
    ("retry_topic-original-timestamp", (1_750_000_000_000).to_bytes(8)),
    ("retry_topic-backoff-timestamp", (1_750_000_000_000).to_bytes(8)),
]
CONNECT: Headers = [
    ("__connect.errors.topic", b"orders"),
    ("__connect.errors.partition", b"3"),
    ("__connect.errors.offset", b"7"),
    ("__connect.errors.connector.name", b"sink"),
    ("__connect.errors.task.id", b"0"),
    ("__connect.errors.stage", b"VALUE_CONVERTER"),
    ("__connect.errors.class.name", b"org.apache.kafka.connect.json.JsonConverter"),
    ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
    ("__connect.errors.exception.message", b"no schema"),
    ("__connect.errors.exception.stacktrace", b"at a.B"),
]
STREAMS: Headers = [
    ("__streams.errors.exception", b"java.lang.RuntimeException"),
    ("__streams.errors.message", b"no field"),
    ("__streams.errors.stacktrace", b"at a.B"),
    ("__streams.errors.topic", b"orders"),
    ("__streams.errors.partition", b"3"),
    ("__streams.errors.offset", b"7"),
]
SHARE: Headers = [
    ("__dlq.errors.topic", b"orders"),
    ("__dlq.errors.partition", b"3"),
    ("__dlq.errors.offset", b"7"),
    ("__dlq.errors.group", b"billing"),
    ("__dlq.errors.delivery.count", b"5"),
    ("__dlq.errors.message", b"Offset rejected by client."),
]
KEYLANE: Headers = list(said_of(("orders", 3, 7), 1_750_000_000_000, ValueError("no value"), 5))
TIME = 1_750_000_000_000

KINDS = [
    (KEYLANE, Death("keylane", "orders", 3, 7, TIME, "ValueError", "no value", 5)),
    (SPRING, Death("spring", "orders", 3, 1 << 40, TIME, "java.lang.IllegalStateException", "Listener failed")),
    (RETRY_TOPIC, Death("spring", "orders", 3, 7, TIME, "java.net.SocketTimeoutException", "timed out")),
    (CONNECT, Death("connect", "orders", 3, 7, None, "org.apache.kafka.connect.errors.DataException", "no schema")),
    (STREAMS, Death("streams", "orders", 3, 7, None, "java.lang.RuntimeException", "no field")),
    (SHARE, Death("share group", "orders", 3, 7, None, None, "Offset rejected by client.", 5)),
]


@pytest.mark.parametrize(("headers", "death"), KINDS)
def test_each_kind_is_read_and_parted_from_the_records_own(headers: Headers, death: Death) -> None:
    letter = read([*OWN, *headers])
    assert letter.death == death
    assert letter.headers == OWN
    assert letter.rounds == 0


def test_steps_that_were_done_are_named_for_the_record_whose_attempt_failed_alone() -> None:
    place, error = ("orders", 3, 7), ValueError("raised for many records")
    note_steps(error, place, ["ask", "part/a"])
    said: Headers = list(said_of(place, TIME, error, 5))
    death = read(said).death
    assert death.steps == '["ask", "part/a"]'
    assert redriven(read(said)) == [*said, (ROUNDS, b"1")]
    assert read(said_of(("orders", 3, 8), TIME, error, 5)).death.steps is None


def test_what_says_nothing_is_a_letter_of_unknown_origin() -> None:
    assert read(OWN).death == Death()
    assert read([("keylane.topic", b"orders"), ("keylane.offset", b"far")]).death == Death("keylane", "orders")
    assert read([("kafka_dlt-original-topic", b"orders"), ("kafka_dlt-original-offset", b"7")]).death.offset is None


def test_a_letter_whose_own_consumer_failed_goes_back_to_the_first_topic() -> None:
    again: Headers = [
        ("kafka_dlt-original-topic", b"orders.DLT"),
        ("kafka_dlt-original-partition", (0).to_bytes(4)),
        ("kafka_dlt-exception-cause-fqcn", b"java.io.IOException"),
    ]
    death = read([*SPRING, *again]).death
    assert (death.topic, death.partition, death.error_class) == ("orders", 3, "java.io.IOException")


@pytest.mark.parametrize(("headers", "death"), KINDS)
def test_what_comes_back_has_one_set_and_one_more_round(headers: Headers, death: Death) -> None:
    back = redriven(read([*OWN, *headers]))
    assert back[: len(OWN)] == OWN
    assert {name for name, _ in back[len(OWN) :]} <= OURS.names() | {ROUNDS}
    assert read(back).rounds == 1
    assert read(back).death == replace(death, kind="keylane")
    assert len({name for name, _ in back}) == len(back) - 1, "but for the record's own pair of one name"


@pytest.mark.parametrize(("headers", "death"), KINDS)
def test_who_buries_it_next_has_the_last_word_and_rounds_go_on(headers: Headers, death: Death) -> None:
    back = redriven(redriven_letter(3))
    assert read([*back, *headers]).death == death
    assert read([*back, *headers]).rounds == 4


def redriven_letter(rounds: int) -> Letter:
    return read([*OWN, *KEYLANE, (ROUNDS, b"%d" % rounds)])


def test_a_record_that_dies_again_has_one_set_of_its_last_death_and_keeps_its_rounds() -> None:
    message = PlainMessage("orders", 1, 99, b"k", b"v", tuple(redriven(read([*OWN, *KEYLANE]))), (1, TIME))
    output = dead_letter(message, "orders.dead", Failure(TimeoutError("slow")), 2)
    letter = read(output.headers)
    assert letter.death == Death("keylane", "orders", 1, 99, TIME, "TimeoutError", "slow", 2)
    assert (letter.rounds, letter.headers) == (1, OWN)
    assert len([name for name, _ in output.headers if name == OURS.topic]) == 1


OF_SETS = st.sampled_from(sorted({name for one in SETS for name in one.names()} | {ROUNDS, "__connect.errors.new"}))
ANY_HEADERS = st.lists(
    st.tuples(OF_SETS | st.text(max_size=6).filter(lambda one: "\0" not in one), st.none() | st.binary(max_size=9)),
    max_size=12,
)


@given(ANY_HEADERS)
def test_whatever_a_letter_has_its_record_comes_back_with_what_was_its_own(headers: Headers) -> None:
    letter = read(headers)
    once = read(redriven(letter))
    assert once.headers == letter.headers == as_it_was(letter.headers)
    assert once.rounds == letter.rounds + 1
    assert read(redriven(once)).death == once.death
