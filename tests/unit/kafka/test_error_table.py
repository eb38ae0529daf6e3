"""Every error of Kafka and of librdkafka stands in the table once."""

from __future__ import annotations

from collections import Counter

import pytest
from confluent_kafka import KafkaError
from kio.schema.errors import ErrorCode

from keylane.kafka.error_table import GROUPS, Mark, Meaning, code_of, marked, meaning
from keylane.kafka.faults import (
    ABORTED,
    MOVED_ON,
    NO_ANSWER,
    NO_PARTITION,
    PASSING,
    REFUSED,
    REFUSED_IN_TRANSACTIONS,
    Faults,
    commit_problem,
    transaction_problem,
)
from keylane.kafka.questions import NOT_NOW

NAMES = [name for group in GROUPS for name in group.names]
CONFLUENTS = {name: code for name in dir(KafkaError) if isinstance(code := getattr(KafkaError, name), int)}


def test_every_error_that_confluent_kafka_knows_stands_there_once() -> None:
    assert sorted(CONFLUENTS.keys() - set(NAMES)) == [], "an error without a meaning: give it one in error_table.py"
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []


def test_every_error_of_kafkas_protocol_stands_there_once() -> None:
    codes = Counter(code_of(name) for name in NAMES)
    assert [code for code, count in codes.items() if count > 1] == []
    assert sorted({int(one) for one in ErrorCode} - codes.keys()) == []


def test_an_error_has_one_meaning() -> None:
    sets = [meaning(which) for which in Meaning]
    assert sum(map(len, sets)) == len(frozenset().union(*sets)) == len(NAMES)


@pytest.mark.parametrize(
    "name",
    [
        # what running members and starting ones met when nodes of a real cluster were killed
        "_DESTROY_BROKER",
        "_TRANSPORT",
        "_TIMED_OUT",
        "_UNKNOWN_BROKER",
        "_PARTIAL",
        "BROKER_NOT_AVAILABLE",
        "REPLICA_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "NETWORK_EXCEPTION",
        "NOT_ENOUGH_REPLICAS",
        "KAFKA_STORAGE_ERROR",
        "NOT_CONTROLLER",
        "CONCURRENT_TRANSACTIONS",
    ],
)
def test_what_a_nodes_death_shows_as_passes_everywhere(name: str, caplog: pytest.LogCaptureFixture) -> None:
    error = KafkaError(getattr(KafkaError, name))
    assert error.code() in PASSING
    assert error.code() in NOT_NOW, "a question of the admin is asked again"
    assert error.code() in ABORTED, "an output is not at fault"
    assert not commit_problem(error).fatal
    assert not transaction_problem(error).fatal
    faults = Faults()
    faults.report(error)
    faults.raise_failure()
    assert "(will be tried again)" in caplog.text


def test_the_sets_that_are_derived() -> None:
    assert NO_ANSWER < PASSING
    assert NO_PARTITION < PASSING
    assert not NO_PARTITION & NOT_NOW, "for the admin, an answer"
    assert not NO_PARTITION & ABORTED, "an output to no topic is at fault"
    assert {KafkaError._FATAL} == REFUSED - REFUSED_IN_TRANSACTIONS
    assert not MOVED_ON & (PASSING | REFUSED)
    assert marked(Mark.BATCH) < meaning(Meaning.TELLING)


def test_an_error_that_is_told_is_not_said_to_be_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    faults.report(KafkaError(KafkaError._MAX_POLL_EXCEEDED, "too late"))
    faults.raise_failure()
    assert caplog.messages == ["_MAX_POLL_EXCEEDED: too late"]
