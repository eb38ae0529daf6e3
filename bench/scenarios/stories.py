"""The scenarios: what each is, what to expect, and how both consumers do it."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from scenarios.vanilla import consume

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

NOTIFICATIONS, PER_SECOND = 480, 40
COUNTED_FROM = 80
"""What is appended in the first two seconds finds consumers that are still joining."""
NOTIFY_S, STUCK_S, STUCK_AT = 0.02, 5.0, 120
SETTLEMENTS, OUTLETS, BURST_PARTITIONS = 4_000, 2_000, 10
SETTLE_S, AT_ONCE = 0.05, 1_000
PAYMENTS, CARDS = 1_500, 500
MODEL_ROUNDS = 40_000
"""Of the model's inner loop: some milliseconds of pure Python a payment."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one scenario came to."""

    name: str
    expected: str
    vanilla: float
    keylane: float
    unit: str
    holds: bool
    """Whether the expectation holds."""


def notification(bootstrap: str) -> Outcome:
    """40 notifications a second for different users on one partition; one of them takes 5 s instead of 20 ms."""

    def waits(run: Callable[[str, Callable[[int, int, bytes], None]], None]) -> float:
        """The 99th percentile, in seconds, of append to done over all but the stuck one."""
        topic = _topic(bootstrap, "notifications", 1)
        ages: list[float] = []

        def note(number: int, sent_ns: int, _: bytes) -> None:
            if number >= COUNTED_FROM and number != STUCK_AT:
                ages.append((time.time_ns() - sent_ns) / 1e9)

        producer = threading.Thread(target=_append_slowly, args=(bootstrap, topic))
        producer.start()
        run(topic, note)
        producer.join()
        return sorted(ages)[len(ages) * 99 // 100]

    def plain(topic: str, note: Callable[[int, int, bytes], None]) -> None:
        def work(message: Any) -> None:
            number, sent_ns = map(int, message.value().split(b" "))
            time.sleep(STUCK_S if number == STUCK_AT else NOTIFY_S)
            note(number, sent_ns, b"")

        consume(bootstrap, f"vanilla-{topic}", topic, 1, NOTIFICATIONS, work)

    def ours(topic: str, note: Callable[[int, int, bytes], None]) -> None:
        async def handler(record: kl.Record) -> None:
            number, sent_ns = map(int, (record.value or b"").split(b" "))
            await asyncio.sleep(STUCK_S if number == STUCK_AT else NOTIFY_S)
            note(number, sent_ns, b"")

        _run(bootstrap, topic, handler, NOTIFICATIONS)

    expected = f"p99 of the others: about {NOTIFY_S * 1000:.0f} ms (below 200 ms) instead of nearly {STUCK_S:.0f} s"
    vanilla, keylane = waits(plain), waits(ours)
    return Outcome("slow notification", expected, vanilla, keylane, "s p99", keylane < 0.2 and vanilla > STUCK_S / 2)


def burst(bootstrap: str) -> Outcome:
    """4,000 settlements of 2,000 outlets arrive at once on 10 partitions; each takes 50 ms in a service that scales."""
    topic = _topic(bootstrap, "settlements", BURST_PARTITIONS)
    with BulkProducer(bootstrap) as producer:
        for number in range(SETTLEMENTS):
            outlet = number % OUTLETS
            producer.produce(
                kl.Output(topic, key=b"outlet %d" % outlet, value=b"1", partition=outlet % BURST_PARTITIONS)
            )
    limit_s = max(SETTLEMENTS / AT_ONCE, SETTLEMENTS / OUTLETS) * SETTLE_S
    plain_s = SETTLEMENTS / BURST_PARTITIONS * SETTLE_S
    watch = Watch()

    def work(_: Any) -> None:
        watch.begin()
        time.sleep(SETTLE_S)
        watch.end()

    async def handler(_: kl.Record) -> None:
        watch.begin()
        await asyncio.sleep(SETTLE_S)
        watch.end()

    consume(bootstrap, f"vanilla-{topic}", topic, BURST_PARTITIONS, SETTLEMENTS, work)
    vanilla, watch = watch.seconds, Watch()
    _run(bootstrap, topic, handler, None, max_concurrency=AT_ONCE)
    keylane = watch.seconds
    expected = (
        f"{plain_s:.0f} s one by one a partition; {limit_s:.1f} s is the least with {AT_ONCE:,} at once (below 1 s)"
    )
    return Outcome("close-of-day burst", expected, vanilla, keylane, "s", keylane < 1 and vanilla > plain_s * 0.9)


def fraud(bootstrap: str) -> Outcome:
    """1,500 payments of 500 cards on one partition; the model takes milliseconds of processor time for each."""
    topic = _topic(bootstrap, "payments", 1)
    with BulkProducer(bootstrap) as producer:
        for number in range(PAYMENTS):
            producer.produce(kl.Output(topic, key=b"card %d" % (number % CARDS), value=b"%d" % number, partition=0))
    cores = os.cpu_count() or 1
    begun = time.perf_counter()
    consume(bootstrap, f"vanilla-{topic}", topic, 1, PAYMENTS, judge_message)
    vanilla = time.perf_counter() - begun
    begun = time.perf_counter()
    _run(bootstrap, topic, judge, None, workers=kl.Processes(), max_concurrency=cores)
    keylane = time.perf_counter() - begun
    expected = (
        f"one core's time divided by {cores} cores (at least {0.75 * cores:.1f} times as fast, start-up included)"
    )
    return Outcome("fraud model on processes", expected, vanilla, keylane, "s", vanilla / keylane >= 0.75 * cores)


STORIES = {"notification": notification, "burst": burst, "fraud": fraud}


def score(value: bytes) -> float:
    """A model's inner loop: logistic regression without a library, which keeps the processor busy."""
    total = float(value)
    for number in range(MODEL_ROUNDS):
        total = 0.999 * total + math.sin(number)
    return 1 / (1 + math.exp(-total / MODEL_ROUNDS))


def judge(record: kl.Record) -> None:
    """The handler of `fraud`: it has to be importable where it runs."""
    score(record.value or b"0")


def judge_message(message: Message) -> None:
    """The same for a plain consumer."""
    score(message.value() or b"0")


class Watch:
    """From the first handler's begin to the last one's end."""

    def __init__(self) -> None:
        self._first = math.inf
        self._last = 0.0

    def begin(self) -> None:
        self._first = min(self._first, time.perf_counter())

    def end(self) -> None:
        self._last = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self._last - self._first


def _topic(bootstrap: str, name: str, partitions: int) -> str:
    topic = f"{name}-{time.time_ns()}"
    assert Admin({"bootstrap.servers": bootstrap}).create_topics({topic: partitions})
    return topic


def _append_slowly(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    start = time.monotonic()
    for number in range(NOTIFICATIONS):
        time.sleep(max(0.0, start + number / PER_SECOND - time.monotonic()))
        producer.produce(topic, key=b"user %d" % number, value=b"%d %d" % (number, time.time_ns()))
        producer.poll(0)
    producer.flush()


def _run(bootstrap: str, topic: str, handler: Callable[..., Any], records: int | None, **options: Any) -> None:
    """To the end of the log, or until so many records are there and done."""
    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": bootstrap, "group.id": f"keylane-{topic}"},
        topics=[topic],
        handler=handler,
        offset_reset="earliest",
        **options,
    )
    with kl.ParallelConsumer(
        pipeline, ending_offsets="latest" if records is None else {(topic, 0): records}
    ) as consumer:
        consumer.run()
