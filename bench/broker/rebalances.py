"""A rebalance of a group whose members (librdkafka's) read all the while: for how long nothing is read when one more
comes, and when it goes again.

A writer gives every partition a record ten times a second. Two times are taken of each step: the longest in which no
member read anything, and the longest in which some partition was not read.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.load import Load

PERIOD_S = 0.1
READERS = 4
"""Threads that poll the members in turns."""
DEADLINE_S = 180.0


class Reads:
    """When each partition was read last, and the longest pauses since `begin`. Thread safety: any thread."""

    def __init__(self, partitions: int) -> None:
        self._lock = threading.Lock()
        self.last = dict.fromkeys(range(partitions), 0.0)
        self.by_member: dict[str, set[int]] = {}
        """What each has read since it began."""
        self.begin()

    def begin(self) -> None:
        with self._lock:
            self._began = self._any = time.perf_counter()
            self.nothing_s = self.longest_s = 0.0

    def note(self, member: str, partition: int) -> None:
        with self._lock:
            now = time.perf_counter()
            self.nothing_s = max(self.nothing_s, now - self._any)
            self.longest_s = max(self.longest_s, now - max(self.last[partition], self._began))
            self.last[partition] = self._any = now
            self.by_member.setdefault(member, set()).add(partition)

    def wait(self, what: str, is_done: Callable[[], bool]) -> None:
        deadline = time.perf_counter() + DEADLINE_S
        while not is_done():
            if time.perf_counter() > deadline:
                raise RuntimeError(f"{what}: not within {DEADLINE_S:.0f} s")
            time.sleep(PERIOD_S)

    def wait_for_all(self, since: float, partitions: set[int] | None = None) -> None:
        """Until each of these (or all) was read since then."""
        those = self.last.keys() if partitions is None else partitions
        self.wait("some partitions are not read", lambda: all(self.last[one] > since for one in those))


def rebalance(load: Load, protocol: str) -> dict[str, float]:
    reads, stop = Reads(load.partitions), threading.Event()
    members = {f"member-{number}": _member(load, protocol) for number in range(load.clients)}
    names = list(members)
    threads = [threading.Thread(target=_write, args=(load, stop))]
    threads += [
        threading.Thread(target=_read, args=({name: members[name] for name in names[one::READERS]}, reads, stop))
        for one in range(READERS)
    ]
    for thread in threads:
        thread.start()
    try:
        reads.wait("some members have nothing", lambda: len(reads.by_member) == load.clients)
        reads.wait_for_all(time.perf_counter())
        comes, newcomer = _step(reads), threading.Event()
        one_more = threading.Thread(target=_read, args=({"newcomer": _member(load, protocol)}, reads, newcomer))
        one_more.start()
        reads.wait("the newcomer reads nothing", lambda: "newcomer" in reads.by_member)
        reads.wait_for_all(time.perf_counter())
        found = {f"comes_{name}": value for name, value in comes().items()}
        goes = _step(reads)
        newcomer.set()
        one_more.join()
        reads.wait_for_all(time.perf_counter(), reads.by_member["newcomer"])
        reads.wait_for_all(time.perf_counter())
        return found | {f"goes_{name}": value for name, value in goes().items()}
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _step(reads: Reads) -> Callable[[], dict[str, float]]:
    reads.begin()
    return lambda: {"nothing_s": reads.nothing_s, "longest_s": reads.longest_s}


def _member(load: Load, protocol: str) -> Consumer:
    consumer = Consumer({
        "bootstrap.servers": load.bootstrap, "group.id": f"{load.topic}-readers", "group.protocol": protocol,
        "auto.offset.reset": "latest",
    })  # fmt: skip
    consumer.subscribe([load.topic])
    return consumer


def _read(members: dict[str, Consumer], reads: Reads, stop: threading.Event) -> None:
    while not stop.is_set():
        is_idle = True
        for name, member in members.items():
            for message in member.consume(50, 0):
                partition = message.partition()
                if message.error() is None and partition is not None:
                    reads.note(name, partition)
                    is_idle = False
        if is_idle:
            time.sleep(0.002)
    for member in members.values():
        member.close()


def _write(load: Load, stop: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": load.bootstrap})
    while not stop.wait(PERIOD_S):
        for partition in range(load.partitions):
            producer.produce(load.topic, bytes(load.size), partition=partition)
        producer.poll(0)
    producer.flush(DEADLINE_S)
