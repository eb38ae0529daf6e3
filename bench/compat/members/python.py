"""A member of a group, or a producer, with a Python client: CLIENT, and then what `compat.members` says."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

PAUSE_S = 0.2
READING: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "session_timeout_ms": 10_000,
    "heartbeat_interval_ms": 300,
}
"""How kafka-python's and aiokafka's consumers read, by names that they share."""


def main() -> None:
    client, bootstrap, topic, role, what = sys.argv[1:]
    if role == "produce":
        PRODUCERS[client](bootstrap, topic, int(what))
        return
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    READERS[client](bootstrap, topic, role, what, ended)


def tell(records: Iterable[tuple[int | None, int | None]]) -> None:
    for partition, offset in records:
        sys.stdout.write(f"{partition} {offset}\n")
    sys.stdout.flush()


def confluent_produces(bootstrap: str, topic: str, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, b"%d" % number, key=b"%d" % number)
    if producer.flush(30):
        sys.exit("not all was taken")


def confluent_reads(bootstrap: str, topic: str, role: str, group: str, ended: threading.Event) -> None:
    from confluent_kafka import AcknowledgeType, Consumer, KafkaException, ShareConsumer

    settings = {"bootstrap.servers": bootstrap, "group.id": group}
    if role == "share":
        with ShareConsumer(settings | {"share.acknowledgement.mode": "explicit"}) as sharing:
            sharing.subscribe([topic])
            while not ended.is_set():
                messages = [one for one in sharing.poll(PAUSE_S) if one.error() is None]
                for message in messages:
                    sharing.acknowledge(message, AcknowledgeType.ACCEPT)
                sharing.commit_sync(30)
                tell((one.partition(), one.offset()) for one in messages)
        return
    classic = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 300}
    more = {"group.protocol": "consumer"} if role == "consumer" else classic
    consumer = Consumer(settings | {"auto.offset.reset": "earliest", "enable.auto.commit": False} | more)
    consumer.subscribe([topic])
    while not ended.is_set():
        messages = [one for one in consumer.consume(50, PAUSE_S) if one.error() is None]
        if not messages:
            continue
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:  # what was read comes again
            sys.stderr.write(f"{error}\n")
            continue
        tell((one.partition(), one.offset()) for one in messages)
    consumer.close()


def kafka_python_produces(bootstrap: str, topic: str, count: int) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    for number in range(count):
        producer.send(topic, b"%d" % number, key=b"%d" % number)
    producer.flush(30)
    producer.close()


def kafka_python_reads(bootstrap: str, topic: str, _role: str, group: str, ended: threading.Event) -> None:
    from kafka import KafkaConsumer
    from kafka.errors import CommitFailedError

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        **READING,
    )
    while not ended.is_set():
        records = [one for some in consumer.poll(timeout_ms=int(PAUSE_S * 1_000)).values() for one in some]
        if not records:
            continue
        try:
            consumer.commit()
        except CommitFailedError as error:  # what was read comes again
            sys.stderr.write(f"{error}\n")
            continue
        tell((one.partition, one.offset) for one in records)
    consumer.close()


def aiokafka_produces(bootstrap: str, topic: str, count: int) -> None:
    async def run() -> None:
        from aiokafka import AIOKafkaProducer

        async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
            sent = [await producer.send(topic, b"%d" % number, key=b"%d" % number) for number in range(count)]
            await asyncio.gather(*sent)

    asyncio.run(run())


def aiokafka_reads(bootstrap: str, topic: str, _role: str, group: str, ended: threading.Event) -> None:
    async def run() -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.errors import CommitFailedError

        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            **READING,
        )
        async with consumer:
            while not ended.is_set():
                found = await consumer.getmany(timeout_ms=int(PAUSE_S * 1_000))
                records = [one for some in found.values() for one in some]
                if not records:
                    continue
                try:
                    await consumer.commit()
                except CommitFailedError as error:  # what was read comes again
                    sys.stderr.write(f"{error}\n")
                    continue
                tell((one.partition, one.offset) for one in records)

    asyncio.run(run())


PRODUCERS = {
    "confluent-kafka": confluent_produces,
    "kafka-python": kafka_python_produces,
    "aiokafka": aiokafka_produces,
}
READERS = {"confluent-kafka": confluent_reads, "kafka-python": kafka_python_reads, "aiokafka": aiokafka_reads}

if __name__ == "__main__":
    main()
