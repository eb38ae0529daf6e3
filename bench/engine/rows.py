"""What is measured: the rows of the Parallel Consumer's table, a skewed one, and a handler that does nothing.

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
ZIPF_EXPONENT = 1.0
SEED = 20_13

Ordering = Literal["partition", "key", "unordered"]


@dataclass(frozen=True, slots=True)
class Topic:
    """Records of one topic: `records` of them, keyed in turn or by Zipf's law."""

    records: int
    keys: int
    partitions: int
    sleeping: bool
    zipf: bool = False

    @property
    def name(self) -> str:
        kind = "sleep" if self.sleeping else "noop"
        return f"{kind}-{self.records}-{self.keys}{'-zipf' if self.zipf else ''}-{self.partitions}"

    def content(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Key, value and partition of each record; a value is what its handler sleeps, in microseconds."""
        rng = random.Random(SEED)
        shares = [1 / rank**ZIPF_EXPONENT for rank in range(1, self.keys + 1)]
        skewed = rng.choices(range(self.keys), shares, k=self.records) if self.zipf else None
        for number in range(self.records):
            key = skewed[number] if skewed else number % self.keys
            sleep_us = rng.randrange(MAX_SLEEP_US) if self.sleeping else 0
            yield b"k%d" % key, b"%d" % sleep_us, key % self.partitions


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    ordering: Ordering
    concurrency: int
    topic: Topic
    peer_topic: Topic
    """What the JVM gets: the same, or fewer records of the same kind."""

    def limit_s(self, sum_s: float, heaviest_s: float) -> float:
        """The least time in which these handlers can run: side by side, and one after another within a key or
        partition."""
        side_by_side = sum_s / self.concurrency
        return side_by_side if self.ordering == "unordered" else max(side_by_side, heaviest_s)


def rows(patterns: list[str], *, quick: bool) -> list[Row]:
    """The rows whose names match one of the patterns."""
    every = [*_table(QUICK_RECORDS if quick else TABLE_RECORDS), *_noop(QUICK_NOOP_RECORDS if quick else NOOP_RECORDS)]
    return [row for row in every if any(fnmatch(row.name, pattern) for pattern in patterns)]


def _table(records: int) -> Iterator[Row]:
    def topic(keys: int, *, zipf: bool = False) -> Topic:
        return Topic(records, keys, 1, sleeping=True, zipf=zipf)

    for concurrency in CONCURRENCIES:
        yield Row(f"partition/{concurrency}", "partition", concurrency, topic(20), topic(20))
        for keys in KEYS:
            yield Row(f"key-{keys}/{concurrency}", "key", concurrency, topic(keys), topic(keys))
        skewed = topic(1_000, zipf=True)
        yield Row(f"key-1000-zipf/{concurrency}", "key", concurrency, skewed, skewed)
        yield Row(f"unordered/{concurrency}", "unordered", concurrency, topic(20), topic(20))


def _noop(records: int) -> Iterator[Row]:
    topic = Topic(records, NOOP_KEYS, NOOP_PARTITIONS, sleeping=False)
    peer_topic = Topic(min(records, PEER_NOOP_RECORDS), NOOP_KEYS, NOOP_PARTITIONS, sleeping=False)
    orderings: tuple[Ordering, ...] = ("key", "unordered")
    for ordering in orderings:
        for concurrency in CONCURRENCIES:
            yield Row(f"noop-{ordering}/{concurrency}", ordering, concurrency, topic, peer_topic)
