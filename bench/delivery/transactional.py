"""`delivery="transactional"` beside the JVM Parallel Consumer's transactions: a part of `make bench-delivery`.

Both copy the same topic (4 partitions, 1,000 keys, 100 bytes) on the same broker, with a handler that does nothing
else, in key order. The figure is taken from outside: how many records a second become visible to a reader of committed
records, from the first that it sees to the last; each copies as many as it takes for that to last some seconds. A run
of each comes first, to warm up, and does not count.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition
from peers import jvm

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITIONS = 4
KEYS = 1_000
VALUE = b"v" * 100
TRANSACTIONAL_BENCH = "keylane.peers.TransactionalBench"
LIMIT_S = 120.0
INTERVAL_MS = 100
"""How often both commit."""
AT_ONCE = (16, 100)
RECORDS = {"keylane asyncio": 100_000, "keylane threads": 100_000, "JVM Parallel Consumer": 10_000}


@dataclass
class Contestant:
    """One row of the table, and what was measured of it."""

    who: str
    at_once: int
    rates: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"transactions/{self.who}/{self.at_once}"


class Board:
    """A broker with a filled topic, and new target topics."""

    def __init__(self, servers: str, records: int) -> None:
        self.servers = servers
        self.records = records
        self._admin = Admin({"bootstrap.servers": servers})
        self._targets = 0
        self._admin.create_topics({"source": PARTITIONS})
        with BulkProducer(servers) as producer:
            for number in range(records):
                key = b"key-%d" % (number % KEYS)
                producer.produce(kl.Output("source", key=key, value=VALUE, partition=number % PARTITIONS))

    def target(self) -> str:
        self._targets += 1
        name = f"target-{self._targets}"
        self._admin.create_topics({name: PARTITIONS})
        return name

    def visible_a_second(self, target: str, records: int) -> float:
        """Read the target until so many are there."""
        settings = {"bootstrap.servers": self.servers, "group.id": "bench", "isolation.level": "read_committed"}
        reader = Consumer(settings | {"fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 5})
        reader.assign([TopicPartition(target, partition, 0) for partition in range(PARTITIONS)])
        seen, first, first_at, now = 0, 0, 0.0, 0.0
        give_up_at = time.monotonic() + LIMIT_S
        while seen < records:
            found = reader.consume(10_000, 0.01)
            now = time.monotonic()
            if now > give_up_at:
                raise TimeoutError(f"{target}: {seen} of {records} records within {LIMIT_S:.0f} s")
            if found and not seen:
                first, first_at = len(found), now
            seen += len(found)
        reader.close()
        return (seen - first) / max(now - first_at, 1e-9)


def keylane_run(board: Board, records: int, workers: str, concurrency: int) -> float:
    target = board.target()

    def plain(record: kl.Record) -> kl.Output:
        return kl.Output(target, key=record.key, value=record.value)

    async def coroutine(record: kl.Record) -> kl.Output:
        return kl.Output(target, key=record.key, value=record.value)

    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": board.servers, "group.id": target},
        topics=["source"],
        handler=coroutine if workers == "asyncio" else plain,
        max_concurrency=concurrency,
        workers=kl.Threads(concurrency) if workers == "threads" else None,
        delivery="transactional",
        commit=kl.Commit(interval_ms=INTERVAL_MS),
        offset_reset="earliest",
    )
    with kl.ParallelConsumer(pipeline) as consumer:
        thread = threading.Thread(target=consumer.run)
        thread.start()
        try:
            return board.visible_a_second(target, records)
        finally:
            consumer.stop()
            thread.join()


def jvm_run(board: Board, records: int, process: jvm.LineProcess, concurrency: int) -> float:
    target = board.target()
    if (said := process.ask(f"source {target} {concurrency} {INTERVAL_MS}")) != "running":
        raise RuntimeError(said)
    try:
        return board.visible_a_second(target, records)
    finally:
        process.ask("end")


def contestants(pattern: str) -> list[Contestant]:
    return [one for at_once in AT_ONCE for who in RECORDS if fnmatch((one := Contestant(who, at_once)).name, pattern)]


def run(servers: str, chosen: list[Contestant], *, repeat: int, share: int) -> list[Contestant]:
    """Measure them in turn, each with a `share`th of its records; returns those that can run here."""
    if (missing := jvm.missing()) is not None:
        sys.stderr.write(f"without the JVM Parallel Consumer: {missing}\n")
        chosen = [one for one in chosen if one.who.startswith("keylane")]
    if not chosen:
        return chosen
    with ExitStack() as stack:
        process = None
        if missing is None:
            process = stack.enter_context(jvm.LineProcess(jvm.command(TRANSACTIONAL_BENCH, servers)))
        board = Board(servers, max(RECORDS[one.who] for one in chosen) // share)
        for one in chosen:
            records = RECORDS[one.who] // share
            if one.who.startswith("keylane"):
                once = partial(keylane_run, board, records, one.who.removeprefix("keylane "), one.at_once)
            else:
                assert process is not None
                once = partial(jvm_run, board, records, process, one.at_once)
            _measure(one, once, repeat)
    return chosen


def _measure(one: Contestant, once: Callable[[], float], repeat: int) -> None:
    once()
    for _ in range(repeat):
        one.loads.append(os.getloadavg()[0])
        one.rates.append(once())
    sys.stdout.write(f"{one.name}: {median(one.rates):,.0f} records/s\n")
    sys.stdout.flush()


def markdown(found: list[Contestant]) -> str:
    lines = ["| | at once | records/s | lowest to highest | load |", "|---|---:|---:|---:|---:|"]
    for one in found:
        spread = f"{min(one.rates):,.0f} to {max(one.rates):,.0f}"
        lines.append(f"| {one.who} | {one.at_once} | {median(one.rates):,.0f} | {spread} | {median(one.loads):.1f} |")
    return "\n".join(lines) + "\n"
