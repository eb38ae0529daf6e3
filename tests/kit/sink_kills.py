"""Kills under a sink that writes exactly once: the brokers that may die, and the verdict of another library's reader.

The idea: whatever is killed, and on whichever brokers, each row is there once in the end, and no transaction of the
sink is open.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import peers
import pytest
from peers.cluster import ApacheCluster

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.open_transactions import TransactionsClient
from keylane.spark.structured.exact.record import task_prefix
from keylane.wire import codes
from kit.committed import committed_values

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Back = Callable[[], None]

EMBEDDED, APACHE, THREE_NODES = PLACES = ("the embedded broker", "Apache Kafka", "three nodes")


class Place(NamedTuple):
    """Where a sink writes."""

    servers: str
    replication: int
    kill: Callable[[random.Random], Back]
    """SIGKILL to a broker. What it returns has that broker back, and returns when all is as before."""


@contextmanager
def place(name: str, folder: Path) -> Iterator[Place]:
    """One of `PLACES`."""
    if name == EMBEDDED:
        with BrokerProcess(folder / "data") as broker:

            def kill_it(_: random.Random) -> Back:
                broker.kill()
                return broker.start

            yield Place(broker.bootstrap, 1, kill_it)
        return
    if missing := peers.missing():
        pytest.skip(missing)
    if name == APACHE:
        with peers.ApacheKafka() as kafka:

            def kill_kafka(_: random.Random) -> Back:
                kafka.kill()
                return kafka.start

            yield Place(kafka.bootstrap, 1, kill_kafka)
        return
    assert name == THREE_NODES, name
    with ApacheCluster() as cluster:

        def kill_one(chance: random.Random) -> Back:
            node = chance.choice(cluster.running)
            cluster.kill(node)

            def back() -> None:
                cluster.start(node)
                cluster.wait_until_in_sync()

            return back

        yield Place(cluster.bootstrap, 3, kill_one)


class Storm:
    """Of a sink that is named as the topic that it writes to, with rows 0, 1, 2, … as values."""

    def __init__(self, servers: str, sink: str, replication: int = 1) -> None:
        self.rows = 0
        """That are to be there in the end."""
        self.kills: Counter[str] = Counter()
        self._servers, self._sink = servers, sink
        Admin({"bootstrap.servers": servers}).create_topics({sink: 2}, replication_factor=replication)

    def more(self, rows: int) -> range:
        """So many more are to be there."""
        self.rows += rows
        return range(self.rows - rows, self.rows)

    def seen(self, *, now: bool) -> list[int]:
        """Waits while a transaction is open, unless `now`: then what is readable at this moment."""
        return sorted(map(int, committed_values(self._servers, self._sink, now=now)))

    def killed(self, whom: str, where: str) -> None:
        """Counts it. Raises `AssertionError` when a row is there twice already."""
        self.kills[whom] += 1
        seen = self.seen(now=True)
        print(f"{self.kills.total()}: {whom} {where}, {len(seen)} of {self.rows} rows", flush=True)  # noqa: T201
        assert not (twice := {one for one, other in pairwise(seen) if one == other}), f"twice after {where}: {twice}"

    def judge(self) -> None:
        """Once nothing runs any more. Raises `AssertionError`."""
        with TransactionsClient({"bootstrap.servers": self._servers}) as client:
            error, left = client.open_ids(task_prefix(self._sink), self._sink)
        assert (error, left) == (codes.NONE, []), "a transaction is left open"
        seen, wanted = Counter(self.seen(now=False)), Counter(range(self.rows))
        print(f"{dict(self.kills)}: {seen.total()} rows of {self.rows}", flush=True)  # noqa: T201
        assert seen == wanted, f"{(wanted - seen).total()} rows are missing, {(seen - wanted).total()} too many"
