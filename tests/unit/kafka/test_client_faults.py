"""Which errors pass, which stop the consumer, and what is logged how often; settings divided between the clients."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from keylane.errors import PeerError, UsageError
from keylane.kafka.client_log import REPEAT_AFTER_S, ClientLog
from keylane.kafka.faults import Faults, client_of, commit_problem, error_of, refusal_of
from keylane.kafka.settings import (
    MEMBER_DEFAULTS,
    READER_DEFAULTS,
    SILENT_MS,
    consumer_settings,
    fetcher_settings,
    is_cooperative,
    member_settings,
    producer_settings,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_error_that_passes_is_logged_once_and_again_when_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    faults = Faults(clock)
    with caplog.at_level(logging.WARNING, "keylane"):
        for _ in range(5):
            faults.report(KafkaError(KafkaError._TRANSPORT, "gone"))
        faults.report(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        assert caplog.messages[0] == "_TRANSPORT: gone (will be tried again)"
        assert len(caplog.records) == 2
        clock.now += REPEAT_AFTER_S
        faults.report(KafkaError(KafkaError._TRANSPORT, "gone"))
        assert len(caplog.records) == 3
    faults.raise_failure()


@pytest.mark.parametrize(
    "error",
    [KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED), KafkaError(KafkaError._FATAL, "fenced", fatal=True)],
)
def test_an_error_that_does_not_pass_is_raised_once(error: KafkaError) -> None:
    faults = Faults()
    faults.report(error)
    with pytest.raises(PeerError, match="the Kafka client cannot go on: "):
        faults.raise_failure()
    faults.raise_failure()


@pytest.mark.parametrize(
    ("code", "text", "says"),
    [
        (KafkaError._AUTHENTICATION, "Authentication failed: invalid credentials", "correct sasl.username, "),
        (KafkaError._SSL, "SSL routines::certificate verify failed: broker certificate could", "ssl.ca.location"),
        (KafkaError._TRANSPORT, "SSL routines::certificate verify failed (after 1ms)", "correct ssl.ca.location"),
        (KafkaError._SSL, "SSL routines::tlsv13 alert certificate required: SSL alert number 116", "ssl.certificate."),
        (KafkaError._SSL, "SSL routines::tlsv1 alert unknown ca: SSL alert number 48", "correct ssl.certificate."),
        (KafkaError._SSL, "SSL handshake failed: Disconnected", None),
        (KafkaError._TRANSPORT, "Connection refused", None),
    ],
)
def test_a_login_or_a_certificate_that_is_refused_is_told_as_what_it_is(code: int, text: str, says: str | None) -> None:
    found = refusal_of(KafkaError(code, text))
    assert (found is None) == (says is None)
    assert found is None or (says is not None and says in found and text in found)


def test_why_no_broker_answers_is_not_replaced_by_that_none_does() -> None:
    faults = Faults()
    faults.report(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert faults.last == "_ALL_BROKERS_DOWN: 1/1 brokers are down"
    faults.report(KafkaError(KafkaError._SSL, "certificate verify failed"))
    faults.report(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert faults.last == "_SSL: certificate verify failed"


def test_the_client_s_lines_are_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = ClientLog(clock)
    with caplog.at_level(logging.WARNING, "keylane"):
        for milliseconds in range(5):
            log.log(logging.WARNING, "%s [%s] %s", "FAIL", "keylane#consumer-1", f"refused (after {milliseconds}ms)")
        log.log(logging.WARNING, "%s [%s] %s", "FAIL", "keylane#consumer-1", "something else")
        assert len(caplog.records) == 2
        assert caplog.records[0].name == "keylane.kafka"
        clock.now += REPEAT_AFTER_S
        log.log(logging.WARNING, "%s [%s] %s", "FAIL", "keylane#consumer-1", "refused (after 9ms)")
        assert len(caplog.records) == 3


@pytest.mark.parametrize(
    ("code", "too_large", "fatal"),
    [
        (KafkaError.OFFSET_METADATA_TOO_LARGE, True, False),
        (KafkaError.ILLEGAL_GENERATION, False, False),
        (KafkaError._TRANSPORT, False, False),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, False, True),
        (KafkaError.FENCED_INSTANCE_ID, False, False),
    ],
)
def test_what_a_refused_commit_means(code: int, too_large: bool, fatal: bool) -> None:
    problem = commit_problem(KafkaError(code))
    assert (problem.metadata_too_large, problem.fatal) == (too_large, fatal)
    assert problem.text.startswith(KafkaError(code).name() + ": ")


def test_the_error_inside_an_exception() -> None:
    error = KafkaError(KafkaError._TIMED_OUT)
    assert error_of(KafkaException(error)) is error
    assert error_of(KafkaException("text")).code() == KafkaError._FAIL


KAFKA = {
    "bootstrap.servers": "h:1",
    "group.id": "g",
    "linger.ms": 7,
    "session.timeout.ms": 9_000,
    "security.protocol": "PLAINTEXT",
    "fetch.queue.backoff.ms": 500,
}


def test_each_client_gets_its_own_settings_and_the_user_s_win_over_defaults() -> None:
    consumer, producer = consumer_settings(KAFKA, None), producer_settings(KAFKA, None)
    assert "linger.ms" not in consumer
    assert (consumer["session.timeout.ms"], consumer["fetch.queue.backoff.ms"]) == (9_000, 500)
    assert not {"group.id", "session.timeout.ms", "fetch.queue.backoff.ms"} & producer.keys()
    assert (producer["linger.ms"], producer["enable.idempotence"]) == (7, True)
    assert consumer["security.protocol"] == producer["security.protocol"] == "PLAINTEXT"


def test_who_leads_and_who_coordinates_is_asked_often_by_whom_it_concerns() -> None:
    """A node that hangs keeps its connections: librdkafka alone would look elsewhere after minutes."""
    consumer = consumer_settings(KAFKA, None)
    member, reader = member_settings(consumer), fetcher_settings(consumer)
    leaders, coordinator, silent = (
        "topic.metadata.refresh.interval.ms",
        "coordinator.query.interval.ms",
        "socket.timeout.ms",
    )
    assert {name: reader[name] for name in READER_DEFAULTS} == READER_DEFAULTS
    assert {name: member[name] for name in MEMBER_DEFAULTS} == MEMBER_DEFAULTS
    assert member[silent] == producer_settings(KAFKA, None)[silent] == SILENT_MS
    assert leaders not in member, "a pattern has it ask for all topics"
    assert coordinator not in reader
    assert SILENT_MS / reader["fetch.max.bytes"] >= 60_000 / 50_000_000, "a line may be as slow"
    larger = fetcher_settings(
        consumer_settings(KAFKA | {"message.max.bytes": 9_000_000, "fetch.wait.max.ms": 20_000}, None)
    )
    assert larger["fetch.max.bytes"] == 9_000_000, "librdkafka refuses less"
    assert larger[silent] > 20_000, "else no answer of an idle log comes in time"
    client_of(Consumer, larger).close()
    chosen = consumer_settings(KAFKA | {leaders: 7, coordinator: 8}, None)
    assert (fetcher_settings(chosen)[leaders], member_settings(chosen)[coordinator]) == (7, 8)


def test_tracking_settings_cannot_be_overridden() -> None:
    consumer = consumer_settings({**KAFKA, "enable.auto.commit": True, "auto.offset.reset": "earliest"}, None)
    assert consumer["enable.auto.commit"] is False
    assert consumer["enable.auto.offset.store"] is False
    assert consumer["auto.offset.reset"] == "error"
    assert consumer["enable.partition.eof"] is True


def test_the_client_id_of_the_consumer_wins() -> None:
    assert consumer_settings(KAFKA, "lane-3")["client.id"] == "lane-3"
    assert producer_settings({**KAFKA, "client.id": "mine"}, None)["client.id"] == "mine"
    assert consumer_settings(KAFKA, None)["client.id"] == "keylane"


@pytest.mark.parametrize(
    ("settings", "cooperative"),
    [
        ({}, False),
        ({"partition.assignment.strategy": "range,roundrobin"}, False),
        ({"partition.assignment.strategy": "cooperative-sticky"}, True),
        ({"group.protocol": "consumer"}, True),
    ],
)
def test_which_rebalances_are_incremental(settings: dict[str, str], cooperative: bool) -> None:
    assert is_cooperative(settings) is cooperative


@pytest.mark.parametrize("wrong", [{"no.such.setting": "1"}, {"fetch.min.bytes": "many"}])
def test_settings_that_librdkafka_refuses_are_named_and_no_password_is(wrong: dict[str, Any]) -> None:
    settings = {"group.id": "g", "sasl.password": "very secret", **wrong}
    with pytest.raises(UsageError, match=r"^librdkafka refuses these client settings: ") as caught:
        client_of(Consumer, settings)
    assert "very secret" not in str(caught.value)
