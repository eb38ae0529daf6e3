"""A member of a group with the client library that is named: it commits what it has read, and tells of each commit that
was acknowledged. Run as a program: LIBRARY BOOTSTRAP TOPIC GROUP COUNT.

A line a commit: the offsets by partition, as JSON. It ends when COUNT records are committed; with an error, if a record
comes that an acknowledged commit covers.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

POLL_S = 0.2
PAUSE_S = 0.02
"""Between two commits, so that a member is there for some seconds."""


class Reader:
    """What a member has read and committed, by partition."""

    def __init__(self, count: int) -> None:
        self.position: dict[int, int] = {}
        self._count = count
        self._acknowledged: dict[int, int] = {}

    @property
    def is_done(self) -> bool:
        return sum(self._acknowledged.values()) >= self._count

    def read(self, partition: int, offset: int) -> None:
        if offset < self._acknowledged.get(partition, 0):
            sys.exit(f"partition {partition}: {offset} again, behind the acknowledged {self._acknowledged[partition]}")
        self.position[partition] = offset + 1

    def gave_up(self, partitions: Iterable[int]) -> None:
        """These belong to somebody else now, or come again from what was committed: what was read of them is not this
        member's to commit."""
        for one in partitions:
            self.position.pop(one, None)

    def acknowledged(self, offsets: dict[int, int]) -> None:
        self._acknowledged |= offsets
        sys.stdout.write(f"{json.dumps(offsets)}\n")
        sys.stdout.flush()

    @staticmethod
    def failed(error: Exception) -> None:
        sys.stderr.write(f"{error!r}\n")


def confluent(bootstrap: str, topic: str, group: str, reader: Reader, *, is_kip_848: bool = False) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **({"group.protocol": "consumer"} if is_kip_848 else {"session.timeout.ms": 10_000}),
        }
    )

    def gave_up(_consumer: object, partitions: list[TopicPartition]) -> None:
        reader.gave_up(one.partition for one in partitions)

    consumer.subscribe([topic], on_revoke=gave_up, on_lost=gave_up)
    while not reader.is_done:
        for message in consumer.consume(10, POLL_S):
            if message.error() is None:
                reader.read(int(message.partition() or 0), int(message.offset() or 0))
        if not reader.position:
            continue
        offsets = [TopicPartition(topic, one, offset) for one, offset in reader.position.items()]
        try:
            answered = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            reader.failed(error)
            continue
        if all(one.error is None for one in answered):
            reader.acknowledged({one.partition: one.offset for one in answered})
        time.sleep(PAUSE_S)
    consumer.close()


def kafka_python(bootstrap: str, topic: str, group: str, reader: Reader) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
    from kafka.errors import KafkaError

    class Given(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no types
        def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
            reader.gave_up(one.partition for one in revoked)

        def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
            pass

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=10_000,
        max_poll_records=10,
    )
    consumer.subscribe([topic], listener=Given())
    while not reader.is_done:
        for rows in consumer.poll(timeout_ms=int(POLL_S * 1000)).values():
            for row in rows:
                reader.read(row.partition, row.offset)
        if not reader.position:
            continue
        offsets = {TopicPartition(topic, one): OffsetAndMetadata(at, "", -1) for one, at in reader.position.items()}
        try:
            consumer.commit(offsets)
        except KafkaError as error:
            reader.failed(error)
            continue
        reader.acknowledged(dict(reader.position))
        time.sleep(PAUSE_S)
    consumer.close()


def aiokafka(bootstrap: str, topic: str, group: str, reader: Reader) -> None:
    async def run() -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
        from aiokafka.errors import KafkaError

        class Given(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no types
            def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
                reader.gave_up(one.partition for one in revoked)

            def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
                pass

        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            max_poll_records=10,
        )
        consumer.subscribe([topic], listener=Given())
        await consumer.start()
        while not reader.is_done:
            for rows in (await consumer.getmany(timeout_ms=int(POLL_S * 1000))).values():
                for row in rows:
                    reader.read(row.partition, row.offset)
            if not reader.position:
                continue
            try:
                await consumer.commit({TopicPartition(topic, one): at for one, at in reader.position.items()})
            except KafkaError as error:
                reader.failed(error)
                continue
            reader.acknowledged(dict(reader.position))
            await asyncio.sleep(PAUSE_S)
        await consumer.stop()

    asyncio.run(run())


LIBRARIES = {"confluent-kafka": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}
KIP_848 = "confluent-kafka-kip-848"
"""The one of these that speaks the new consumer protocol, too."""


def main(library: str, bootstrap: str, topic: str, group: str, count: str) -> None:
    ALL[library](bootstrap, topic, group, Reader(int(count)))


ALL = LIBRARIES | {KIP_848: functools.partial(confluent, is_kip_848=True)}


if __name__ == "__main__":
    main(*sys.argv[1:])
