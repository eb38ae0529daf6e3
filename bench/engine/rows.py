"""What is measured: the rows of the Parallel Consumer's table, skewed and wide ones, and a handler that does nothing.

A row is a value; the records of its topic follow from it and a seed, so that every contestant gets the same work.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SLEEP_US = 5_000
"""A record's handler sleeps 0–5 ms, uniformly."""
SERVICE_US = 50_000
"""What a slow service takes for each record."""
TABLE_RECORDS = 10_000
QUICK_RECORDS = 2_000
NOOP_RECORDS = 1_000_000
QUICK_NOOP_RECORDS = 200_000
PEER_NOOP_RECORDS = 200_000
"""The peer gets fewer: its rate is the same, and a run stays within seconds."""
KEYS = (1, 2, 5, 10, 20, 50, 100, 1_000, 10_000)
CONCURRENCIES = (16, 100)
NOOP_PARTITIONS = 4
NOOP_KEYS = 10_000
ZIPF_EXPONENT = 1.1
WIDE_CONCURRENCY = 1_000
"""In flight at once where a handler waits for a service; only what needs no thread a record takes part."""
ZIPF_KEYS = 10_000
ZIPF_RECORDS = 5_000
DEVICES = 100_000
DEVICE_PARTITIONS = 10
COST_RECORDS = 200_000
COST_KEYS = (1, 100, 10_000, 1_000_000)
COST_PARTITIONS = (1, 10, 100, 1_000)
COST_BACKLOGS = (10_000, 100_000, 1_000_000)
SEED = 20_13

Ordering = Literal["partition", "key", "unordered"]
Contestants = Literal["all", "threadless", "threads"]


@dataclass(frozen=True, slots=True)
class Topic:
    """Records of one topic: `records` of them, keyed in turn or by Zipf's law."""

    records: int
    keys: int
    partitions: int
    sleeping: bool
    zipf: bool = False
    service_us: int = 0
    """What every handler sleeps, in microseconds; 0 for 0–5 ms by chance."""

    @property
    def name(self) -> str:
        kind = f"sleep{self.service_us or ''}" if self.sleeping else "noop"
        return f"{kind}-{self.records}-{self.keys}{'-zipf' if self.zipf else ''}-{self.partitions}"

    def content(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Key, value and partition of each record; a value is what its handler sleeps, in microseconds."""
        rng = random.Random(SEED)
        shares = [1 / rank**ZIPF_EXPONENT for rank in range(1, self.keys + 1)]
        skewed = rng.choices(range(self.keys), shares, k=self.records) if self.zipf else None
        for number in range(self.records):
            key = skewed[number] if skewed else number % self.keys
            sleep_us = (self.service_us or rng.randrange(MAX_SLEEP_US)) if self.sleeping else 0
            yield b"k%d" % key, b"%d" % sleep_us, (key if self.keys >= self.partitions else number) % self.partitions


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    ordering: Ordering
    concurrency: int
    topic: Topic
    peer_topic: Topic
    """What the JVM gets: the same, or fewer records of the same kind."""
    contestants: Contestants = "all"
    """Who takes part: "threadless" leaves our threads out, "threads" is them alone."""
    backlog: int = 0
    """So many records are polled before the first handler goes on; 0 for none."""

    @property
    def section(self) -> str:
        """Which table of the page it is in."""
        if self.contestants == "threads":
            return "cost"
        return "wait" if self.topic.sleeping else "noop"

    def limit_s(self, sum_s: float, heaviest_s: float) -> float:
        """The least time in which these handlers can run: side by side, and one after another within a key or
        partition."""
        side_by_side = sum_s / self.concurrency
        return side_by_side if self.ordering == "unordered" else max(side_by_side, heaviest_s)


def rows(patterns: list[str], *, quick: bool) -> list[Row]:
    """The rows whose names match one of the patterns."""
    every = [
        *_table(QUICK_RECORDS if quick else TABLE_RECORDS),
        *_wide(QUICK_RECORDS if quick else DEVICES),
        *_noop(QUICK_NOOP_RECORDS if quick else NOOP_RECORDS),
        *_cost(COST_RECORDS),
    ]
    return [row for row in every if any(fnmatch(row.name, pattern) for pattern in patterns)]


def _table(records: int) -> Iterator[Row]:
    def topic(keys: int) -> Topic:
        return Topic(records, keys, 1, sleeping=True)

    for concurrency in CONCURRENCIES:
        yield Row(f"partition/{concurrency}", "partition", concurrency, topic(20), topic(20))
        for keys in KEYS:
            yield Row(f"key-{keys}/{concurrency}", "key", concurrency, topic(keys), topic(keys))
        yield Row(f"unordered/{concurrency}", "unordered", concurrency, topic(20), topic(20))


def _wide(devices: int) -> Iterator[Row]:
    """A service of 50 ms with 1,000 requests at once: skewed keys, and many keys on few partitions."""
    skewed = Topic(min(devices, ZIPF_RECORDS), ZIPF_KEYS, 1, sleeping=True, zipf=True, service_us=SERVICE_US)
    even = Topic(devices, devices, DEVICE_PARTITIONS, sleeping=True, service_us=SERVICE_US)
    for name, topic in (("zipf-50ms", skewed), ("devices-50ms", even)):
        yield Row(f"{name}/{WIDE_CONCURRENCY}", "key", WIDE_CONCURRENCY, topic, topic, "threadless")


def _noop(records: int) -> Iterator[Row]:
    topic = Topic(records, NOOP_KEYS, NOOP_PARTITIONS, sleeping=False)
    peer_topic = Topic(min(records, PEER_NOOP_RECORDS), NOOP_KEYS, NOOP_PARTITIONS, sleeping=False)
    orderings: tuple[Ordering, ...] = ("key", "unordered")
    for ordering in orderings:
        for concurrency in CONCURRENCIES:
            yield Row(f"noop-{ordering}/{concurrency}", ordering, concurrency, topic, peer_topic)


def _cost(records: int) -> Iterator[Row]:
    """The engine's own cost a record against what may grow: keys, partitions, and records that wait."""

    def row(name: str, topic: Topic, backlog: int = 0) -> Row:
        return Row(f"cost-{name}/16", "key", 16, topic, topic, "threads", backlog)

    for keys in COST_KEYS:
        yield row(f"keys-{keys}", Topic(max(keys, records), keys, NOOP_PARTITIONS, sleeping=False))
    for partitions in COST_PARTITIONS:
        yield row(f"partitions-{partitions}", Topic(records, NOOP_KEYS, partitions, sleeping=False))
    for backlog in COST_BACKLOGS:
        yield row(f"backlog-{backlog}", Topic(backlog, NOOP_KEYS, 1, sleeping=False), backlog)
