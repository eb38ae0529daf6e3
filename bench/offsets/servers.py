"""Offset servers beside Apache Kafka's own coordinators, on the same three brokers, in one run.

Three servers keep their offsets in a topic of three Apache Kafka nodes with three replicas, of which a commit waits for
all in sync (`acks=all`); the nodes' own coordinators keep theirs in `__consumer_offsets`, with the same replicas. The
load sends each group to its coordinator. What a commit costs in processor time counts the servers alone, or the nodes
alone; the servers' commits cost the nodes too, which is told beside it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import peers
from broker.load import fetch, producer_of, send_some
from broker.work import Load
from contests import OURS
from peers import jvm
from peers.cluster import NODES, ApacheCluster

from keylane.kafka.admin import Admin
from offsets import fail_over
from offsets.load import TOPIC
from offsets.speed import Contest, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COORDINATORS = f"Apache Kafka {peers.kafka_release()}, 3 nodes"
SERVERS = 3
PARTITIONS = 6
SETTLE_S = 60
RELAYED, RECORD_BYTES, RELAYED_RECORDS, SENT_AT_ONCE = "relayed", 1_000, 100_000, 10_000

ROWS = (
    Row("servers: commit, 4 × 100 in flight", "commit", 4, 100, 1, 5.0, COORDINATORS),
    Row("servers: commit, 16 × 100 in flight", "commit", 16, 100, 1, 5.0, COORDINATORS),
    Row("servers: commit, 1 client, 1 in flight", "commit", 1, 1, 1, 0.0, COORDINATORS),
    Row("servers: fetch, 1 client, 1 in flight", "fetch", 1, 1, 1, 0.0, COORDINATORS),
)
RELAY, COST, FAIL_OVER = "servers: relay", "servers: processor time a commit", "servers: fail-over"
GROUPS = (1_000, 10_000, 100_000, 1_000_000)
QUICK_GROUPS = GROUPS[:2]
CONNECTIONS, IN_FLIGHT = 16, 100
FILLING = 1_000
"""In flight on each connection while groups are made: an append has more of them, and a million take minutes less."""


class ServerProcess(jvm.LineProcess):
    """`keylane offsets serve`. A context manager."""

    def __init__(self, log: str, folder: Path, name: str) -> None:
        port = peers.free_row(2 + max(NODES))
        self.address = f"127.0.0.1:{port}"
        options = ["--until-stdin-ends", "--log", log, "--listen", self.address, *names(name)]
        super().__init__([sys.executable, "-m", "keylane", "offsets", "serve", *options], folder / f"server-{port}.log")
        if not next(self.lines(), "").startswith("keylane offset server ready"):
            self.__exit__()
            raise RuntimeError(f"{self.address} is not ready: {(folder / f'server-{port}.log').read_text()[-500:]}")


def names(name: str) -> list[str]:
    """Options for a topic and a group of servers of their own."""
    return ["--topic", f"__{name}", "--group", name]


def wait_until_settled(log: str, name: str, servers: int) -> None:
    """Until so many lead everything."""
    command = [sys.executable, "-m", "keylane", "offsets", "status", "--json", "--log", log, *names(name)]
    deadline = time.monotonic() + SETTLE_S
    while True:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        found: dict[str, Any] = json.loads(ran.stdout) if ran.stdout else {"servers": (), "without_leader": True}
        if [bool(one["leads"]) for one in found["servers"]] == [True] * servers and not found["without_leader"]:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{servers} servers do not lead everything after {SETTLE_S} s: {found} {ran.stderr}")
        time.sleep(0.2)


class ServersContest(Contest):
    """Three nodes, three servers, and the load generator. A context manager: their processes end with it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._servers: list[ServerProcess] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._cluster = stack.enter_context(ApacheCluster())
            self._log = self._cluster.bootstrap
            self._generator = stack.enter_context(jvm.LineProcess([sys.executable, "-m", "offsets.load"]))
            Admin({"bootstrap.servers": self._log}, timeout_ms=120_000).create_topics(
                {TOPIC: PARTITIONS}, replication_factor=len(NODES)
            )
            self._bootstraps[COORDINATORS] = self._log
            self._stack = stack.pop_all()
        return self

    @contextlib.contextmanager
    def serving(self, name: str, count: int) -> Iterator[None]:
        """So many servers of a topic of their own, which lead all of it."""
        with contextlib.ExitStack() as stack:
            self._servers = [stack.enter_context(ServerProcess(self._log, self._folder, name)) for _ in range(count)]
            wait_until_settled(self._log, name, count)
            self._bootstraps[OURS] = ",".join(one.address for one in self._servers)
            yield

    def warm_up(self, seconds: float = 0) -> None:
        for name in self._bootstraps:
            for what in ("commit", "fetch"):
                self._run(name, Row("", what, 4, 50, 1, 0), seconds / 2)

    def _run(self, name: str, row: Row, seconds: float) -> dict[str, Any]:
        before = self._used()
        run = super()._run(name, row, seconds)
        servers, nodes = (after - then for after, then in zip(self._used(), before, strict=True))
        each = {"servers_us": servers, "nodes_us": nodes}
        return run | {what: used * 1e6 / run["answered"] for what, used in each.items()}

    def _used(self) -> tuple[float, float]:
        """Processor seconds of the servers and of the nodes."""
        return sum(peers.processor_s(one.pid) for one in self._servers), self._cluster.processor_s()

    def cost(self, servers: int, groups: int, seconds: float) -> dict[str, float]:
        """What a commit takes of the servers' processor time, with so many servers and groups."""
        name = f"bench-{servers}-{groups}"
        row = Row(name, "commit", CONNECTIONS, IN_FLIGHT, 1, 0.0, groups=max(groups // CONNECTIONS, 1))
        with self.serving(name, servers):
            self._run(OURS, dataclasses.replace(row, in_flight=FILLING), 0)
            run = {"servers": servers, "groups": groups, "load": os.getloadavg()[0]} | self._run(OURS, row, seconds)
            resident = [_resident_mb(one.pid) for one in self._servers]
        return run | {"resident_mb": max(resident)}

    def fail_over(self, kind: fail_over.Kind, name: str) -> dict[str, Any]:
        """How long groups of these servers have no commit acknowledged; all run again when it returns."""
        victim = self._servers[-1]
        node = self._cluster.leader(f"__{name}", 0)
        faults: dict[fail_over.Kind, tuple[Callable[[], object], Callable[[], object]]] = {
            fail_over.STOPPED: (lambda: victim.__exit__(), lambda: self._replace(victim, name)),
            fail_over.KILLED: (victim.kill, lambda: self._replace(victim, name)),
            fail_over.LEADER_KILLED: (lambda: self._cluster.kill(node), lambda: self._cluster.start(node)),
            fail_over.LEADER_FROZEN: (lambda: self._cluster.freeze(node), lambda: self._cluster.wake(node)),
        }
        strike, restore = faults[kind]
        found = fail_over.silence([one.address for one in self._servers], strike)
        restore()
        self._cluster.wait_until_in_sync()
        wait_until_settled(self._log, name, len(self._servers))
        return found

    def _replace(self, victim: ServerProcess, name: str) -> None:
        self._servers.remove(victim)
        self._servers.append(self._stack.enter_context(ServerProcess(self._log, self._folder, name)))

    def relay(self, records: int) -> dict[str, float]:
        """Processor milliseconds of the servers for a megabyte that is produced, and for one that is fetched, through
        them, by librdkafka."""
        Admin({"bootstrap.servers": self._log}).create_topics({RELAYED: 1}, replication_factor=len(NODES))
        load = Load(self._bootstraps[OURS], "", RELAYED, RECORD_BYTES, records=records)
        found: dict[str, float] = {"load": os.getloadavg()[0]}
        for what, step in (("produced", produce), ("fetched", fetch)):
            before, _ = self._used()
            step(load)
            found[f"{what}_ms_a_mb"] = (self._used()[0] - before) * 1e3 / (records * RECORD_BYTES / 1e6)
        return found


def produce(load: Load) -> None:
    producer = producer_of(load)
    sent = 0
    while sent < load.records:
        sent += send_some(producer, load, min(SENT_AT_ONCE, load.records - sent))
        producer.flush(SETTLE_S)


def _resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
