"""The log of our own in a broker's topic: on our broker, and the same on Apache Kafka."""

from __future__ import annotations

import itertools

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from keylane.coordinator.replicated.journal import Refused
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.kafka.admin import Admin
from kit.log_writer import LogWriter
from kit.protocol import until

COMPACTED = {"cleanup.policy": "compact"}


def made(bootstrap: str, topic: str, partitions: int = 1) -> str:
    Admin({"bootstrap.servers": bootstrap}).create_topics({topic: partitions}, config=COMPACTED)
    return bootstrap


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_batches_stand_in_the_order_in_which_they_were_appended(bootstrap: str) -> None:
    with LogWriter(made(bootstrap, "ordered", 3), "ordered", partition=2) as writer:
        assert isinstance(writer.init(), Producer)
        for number in range(0, 60, 3):  # more than may be in flight at once
            writer.append(*numbers(number, 3))
        assert [writer.answer() for _ in range(20)] == list(range(0, 60, 3))
        assert writer.values() == numbers(0, 60)


def test_a_deposed_writer_is_refused(bootstrap: str) -> None:
    made(bootstrap, "fenced")
    with LogWriter(bootstrap, "fenced") as old, LogWriter(bootstrap, "fenced") as new:
        first = old.init()
        old.append(b"before")
        assert old.answer() == 0
        second = new.init()
        assert isinstance(first, Producer)
        assert isinstance(second, Producer)
        assert second == Producer(first.producer_id, first.epoch + 1)
        old.append(b"not fenced yet")  # the brokers learn of an epoch from what is appended with it
        assert old.answer() == 1
        new.append(b"mark")
        assert new.answer() == 2
        old.append(b"late")
        old.append(b"later")
        refusals = [old.answer(), old.answer()]
        assert all(isinstance(one, Refused) and "INVALID_PRODUCER_EPOCH" in one.reason for one in refusals), refusals
        old.append(b"for good")
        assert isinstance(old.answer(), Refused)
        assert new.values() == [b"before", b"not fenced yet", b"mark"]


def test_the_fence_holds_behind_compaction(bootstrap: str) -> None:
    """Of the deposed writer's batches none is left."""
    config = COMPACTED | {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.0"}
    Admin({"bootstrap.servers": bootstrap}).create_topics({"compacted": 1}, config=config)
    with LogWriter(bootstrap, "compacted") as old, LogWriter(bootstrap, "compacted") as new:
        old.init()
        old.append(b"same")
        assert old.answer() == 0
        new.init()

        def compacted() -> list[bytes | None]:
            new.append(b"same")
            assert isinstance(new.answer(), int)
            return list(new.values())

        written = itertools.count(2)
        until(compacted, lambda found: len(found) < next(written), within_s=60.0)
        old.append(b"late")
        refused = old.answer()
        assert isinstance(refused, Refused)
        assert "INVALID_PRODUCER_EPOCH" in refused.reason
        assert set(new.values()) == {b"same"}


def test_an_epoch_is_renewed_by_who_has_it_alone(bootstrap: str) -> None:
    made(bootstrap, "renewed")
    with LogWriter(bootstrap, "renewed") as one, LogWriter(bootstrap, "renewed") as other:
        first = one.init()
        assert isinstance(first, Producer)
        second = one.init(first)
        assert second == Producer(first.producer_id, first.epoch + 1)
        assert one.init(first) == second, "the answer was lost, and it asks again"
        one.append(b"first of its epoch")
        assert one.answer() == 0
        assert isinstance(other.init(), Producer)
        refused = one.init(second)
        assert isinstance(refused, Refused)
        assert "PRODUCER_FENCED" in refused.reason or "INVALID_PRODUCER_EPOCH" in refused.reason


def test_a_read_begins_where_the_log_does(bootstrap: str) -> None:
    Admin({"bootstrap.servers": bootstrap}).create_topics({"trimmed": 1}, config={"retention.ms": "-1"})
    with LogWriter(bootstrap, "trimmed") as writer:
        writer.init()
        for number in range(3):
            writer.append(b"%d" % number)
            writer.answer()
        client = AdminClient({"bootstrap.servers": bootstrap})
        (trimmed,) = client.delete_records([TopicPartition("trimmed", 0, 2)]).values()
        trimmed.result(30)
        assert writer.values() == [b"2"]


def test_a_topic_that_is_not_there_is_told(bootstrap: str) -> None:
    with LogWriter(bootstrap, "nowhere", give_up_s=0.5) as writer:
        writer.producer = Producer(1, 0)
        writer.append(b"lost")
        refused = writer.answer()
        assert isinstance(refused, Refused)
        assert "no broker took a batch within 0.5 s" in refused.reason
