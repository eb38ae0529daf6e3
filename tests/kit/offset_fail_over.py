"""Clients of several libraries at offset servers of which the one that leads their groups dies, or is stopped."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.formats import partition_for
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from keylane.records import Output
from kit.offset_client import LIBRARIES
from kit.offset_servers import peers_of, ports_of
from kit.processes import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kit.offset_servers import OffsetServer, OffsetServers

PARTITIONS = 2
RECORDS = 1_200
FIRST_COMMITS = 5
"""Of each client before the server goes."""
GIVEN_UP_S = 120.0


Command = Callable[[str, str, str, str], list[str]]
"""What runs a client, of bootstrap servers, a topic, a group and how many records there are."""


def in_python(library: str) -> Command:
    return lambda *arguments: [sys.executable, "-m", "kit.offset_client", library, *arguments]


THREE_LIBRARIES: Mapping[str, Command] = {library: in_python(library) for library in LIBRARIES}


class Client:
    """One of the libraries, as a process."""

    def __init__(self, library: str, command: list[str], group: str, file: Path) -> None:
        self.name = library
        self.group = group
        self._file = file
        with file.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                bufsize=0,  # a line that is read ahead would not be selected
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self.process.stdout is not None
        self._lines = self.process.stdout
        self.acknowledged: dict[int, int] = {}
        self.commits = 0
        self.peers: set[int] = set()
        """Ports that it was connected to when somebody looked."""

    def read(self) -> bool:
        """A line; whether there was one."""
        line = self._lines.readline()
        if line:
            self.commits += 1
            self.acknowledged |= {int(one): offset for one, offset in json.loads(line).items()}
            self.peers |= peers_of(self.process.pid)
        return bool(line)

    def ended_well(self) -> None:
        assert self.process.wait(GIVEN_UP_S) == 0, f"{self.name}: {self._file.read_text()[-2_000:]}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._lines.close()


class Outcome(NamedTuple):
    longest_s: float
    """The longest time without an acknowledged commit, of any client; without what they waited for a processor."""
    clients: Sequence[Client]


def fail_over(
    servers: OffsetServers,
    topic: str,
    folder: Path,
    how: Callable[[OffsetServer], object],
    replicas: int = 1,
    libraries: Mapping[str, Command] = THREE_LIBRARIES,
) -> Outcome:
    """Every client reads and commits all records while `how` happens to the server that leads all their groups. Raises
    `AssertionError` for a commit that is lost, a client that ends, and one that has seen a broker of the log."""
    leads = servers.settled()
    victim = max(servers.running, key=lambda one: len(leads[one.address]))
    partitions = sum(map(len, leads.values()))
    groups = [
        next(
            name
            for number in range(10_000)
            if partition_for(name := f"{topic}-{library}-{number}", partitions) in leads[victim.address]
        )
        for library in libraries
    ]
    admin = Admin({"bootstrap.servers": servers.bootstrap})
    admin.create_topics({topic: PARTITIONS}, replication_factor=replicas)
    with BulkProducer(servers.bootstrap) as producer:
        for number in range(RECORDS):
            producer.produce(Output(topic, key=b"%d" % number, value=b"1", partition=number % PARTITIONS))
    with ExitStack() as stack:
        clients = []
        for (library, command), group in zip(libraries.items(), groups, strict=True):
            words = command(servers.bootstrap, topic, group, str(RECORDS))
            clients.append(Client(library, words, group, folder / f"{library}.log"))
            stack.callback(clients[-1].close)
        longest_s = _follow(clients, lambda: how(victim))
        for one in clients:
            one.ended_well()
            assert not one.peers & ports_of(servers.log), f"{one.name} is connected to a broker of the log"
            assert one.peers, "nobody has looked"
    living = Admin({"bootstrap.servers": servers.bootstrap})
    for one in clients:
        found = living.committed_offsets(one.group, [topic])
        assert {name[1]: at.offset for name, at in found.items()} == one.acknowledged, one.name
        assert sum(one.acknowledged.values()) == RECORDS
    assert {one.group for one in living.groups()} >= set(groups)
    known = {one.group for one in Admin({"bootstrap.servers": servers.log}).groups()}
    assert not known & set(groups), "Apache Kafka's own coordinator knows a group"
    return Outcome(longest_s, clients)


def _follow(clients: Sequence[Client], strike: Callable[[], object]) -> float:
    """Read what clients tell, and strike when all have begun; the longest that one was silent from then on."""
    heard: dict[Client, Stopwatch] = {}
    longest_s, has_struck = 0.0, False
    with selectors.DefaultSelector() as selector:
        for one in clients:
            selector.register(one.process.stdout.fileno(), selectors.EVENT_READ, one)  # type: ignore[union-attr]
        left = set(clients)
        while left:
            heard_of = selector.select(GIVEN_UP_S)
            assert heard_of, f"nothing is heard any more: {[(one.name, one.commits) for one in clients]}"
            for key, _ in heard_of:
                client: Client = key.data
                if not client.read():
                    selector.unregister(key.fileobj)
                    left.discard(client)
                    continue
                if has_struck:
                    longest_s = max(longest_s, heard[client].took_s())
                heard[client] = Stopwatch()
            if not has_struck and all(one.commits >= FIRST_COMMITS for one in clients):
                strike()
                has_struck = True
                heard = dict.fromkeys(clients, Stopwatch())
    assert has_struck, "everything was committed before the strike"
    return longest_s
