"""Whose fault a refused batch is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError

from keylane.consumer.outputs import Delivery
from keylane.kafka.refused_batches import ALONE_S, MOST, Suspects

TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


def delivery(offset: int, *, dead: bool = False) -> Delivery:
    item: Any = SimpleNamespace(name=f"t-0@{offset}")
    return Delivery(item, [], is_dead_letter=dead)


def test_what_is_refused_twice_is_at_fault_however_long_that_takes() -> None:
    now = 1_000.0
    suspects = Suspects(lambda: now)
    assert not suspects.accuses(delivery(1), 0, TOO_LARGE)
    now += 10 * ALONE_S
    assert suspects.accuses(delivery(1), 0, TOO_LARGE)
    assert suspects.accuses(delivery(1), 0, TOO_LARGE), "and each time after that"
    assert not suspects.accuses(delivery(1), 1, TOO_LARGE), "another output of the same record"
    assert not suspects.accuses(delivery(1, dead=True), 0, TOO_LARGE), "its dead letter"


def test_what_was_delivered_is_suspected_no_more() -> None:
    suspects = Suspects()
    assert not suspects.accuses(delivery(1), 0, TOO_LARGE)
    suspects.acquit(delivery(1), 0)
    assert not suspects.accuses(delivery(1), 0, TOO_LARGE)


def test_outputs_go_one_at_a_time_for_a_while_after_a_batch_was_refused() -> None:
    now = 1_000.0
    suspects = Suspects(lambda: now)
    assert suspects.accuses(delivery(1), 0, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    alone = [suspects.are_about]  # no: that was an error of its own
    suspects.accuses(delivery(1), 0, TOO_LARGE)
    alone.append(suspects.are_about)
    now += ALONE_S
    alone.append(suspects.are_about)
    assert alone == [False, True, False]


def test_no_more_are_remembered_than_a_bound() -> None:
    suspects = Suspects()
    for offset in range(MOST + 1):
        suspects.accuses(delivery(offset), 0, TOO_LARGE)
    assert not suspects.accuses(delivery(0), 0, TOO_LARGE), "the oldest is forgotten"
    assert suspects.accuses(delivery(MOST), 0, TOO_LARGE)
