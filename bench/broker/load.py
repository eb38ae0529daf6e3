"""The load generator: librdkafka, through confluent-kafka, as an application would use it, with acks=all.

`python -m broker.load` is told what to do line by line (JSON) and answers line by line, so that one warm process
serves all contestants. Only what the broker acknowledged, or gave back, is counted.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # exported untyped

from broker import fetches
from broker.work import Load

TIMEOUT_S = 60
BATCH = 10_000
"""Records handed to the client, or taken from it, at once."""
QUEUED = 200_000
"""Records that a producer may hold: enough that it never runs dry."""
TOPIC_CONFIG = {"retention.ms": "-1"}


class Acknowledged:
    """Counts records that are on the broker. Raises at the next look when one failed."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Any = None

    def __call__(self, error: Any, _message: Any) -> None:
        if error is None:
            self.count += 1
        else:
            self.error = error

    def check(self) -> None:
        if self.error is not None:
            raise RuntimeError(f"a record was not taken: {self.error}")


def producer_of(load: Load, **more: Any) -> Producer:
    settings = {
        "bootstrap.servers": load.bootstrap,
        "acks": "all",
        "queue.buffering.max.messages": QUEUED,
        "queue.buffering.max.kbytes": 400_000,
        "message.max.bytes": 1_000_000,
    }
    return Producer(settings | more)


def produce(load: Load) -> dict[str, float]:
    """As many records as the broker takes; those acknowledged in the time count."""
    done = Acknowledged()
    producers = [producer_of(load, **{"delivery.report.only.error": True}) for _ in range(load.clients)]
    for producer in producers:
        send_some(producer, load, 1)
        producer.flush(TIMEOUT_S)  # connected
    sent = 0
    started = time.perf_counter()
    room = max(QUEUED // load.clients, 1_000)
    while (so_far_s := time.perf_counter() - started) < load.seconds or (
        sum(map(len, producers)) >= sent and so_far_s < TIMEOUT_S  # nothing is acknowledged yet
    ):
        for producer in producers:
            if (free := room - len(producer)) > 0:
                sent += send_some(producer, load, min(free, BATCH))
            producer.poll(0)
        if all(len(producer) >= room for producer in producers):
            time.sleep(0.001)
    waiting = sum(len(producer) for producer in producers)
    elapsed = time.perf_counter() - started
    for producer in producers:
        if producer.flush(TIMEOUT_S):
            raise RuntimeError("records were not acknowledged within a minute")
    done.check()
    return {"per_s": (sent - waiting) / elapsed}


def send_some(producer: Producer, load: Load, count: int) -> int:
    value = bytes(load.size)
    share = max(count // load.partitions, 1)
    sent = 0
    for partition in range(min(load.partitions, count)):
        messages = [{"value": value}] * share
        sent += producer.produce_batch(load.topic, messages, partition=partition)
    return sent


def fetch(load: Load) -> dict[str, float]:
    """The whole topic from its beginning."""
    consumer = Consumer(
        {"bootstrap.servers": load.bootstrap, "group.id": "bench", "enable.auto.commit": False,
         "queued.min.messages": 1_000_000, "fetch.wait.max.ms": 10}
    )  # fmt: skip
    consumer.assign([TopicPartition(load.topic, each, OFFSET_BEGINNING) for each in range(load.partitions)])
    count, started = len(consumer.consume(1, TIMEOUT_S)), time.perf_counter()
    while count < load.records:
        messages = consumer.consume(min(BATCH, load.records - count), TIMEOUT_S)
        if not messages or any(message.error() for message in messages):
            raise RuntimeError(f"{count} of {load.records} records were read")
        count += len(messages)
    elapsed = time.perf_counter() - started
    consumer.close()
    return {"per_s": count / elapsed}


def single(load: Load) -> dict[str, float]:
    """One record at a time, each awaited."""
    done = Acknowledged()
    producer = producer_of(load, **{"linger.ms": 0, "on_delivery": done})
    took = []
    started = time.perf_counter()
    while (began := time.perf_counter()) - started < load.seconds:
        expected = done.count + 1
        producer.produce(load.topic, bytes(load.size), partition=0)
        while done.count < expected:
            producer.poll(1)
            done.check()
        took.append(time.perf_counter() - began)
    took.sort()
    per_s = len(took) / (time.perf_counter() - started)
    return {"per_s": per_s, "p50_ms": took[len(took) // 2] * 1e3, "p99_ms": took[len(took) * 99 // 100] * 1e3}


def transactions(load: Load) -> dict[str, float]:
    """Of one record each, one after the other."""
    producer = producer_of(load, **{"transactional.id": f"bench-{load.topic}", "linger.ms": 0})
    producer.init_transactions(TIMEOUT_S)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < load.seconds:
        producer.begin_transaction()
        producer.produce(load.topic, bytes(load.size), partition=0)
        producer.commit_transaction(TIMEOUT_S)
        count += 1
    return {"per_s": count / (time.perf_counter() - started)}


def create(load: Load) -> dict[str, float]:
    """A topic, with records if there are to be some."""
    started = time.perf_counter()
    admin = AdminClient({"bootstrap.servers": load.bootstrap})
    admin.create_topics([NewTopic(load.topic, load.partitions, 1, config=TOPIC_CONFIG)])[load.topic].result(TIMEOUT_S)
    if load.records:
        producer = producer_of(load)
        sent = 0
        while sent < load.records:
            if QUEUED - len(producer) >= BATCH:
                sent += send_some(producer, load, min(BATCH, load.records - sent))
            producer.poll(0.01)
        if producer.flush(TIMEOUT_S):
            raise RuntimeError("records were not acknowledged within a minute")
    return {"seconds": time.perf_counter() - started}


def delete(load: Load) -> dict[str, float]:
    admin = AdminClient({"bootstrap.servers": load.bootstrap})
    admin.delete_topics([load.topic])[load.topic].result(TIMEOUT_S)
    return {}


KINDS = {
    each.__name__: each
    for each in (produce, fetch, single, transactions, fetches.session, fetches.sessionless, create, delete)
}


def main() -> None:
    for line in sys.stdin:
        load = Load(**json.loads(line))
        try:
            answer: dict[str, Any] = KINDS[load.what](load)
        except Exception as error:  # the contest says what failed, and on whom
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
