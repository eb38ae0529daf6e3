"""Numbered records for pods to work on, and the judge of what became of them.

A value is the record's number among those of its key; a pipeline (fixtures/pods/pipeline.py) writes it, with the name
of its pod behind it, to the topic of results.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from keylane.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS = 6
KEYS = 60
QUIET = {"log_level": 2}
MISSING_S = 120.0
"""How long is waited for what is missing: a group gives a dead member up after 45 s."""


@dataclass(frozen=True)
class Verdict:
    """Of all records so far."""

    records: int
    lost: int
    twice: int
    out_of_order: int
    """First runs of a record after a later one of its key."""
    longest_silence_s: float
    """Between two results of one partition."""
    pods: dict[str, int]
    """Results by the pod that wrote them."""


def results_of(topic: str) -> str:
    return f"{topic}.results"


class Load:
    """Records at `rate` a second, from the start of the `with` block to its end."""

    def __init__(self, bootstrap: str, topic: str, rate: float) -> None:
        self._kafka: dict[str, Any] = {"bootstrap.servers": bootstrap, **QUIET}
        self.topic = topic
        self._rate = rate
        self._sent: Counter[str] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="load", daemon=True)

    def make_topics(self) -> None:
        wanted = dict.fromkeys((self.topic, results_of(self.topic)), PARTITIONS)
        assert Admin(self._kafka).create_topics(wanted), "the topics are there already"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _produce(self) -> None:
        producer = Producer(self._kafka | {"linger.ms": 5, "enable.idempotence": True})
        began = time.monotonic()
        while not self._ended.wait(0.02):
            while sum(self._sent.values()) < (time.monotonic() - began) * self._rate:
                key = f"key-{sum(self._sent.values()) % KEYS}"
                producer.produce(self.topic, key=key, value=str(self._sent[key]))
                self._sent[key] += 1
            producer.poll(0)
        assert producer.flush(120) == 0, "the broker did not take all records"

    def judge(self) -> Verdict:
        """After the `with` block. Waits for what is missing, at most `MISSING_S`."""
        deadline = time.monotonic() + MISSING_S
        while True:
            found = list(self._results())
            numbers: dict[str, list[int]] = defaultdict(list)
            pods: Counter[str] = Counter()
            times: dict[int | None, list[int]] = defaultdict(list)
            for message in found:
                number, _, pod = (message.value() or b"").decode().partition(" ")
                numbers[(message.key() or b"").decode()].append(int(number))
                pods[pod] += 1
                times[message.partition()].append(message.timestamp()[1])
            lost = sum(count - len(set(numbers[key])) for key, count in self._sent.items())
            if not lost or time.monotonic() > deadline:
                break
            time.sleep(2)
        silence_s = max(map(silence_of, times.values()), default=0.0)
        twice = sum(len(each) - len(set(each)) for each in numbers.values())
        late = sum(map(out_of_order, numbers.values()))
        return Verdict(self._sent.total(), lost, twice, late, round(silence_s, 2), dict(pods))

    def wait_for_results(self, count: int) -> None:
        """Raises `TimeoutError` when they do not come."""
        deadline = time.monotonic() + MISSING_S
        while sum(1 for _ in self._results()) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{count} results of {self.topic} did not come within {MISSING_S:g} s")
            time.sleep(1)

    def _results(self) -> Iterator[Message]:
        """Each partition in its order."""
        settings = {"group.id": "judge", "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = Consumer(self._kafka | settings | {"auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(results_of(self.topic), number, 0) for number in range(PARTITIONS)])
        ends = 0
        try:
            while ends < PARTITIONS:
                for message in consumer.consume(5000, 0.5):
                    error = message.error()
                    if error is None:
                        yield message
                    else:
                        ends += error.code() == KafkaError._PARTITION_EOF
        finally:
            consumer.close()


def silence_of(times_ms: list[int]) -> float:
    """The longest between two of them, in seconds."""
    return max((later - moment for moment, later in pairwise(sorted(times_ms))), default=0) / 1000


def out_of_order(numbers: list[int]) -> int:
    """How many came for the first time after a later one."""
    seen: set[int] = set()
    highest, late = -1, 0
    for number in numbers:
        late += number not in seen and number < highest
        seen.add(number)
        highest = max(highest, number)
    return late
