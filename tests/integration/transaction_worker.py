"""A program that copies a topic exactly once: records and offsets in one transaction. Its test kills and restarts it.

`python transaction_worker.py BOOTSTRAP SOURCE TARGET PARTITIONS END SEED` copies every partition of SOURCE up to the
offset END, says `committed` after each transaction, and ends when all is copied. Some transactions it aborts, with
records that nobody may read.
"""

from __future__ import annotations

import random
import sys

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

TIMEOUT_S = 60.0
NAME = "copier"


def is_ended(producer: Producer) -> bool:
    """Commit; False when the transaction had to be aborted."""
    while True:
        try:
            producer.commit_transaction(TIMEOUT_S)
        except KafkaException as error:
            reason = error.args[0]
            if reason.retriable():
                continue
            if not reason.txn_requires_abort():
                raise
            abort(producer)
            return False
        return True


def abort(producer: Producer) -> None:
    while True:
        try:
            producer.abort_transaction(TIMEOUT_S)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            continue
        return


def main(bootstrap: str, source: str, target: str, partitions: int, end: int, seed: int) -> None:
    chance = random.Random(seed)
    common = {
        "bootstrap.servers": bootstrap,
        "log_level": 0,
        "reconnect.backoff.max.ms": 100,
        "retry.backoff.ms": 20,
        # After a new bootstrap, when all brokers were lost, librdkafka 2.16 stays with the group coordinator it knew,
        # and sends no offsets in transactions any more.
        "metadata.recovery.strategy": "none",
    }
    producer = Producer(common | {"transactional.id": NAME, "linger.ms": 0, "transaction.timeout.ms": 60_000})
    producer.init_transactions(TIMEOUT_S)  # whatever a predecessor left open is aborted
    consumer = Consumer(
        common
        | {
            "group.id": NAME,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    metadata = consumer.consumer_group_metadata()

    def start() -> list[TopicPartition]:
        """Where the committed offsets are."""
        while True:
            try:
                found = consumer.committed([TopicPartition(source, one) for one in range(partitions)], TIMEOUT_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                continue
            return [TopicPartition(source, one.partition, max(one.offset, 0)) for one in found]

    positions = start()
    consumer.assign(positions)
    while any(one.offset < end for one in positions):
        messages = [one for one in consumer.consume(chance.randint(1, 20), 1.0) if one.error() is None]
        if not messages:
            continue
        is_aborted = chance.random() < 0.2
        producer.begin_transaction()
        after: dict[int, int] = {}
        for message in messages:
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None and offset is not None and value is not None  # noqa: PT018
            producer.produce(target, b"aborted" if is_aborted else value, partition=partition)
            after[partition] = offset + 1
        offsets = [TopicPartition(source, partition, offset) for partition, offset in after.items()]
        try:
            producer.send_offsets_to_transaction(offsets, metadata, TIMEOUT_S)
            producer.flush(TIMEOUT_S)
        except KafkaException as error:
            if not (error.args[0].retriable() or error.args[0].txn_requires_abort()):
                raise
            is_aborted = True
        if is_aborted:
            abort(producer)
        elif is_ended(producer):
            sys.stdout.write("committed\n")
            sys.stdout.flush()
            positions = [
                TopicPartition(source, one.partition, after.get(one.partition, one.offset)) for one in positions
            ]
            continue
        positions = start()
        consumer.assign(positions)
    consumer.close()


if __name__ == "__main__":
    _, servers, from_topic, to_topic, *numbers = sys.argv
    main(servers, from_topic, to_topic, *map(int, numbers))
