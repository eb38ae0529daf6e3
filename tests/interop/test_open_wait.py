"""A consumer that stands behind somebody's open transaction says so, on either broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Producer

from keylane.cli.run import note_of
from keylane.consumer.snapshot import OpenTransactions
from keylane.kafka import open_wait
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    import pytest

    import keylane as kl


def test_a_consumer_behind_an_open_transaction_says_so(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(open_wait, "AFTER_S", 1.0)
    stage = Stage(bootstrap, "behind")
    stage.create(1)
    stage.fill((b"key", 0) for _ in range(3))
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"other-{stage.topic}"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(stage.topic, b"0", key=b"key")
    producer.flush()
    stage.fill((b"key", 0) for _ in range(2))

    seen: list[int] = []

    def see(record: kl.Record) -> None:
        seen.append(record.offset)

    member = ThreadMember(stage.pipeline(see), "reader")
    try:
        until(lambda: member.consumer.snapshot().waits is not None, "it says what it waits for", 30)
    except AssertionError:
        member.consumer.stop()
        raise
    found = member.consumer.snapshot()
    assert found.waits == OpenTransactions(((stage.topic, 0, 3),))
    assert note_of(found, 0.0).endswith(str(found.waits))
    assert seen == [0, 1, 2]
    producer.commit_transaction()
    until(lambda: seen == [0, 1, 2, 3, 4, 5] and member.consumer.snapshot().waits is None, "it goes on")
    member.consumer.stop()
    member.end()
    assert member.consumer.snapshot().waits is None
    assert [one.getMessage() for one in caplog.records if one.name == "keylane.waits"] == [str(found.waits)]
