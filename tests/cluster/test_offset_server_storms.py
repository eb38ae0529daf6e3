"""Offset servers are killed, stopped and frozen, nodes of their log die, freeze and lose their disks, and the links to
them break and become slow, while clients commit all the time.

Clients of the protocol commit, commit conditionally and read, each for a group of its own, at any server that is there:
their histories are judged in the end. Two members of keylane's, whose group is at the servers, run all that is
produced. After each fault every group goes on. `make soak ARGS="tests/cluster -k offset_server -s"`;
KEYLANE_OFFSET_FAULTS: how many (200), of the seed KEYLANE_OFFSET_SEED (2).
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import peers
import pytest
from peers.cluster import ApacheCluster

from keylane.coordinator.formats import partition_for
from keylane.errors import BrokerUnavailableError
from keylane.kafka.admin import Admin
from keylane.offset_servers.topic import TOPIC
from kit.ledger import Ledger
from kit.links import Links
from kit.offset_histories import History, running, verdict
from kit.offset_servers import OffsetServers
from kit.stage import Member, Stage, until

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from kit.ledger import Look
    from kit.offset_servers import OffsetServer

FAULTS, SEED = int(os.environ.get("KEYLANE_OFFSET_FAULTS", "200")), int(os.environ.get("KEYLANE_OFFSET_SEED", "2"))
BOUNDS_S = {
    "killed server": 8.0,
    "two servers": 8.0,
    "stopped server": 1.0,
    "frozen server": 28.0,
    "log's leader": 10.0,
    "frozen log's leader": 10.0,
    "wiped node": 10.0,
    "cut links": 4.0,
    "slow links": 4.0,
}
"""Kinds of faults, and how long no group is to be silent, on a machine that keeps up: told beside what was seen. Who
asks a frozen server waits for 20 s before it asks another one."""
KINDS = tuple(BOUNDS_S)
CUTS, CUT_EVERY_S = 10, 0.3
SLOW_S = 0.1
"""On the way to the log, and as long back."""
SERVERS, GROUPS, PARTITIONS, OFFSETS_PARTITIONS = 3, 3, 3, 6
OPTIONS = ("--set", f"offsets.topic.num.partitions={OFFSETS_PARTITIONS}")
KEYS, RECORDS = 24, 150
"""Produced around each fault."""
COMMITS = 20
"""Of each history after a fault, until it counts as going on."""
GOES_ON_S = 300.0
"""On a machine so busy that a server has no turn for a minute; a server's session is 6 s, and a node's as well."""


class Log(NamedTuple):
    """Where the servers have their log."""

    cluster: ApacheCluster
    links: Links
    """Between them."""


class Took(NamedTuple):
    """What a fault took, in seconds."""

    silence: float
    """The longest time in which a group had no commit acknowledged."""
    groups: float
    """Until each group had so many acknowledged."""
    members: float
    """Until the members had committed all that had been produced."""


@pytest.fixture(scope="module")
def log() -> Iterator[Log]:
    if what := peers.missing():
        pytest.skip(what)
    with Links() as links, ApacheCluster(through=links.to) as made:
        yield Log(made, links)


class Storm:
    """All of it. A context manager: it ends its processes."""

    def __init__(self, log: Log, folder: Path, seed: int) -> None:
        cluster, self._links = log
        self._cluster = cluster
        self._random = random.Random(seed)
        self._stack = ExitStack()
        self.servers = self._stack.enter_context(OffsetServers(cluster.relayed, folder, SERVERS, *OPTIONS))
        self.took: defaultdict[str, list[Took]] = defaultdict(list)
        self.stage = Stage(cluster.bootstrap, f"storm-{seed}", self.servers.bootstrap)
        self.stage.admin.create_topics({self.stage.topic: PARTITIONS}, replication_factor=3)
        self.ledger = Ledger(folder / "ledger")
        self.looks: list[Look] = []
        self.commits = 0
        """That were acknowledged, once they are judged."""
        self.histories = [History(folder, f"h{number}-{seed}", self.stage.topic, 2) for number in range(GROUPS)]
        options = {"kafka": self.stage.kafka, "topic": self.stage.topic, "ledger": str(self.ledger.path)}
        self._members = [self._stack.enter_context(Member(**options, ends=False)) for _ in range(2)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.ledger.close()

    def run(self, kinds: Sequence[str]) -> None:
        with running(self.histories, self.servers.bootstrap, self._random):
            self._goes_on(self._marks())
            for number, kind in enumerate(kinds, 1):
                self._strike(number, kind)
        for one in self._members:
            one.process.send_signal(signal.SIGTERM)
            one.end()

    def _strike(self, number: int, kind: str) -> None:
        leads = self.servers.settled()
        stood_still = self.servers.stood_still_s()
        self._look()
        self._fill()
        victims = self._victims(leads)
        marks, struck_at = self._marks(), time.monotonic()
        restore = self._done_to(kind, victims)
        groups_at, members_at = self._goes_on(marks)
        silence = max(one.longest_silence_s(struck_at) for one in self.histories)
        took = Took(silence, groups_at - struck_at, members_at - struck_at)
        self.took[kind].append(took)
        self._look()
        stood_still = self.servers.stood_still_s() - stood_still
        restore()
        load = f"{os.getloadavg()[0]:.0f}"
        if stood_still:
            load += f", a server had no turn for {max(stood_still)} s"
        sys.stdout.write(
            f"{number}: {kind}, silent for {took.silence:.1f} s ({BOUNDS_S[kind]:g} s), all groups went on after "
            f"{took.groups:.1f} s, members had all committed after {took.members:.1f} s; load {load}\n"
        )
        sys.stdout.flush()

    def _victims(self, leads: dict[str, list[int]]) -> list[OffsetServer]:
        """Servers, the first of which leads a group that is at work."""
        group = self._random.choice([self.stage.group, *(one.group for one in self.histories)])
        partition = partition_for(group, OFFSETS_PARTITIONS)
        return sorted(self.servers.running, key=lambda one: partition not in leads[one.address])

    def _done_to(self, kind: str, victims: Sequence[OffsetServer]) -> Callable[[], object]:
        """Do it; what undoes it."""
        servers, first = self.servers, victims[0]
        if kind == "cut links":
            for _ in range(CUTS):
                self._links.cut()
                time.sleep(CUT_EVERY_S)
            return lambda: None
        if kind == "slow links":
            self._links.delay_s = SLOW_S
            return lambda: setattr(self._links, "delay_s", 0.0)
        if kind in ("log's leader", "frozen log's leader", "wiped node"):
            node = self._cluster.leader(TOPIC, self._random.randrange(OFFSETS_PARTITIONS))
            if kind == "frozen log's leader":
                self._cluster.freeze(node)
                return lambda: self._restored(self._cluster.wake, node)
            (self._cluster.wipe if kind == "wiped node" else self._cluster.kill)(node)
            return lambda: self._restored(self._cluster.start, node)
        if kind == "frozen server":
            servers.remove(first)
            first.freeze()
            return lambda: self._wake(first)
        if kind == "two servers":
            for one in victims[:2]:
                servers.kill(one)
            return lambda: [servers.add(one.port) for one in victims[:2]]
        (servers.stop if kind == "stopped server" else servers.kill)(first)
        return lambda: servers.add(first.port)

    def _restored(self, how: Callable[[int], object], node: int) -> None:
        how(node)
        self._cluster.wait_until_in_sync()

    def _wake(self, server: OffsetServer) -> None:
        server.wake()
        self.servers.running.append(server)

    # --- what is seen ---

    def _fill(self) -> None:
        keys = (self._random.randrange(KEYS) for _ in range(RECORDS))
        self.stage.fill((b"%d" % key, key % PARTITIONS) for key in keys)

    def _marks(self) -> list[int]:
        return [one.acknowledged() + COMMITS for one in self.histories]

    def _goes_on(self, marks: Sequence[int]) -> tuple[float, float]:
        """When each group has so many commits acknowledged, and when members have committed everything."""

        def lacking() -> dict[str, int]:
            found = {one.group: mark - one.acknowledged() for one, mark in zip(self.histories, marks, strict=True)}
            return {group: count for group, count in found.items() if count > 0}

        def uncommitted() -> str:
            found = patiently(self.stage.committed)
            left = {name: end - (found[name].base if name in found else 0) for name, end in self.stage.ends().items()}
            return f"members have committed everything: what is left of each partition is {left}"

        until(lambda: not lacking(), lambda: f"so many more commits are acknowledged: {lacking()}", GOES_ON_S)
        groups_at = time.monotonic()
        until(lambda: patiently(self.stage.all_is_committed), uncommitted, GOES_ON_S)
        return groups_at, time.monotonic()

    def _look(self) -> None:
        found = patiently(self.stage.committed)
        self.looks.append((self.ledger.length(), found))

    @property
    def faults(self) -> int:
        return sum(map(len, self.took.values()))

    def silences(self) -> dict[str, str]:
        """By kind of fault: the median, the longest, and how many were within the bound."""
        found = {}
        for kind, took in sorted(self.took.items()):
            each = sorted(one.silence for one in took)
            within = sum(one <= BOUNDS_S[kind] for one in each)
            found[kind] = (
                f"median {each[len(each) // 2]:.1f} s, longest {each[-1]:.1f} s, {within} of {len(each)} within "
                f"{BOUNDS_S[kind]:g} s"
            )
        return found

    def check(self) -> None:
        """The verdict."""
        total = patiently(lambda: verdict(self.histories, self.servers.bootstrap))
        self.commits = total.commits
        records = self.stage.sources()
        sys.stdout.write(
            f"{self.faults} faults, {total.commits:,} commits ({total.conditional:,} conditional) and {total.reads:,} "
            f"reads of {GROUPS} groups, {len(records):,} records; silent for: {self.silences()}; {total}\n"
        )
        assert total.is_faultless, total
        assert self.ledger.done_times().keys() == dict(records).keys(), "nothing is lost"
        assert self.ledger.run_again(self.looks, "key") == [], "acknowledged work"
        assert self.ledger.disorders("key", records) == []
        ours = {self.stage.group, *(one.group for one in self.histories)}
        known = {one.group for one in patiently(Admin({"bootstrap.servers": self._cluster.bootstrap}).groups)}
        assert not ours & known, "Apache Kafka's own coordinator knows a group"
        told = self.servers.told()
        assert "Traceback" not in told
        assert "CRITICAL" not in told, "an alarm"


def patiently(ask: Callable[[], T]) -> T:
    """What is asked from outside; its client may go to servers that have just died, several times over."""
    give_up_at = time.monotonic() + GOES_ON_S
    while True:
        try:
            return ask()
        except BrokerUnavailableError:
            if time.monotonic() > give_up_at:
                raise


def storm(log: Log, folder: Path, faults: int, seed: int) -> Storm:
    kinds = list(itertools.islice(itertools.cycle(KINDS), faults))
    random.Random(seed).shuffle(kinds)
    with Storm(log, folder, seed) as made:
        made.run(kinds)
        made.check()
        return made


@pytest.mark.cluster
def test_a_short_storm(log: Log, tmp_path: Path) -> None:
    storm(log, tmp_path, len(KINDS), seed=1)


@pytest.mark.soak
def test_a_long_storm(log: Log, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    made = storm(log, tmp_path, FAULTS, SEED)
    record_property("faults", made.faults)
    record_property("commits", made.commits)
    record_property("silences", made.silences())
