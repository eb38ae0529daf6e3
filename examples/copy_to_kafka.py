"""Copy all topics and committed offsets of one Kafka to another: `python copy_to_kafka.py FROM TO`.

Stop producers and members first. Committed records keep their partition, key, headers and time; an offset that a group
has committed becomes that of the same record in the new place.
"""

import sys
import time
from bisect import bisect_left

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

WAIT_S = 60
NOT_YET = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
}


def copy_partition(source: str, target: str, topic: str, partition: int) -> tuple[list[int], list[int]]:
    """The offsets of its records there and here, in their order, and of what comes next."""
    settings = {"bootstrap.servers": source, "group.id": "copy", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.partition.eof": True, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0)])
    producer = Producer({"bootstrap.servers": target, "enable.idempotence": True})
    old: list[int] = []
    new: list[int] = []
    while (message := consumer.poll(WAIT_S)) is not None and message.error() is None:
        old.append(message.offset())
        kept = {"key": message.key(), "headers": message.headers(), "timestamp": message.timestamp()[1]}
        while True:
            try:
                producer.produce(
                    topic,
                    message.value(),
                    partition=partition,
                    on_delivery=lambda error, copied: new.append(-1 if error else copied.offset()),
                    **kept,
                )
                break
            except BufferError:
                producer.poll(1)
    consumer.close()
    if message is None or producer.flush(WAIT_S) or -1 in new:
        sys.exit(f"{topic}-{partition} was not copied whole: remove the new topics, and begin anew")
    return old, [*new, new[-1] + 1 if new else 0]


def commit(there: AdminClient, moved: ConsumerGroupTopicPartitions) -> None:
    """A new Kafka has no coordinator at first: it is asked again until it has."""
    deadline = time.monotonic() + WAIT_S
    while True:
        done = there.alter_consumer_group_offsets([moved])[moved.group_id].result(WAIT_S).topic_partitions
        errors = [one.error for one in done if one.error is not None]
        if not errors:
            return
        if any(one.code() not in NOT_YET for one in errors) or time.monotonic() > deadline:
            sys.exit(f"group {moved.group_id}: {errors[0]}: remove the new topics, and begin anew")
        time.sleep(0.5)


def main(source: str, target: str) -> None:
    here, there = AdminClient({"bootstrap.servers": source}), AdminClient({"bootstrap.servers": target})
    topics = {
        name: len(topic.partitions)
        for name, topic in here.list_topics(timeout=WAIT_S).topics.items()
        if not name.startswith("__")
    }
    for made in there.create_topics([NewTopic(name, count) for name, count in topics.items()]).values():
        made.result(WAIT_S)  # with the configs and the replication that you want there
    copied = {
        (name, partition): copy_partition(source, target, name, partition)
        for name, count in topics.items()
        for partition in range(count)
    }
    for group in here.list_consumer_groups(request_timeout=WAIT_S).result().valid:
        asked = here.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group.group_id)])[group.group_id]
        offsets = []
        for one in asked.result(WAIT_S).topic_partitions:
            if (one.topic, one.partition) in copied:
                old, new = copied[one.topic, one.partition]
                offsets.append(TopicPartition(one.topic, one.partition, new[bisect_left(old, one.offset)]))
        if offsets:
            commit(there, ConsumerGroupTopicPartitions(group.group_id, offsets))
    print(f"{sum(len(old) for old, _ in copied.values())} records of {len(topics)} topics")


if __name__ == "__main__":
    main(*sys.argv[1:])
