"""Topics have ids for good, and clients that give them never get another topic of the same name."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from kio.schema.errors import ErrorCode

from keylane.broker.process import BrokerProcess
from kit.protocol import ProtocolClient, part

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

SOON = datetime.timedelta(seconds=10)
TIMEOUT_S = 20.0


def create(client: ProtocolClient, name: str) -> UUID:
    wanted = part(
        "create_topics", 7, "CreatableTopic", name=name, num_partitions=1, replication_factor=1, assignments=(),
        configs=(),
    )  # fmt: skip
    (answer,) = client.ask("create_topics", 7, topics=(wanted,), timeout=SOON, validate_only=False).topics
    assert answer.error_code == ErrorCode.none
    found: UUID = answer.topic_id
    return found


def delete(client: ProtocolClient, topic_id: UUID) -> None:
    wanted = part("delete_topics", 6, "DeleteTopicState", name=None, topic_id=topic_id)
    (answer,) = client.ask("delete_topics", 6, topics=(wanted,), timeout=SOON).responses
    assert answer.error_code == ErrorCode.none


def ids(broker: BrokerProcess) -> dict[str, UUID]:
    with ProtocolClient(broker.bootstrap) as client:
        options = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        answer = client.ask("metadata", 12, topics=None, **options)
        return {topic.name: topic.topic_id for topic in answer.topics}


def test_a_topic_has_its_id_for_good(tmp_path: Path) -> None:
    """Through a crash and a clean stop; another topic of its name has another."""
    with BrokerProcess(tmp_path / "data") as broker:
        with ProtocolClient(broker.bootstrap) as client:
            made = {name: create(client, name) for name in ("one", "two")}
        assert ids(broker) == made
        broker.restart()
        assert ids(broker) == made
        assert broker.terminate() == 0
        broker.start()
        assert ids(broker) == made
        before = made["one"]
        with ProtocolClient(broker.bootstrap) as client:
            delete(client, before)
            made["one"] = create(client, "one")
        assert before not in made.values()
        broker.restart()
        assert ids(broker) == made


def test_a_client_that_fetches_by_id_goes_on_with_another_topic_of_the_name(tmp_path: Path) -> None:
    """librdkafka does: it is refused, asks for the id again, and sees by the leader's epoch that the log is another
    one: it begins where `auto.offset.reset` says."""
    with BrokerProcess(tmp_path / "data") as broker, ProtocolClient(broker.bootstrap) as client:
        before = create(client, "flights")
        producer = Producer({"bootstrap.servers": broker.bootstrap})

        def write(*values: bytes) -> None:
            for value in values:
                producer.produce("flights", value, partition=0)
            assert producer.flush(TIMEOUT_S) == 0

        write(b"a", b"b", b"c")
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 500,
            }
        )  # fmt: skip
        consumer.assign([TopicPartition("flights", 0, OFFSET_BEGINNING)])

        def read(count: int) -> list[bytes | None]:
            values: list[bytes | None] = []
            for _ in range(200):
                message = consumer.poll(TIMEOUT_S / 200)
                if message is not None and (error := message.error()) is None:
                    values.append(message.value())
                elif message is not None:
                    assert error is not None
                    assert error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
                if len(values) == count:
                    break
            return values

        assert read(3) == [b"a", b"b", b"c"]
        delete(client, before)
        create(client, "flights")
        write(b"0", b"1", b"2", b"3", b"4")
        assert read(5) == [b"0", b"1", b"2", b"3", b"4"]
        consumer.close()
