"""The plain consumer: one thread a partition, one record at a time, as Kafka's client is used everywhere."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message


def consume(
    bootstrap: str, group: str, topic: str, partitions: int, records: int, work: Callable[[Message], None]
) -> None:
    """Work on `records` records of a topic with as many consumers as it has partitions: no more would get any."""
    done = threading.Semaphore(0)
    ended = threading.Event()

    def serve(partition: int) -> None:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(topic, partition)])
        while not ended.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                work(message)
                done.release()
        consumer.close()

    threads = [threading.Thread(target=serve, args=(partition,)) for partition in range(partitions)]
    for thread in threads:
        thread.start()
    for _ in range(records):
        done.acquire()
    ended.set()
    for thread in threads:
        thread.join()
