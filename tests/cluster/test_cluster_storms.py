"""Nodes of a three-node Apache Kafka that are killed, wiped and frozen under every mode of delivery and every runner.

The members are processes that nobody touches, and a producer fills their topic all the time. At each strike a node goes
for what it is: the leader of a partition, the group's coordinator, a transaction's, the active controller. What came of
it is read from outside: a ledger of what handlers ran, the group's commits as nodes that live tell them, and outputs,
rows or files as other clients see them. No member may end, every partition goes on within `GOES_ON_S`, nothing is lost,
no key changes its order, and nothing runs again that a commit covered.

A mode alone: `make soak ARGS="tests/cluster -k 'long and transactional' -s"`. KEYLANE_CLUSTER_KILLS: nodes a mode (18).
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import peers
import pytest
from confluent_kafka import Producer
from peers.cluster import ApacheCluster
from peers.committed_reader import committed_records

from keylane.kafka.admin import Admin
from keylane.offsets import OffsetMap, decode
from kit.ledger import Ledger
from kit.processes import starved_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import KafkaError, Message

    from kit.ledger import Look, Source

MEMBER = Path(__file__).with_name("storm_member.py")
MODES = ("at_least_once", "transactional", "exactly_once", "kip-848", "lanes", "dataframes")
ALONE = ("lanes", "dataframes")
"""Modes of one driver, which has two lanes, or tasks; of the others there are two members."""
KINDS = ("leader", "coordinator", "controller", "wiped disk", "frozen node", "transaction coordinator")
"""In modes without transactions the last one is left out."""
KILLS = int(os.environ.get("KEYLANE_CLUSTER_KILLS", "18"))

PARTITIONS = 6
KEYS = 48
RECORDS_PER_S = 40
"""Few, so that what waited during a fail-over is soon worked off."""
GOES_ON_S = 15.0
"""From a node's death to the next commits of every partition."""
CLUSTER_S = 10.0
"""What the cluster itself takes of it at most, until every partition takes records again; on a busy machine it takes
longer, and what is beyond this is not the members'."""
GIVEN_UP_S = 120.0
"""For everything else that is waited for."""
SETTINGS = {
    # Leaders go back to the nodes that have come back, so that there is something to strike at on each.
    "leader.imbalance.check.interval.seconds": "5",
    "leader.imbalance.per.broker.percentage": "0",
    # How long a node waits for another one that is frozen (30 s by default), for the end of transactions among others.
    "request.timeout.ms": "5000",
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[ApacheCluster]:
    if what := peers.missing():
        pytest.skip(f"Apache Kafka cannot run here: {what}")
    with ApacheCluster(SETTINGS) as running:
        yield running


class Took(NamedTuple):
    """What a strike took, in seconds."""

    cluster_s: float
    """Until every partition took records again."""
    took_s: float
    """Until such were complete."""
    starved_s: float
    """In which something waited for a processor: a machine's that other work keeps busy, and not the members'."""

    def is_late(self) -> bool:
        return self.took_s - self.starved_s > GOES_ON_S + max(0.0, self.cluster_s - CLUSTER_S)


class Stream(threading.Thread):
    """Produces all the time, and counts what was acknowledged."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._topic = topic
        # It rides out what comes: a record that it gave up might be in the log all the same.
        settings = {"bootstrap.servers": servers, "enable.idempotence": True, "message.timeout.ms": 0, "log_level": 2}
        quick = {"socket.timeout.ms": 4_000, "request.timeout.ms": 4_000, "topic.metadata.refresh.interval.ms": 1_000}
        self._producer = Producer(settings | quick)
        self._ending = threading.Event()
        self.acknowledged = 0
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        """One past the last record of each partition that is known to be in the log."""

    def run(self) -> None:
        for number in itertools.count():
            if self._ending.wait(1 / RECORDS_PER_S):
                return
            key = number % KEYS
            told = self._delivered
            self._producer.produce(self._topic, b"", b"%d" % key, partition=key % PARTITIONS, on_delivery=told)
            self._producer.poll(0)

    def is_beyond(self, ends: dict[int, int]) -> bool:
        """Whether every partition has taken records since it had these ends."""
        return all(self.ends[partition] > end for partition, end in ends.items())

    def end(self) -> None:
        """Returns when all are acknowledged."""
        self._ending.set()
        self.join()
        assert self._producer.flush(GIVEN_UP_S) == 0

    def _delivered(self, error: KafkaError | None, record: Message) -> None:
        assert error is None, error
        self.acknowledged += 1
        partition, offset = record.partition(), record.offset()
        assert partition is not None
        if offset is not None:  # else the broker had it already, from a request whose answer was lost
            self.ends[partition] = max(self.ends[partition], offset + 1)


class Storm:
    """One mode's members and their topic, on a cluster whose nodes are struck."""

    def __init__(self, cluster: ApacheCluster, folder: Path, mode: str, seed: int) -> None:
        self.mode = mode
        self.topic, self.out, self.group = (f"{what}-{mode}-{seed}" for what in ("in", "out", "group"))
        self.took: defaultdict[str, list[Took]] = defaultdict(list)
        """By kind of strike."""
        self._cluster, self._folder, self._random = cluster, folder, random.Random(seed)
        self._looks: list[Look] = []
        self._admin = Admin({"bootstrap.servers": cluster.bootstrap})
        self._admin.create_topics(dict.fromkeys((self.topic, self.out), PARTITIONS), replication_factor=3)
        self.ledger = Ledger(folder / "ledger")
        self.stream = Stream(cluster.bootstrap, self.topic)
        self._members = [self._member(number) for number in range(1 if mode in ALONE else 2)]
        self.stream.start()
        least = 1 if mode == "dataframes" else 2
        self._until(lambda: len({one.member for one in self.ledger.entries()}) >= least, "all members have work")

    def _member(self, number: int) -> subprocess.Popen[str]:
        kafka = {"bootstrap.servers": self._cluster.bootstrap, "group.id": self.group}
        if self.mode == "kip-848":
            kafka["group.protocol"] = "consumer"
        options = {"mode": self.mode, "kafka": kafka, "topic": self.topic, "out": self.out}
        options |= {"ledger": str(self.ledger.path), "folder": str(self._folder)}
        command = [sys.executable, str(MEMBER), json.dumps(options)]
        with (self._folder / f"member-{number}.log").open("ab") as log:
            member = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        assert member.stdout is not None
        assert "ready\n" in iter(member.stdout.readline, ""), self._logs()
        return member

    # --- strikes ---

    def strike(self, kind: str) -> None:
        """A node goes, all partitions go on without it, and it comes back."""
        self._until(self._goes_on(), "it works before the strike")
        self._cluster.wait_until_in_sync()
        self._look()
        node = self._victim(kind)
        goes_on, ends, struck, starved = self._goes_on(), dict(self.stream.ends), time.monotonic(), starved_s()
        if kind == "frozen node":
            self._cluster.freeze(node)
        elif kind == "wiped disk":
            self._cluster.wipe(node)
        else:
            self._cluster.kill(node)
        self._until(lambda: self.stream.is_beyond(ends), f"the cluster without node {node} ({kind}) takes records")
        cluster_s = time.monotonic() - struck
        self._until(goes_on, f"it works after the strike at node {node} ({kind})")
        took_s = time.monotonic() - struck
        took = Took(cluster_s, took_s, starved_s() - starved)
        self.took[kind].append(took)
        sys.stdout.write(
            f"{self.mode}: {kind} (node {node}), went on after {took_s:.1f} s (the cluster after {cluster_s:.1f} s; "
            f"processes waited for a processor for {took.starved_s:.1f} s)\n"
        )
        sys.stdout.flush()
        self._look()
        if kind == "frozen node":
            self._cluster.wake(node)
        else:
            self._cluster.start(node)

    def _victim(self, kind: str) -> int:
        """A wiped or frozen node is one of the others, for what it is."""
        if kind in ("wiped disk", "frozen node"):
            kind = self._random.choice(_kinds(self.mode)[:3])
        if kind == "leader":
            return self._cluster.leader(self.topic, self._random.randrange(PARTITIONS))
        if kind == "coordinator":
            return self._cluster.coordinator(self.group)
        if kind == "controller":
            return self._cluster.controller()
        ids = [one for one in self._cluster.transactional_ids() if one.startswith(self.group)]
        return self._cluster.transaction_coordinator(self._random.choice(ids))

    def _goes_on(self) -> Callable[[], bool]:
        """Of every partition something is complete that was produced from now on."""
        ends = dict(self.stream.ends)

        def is_so() -> bool:
            committed = self._committed()
            return all(partition in committed and committed[partition].base > end for partition, end in ends.items())

        return is_so

    def _committed(self) -> dict[int, OffsetMap]:
        """As the nodes that live tell it; empty while none does."""
        found = self._cluster.committed(self.group, self.topic, PARTITIONS) or {}
        return {partition: decode(metadata, offset) for partition, (offset, metadata) in found.items()}

    def _look(self) -> None:
        committed = {(self.topic, partition): one for partition, one in self._committed().items()}
        self._looks.append((self.ledger.length(), committed))

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + GIVEN_UP_S
        while not condition():
            assert all(member.poll() is None for member in self._members), f"a member has ended: {self._logs()}"
            assert time.monotonic() < deadline, (
                f"never: {what}; {self._committed()} of {self.stream.ends}: {self._logs()}"
            )
            time.sleep(0.1)

    def _logs(self) -> str:
        return "\n".join(file.read_text(errors="replace")[-3_000:] for file in self._folder.glob("member-*.log"))

    # --- the end ---

    def finish(self) -> None:
        """All that was produced is worked off, and the members end as they are asked to."""
        self.stream.end()
        ends = self._ends(self.topic)
        self._until(lambda: {one: found.base for one, found in self._committed().items()} == ends, "all is committed")
        for member in self._members:
            member.send_signal(signal.SIGTERM)
        codes = [member.wait(GIVEN_UP_S) for member in self._members]
        assert codes == [0] * len(codes), self._logs()

    def check(self) -> None:
        """The verdict."""
        records = {(one.topic, one.partition, one.offset): one.key for one in self._read(self.topic)}
        # A record may be there twice: a node that takes a retry need not know what a wiped one knew of it.
        assert len(records) >= self.stream.acknowledged, "acknowledged records that are not in the log"
        lost = records.keys() - self.ledger.done_times().keys()
        assert not lost, f"lost: {sorted(lost)[:10]}"
        again = self.ledger.run_again(self._looks, "key")
        assert again == [], f"acknowledged, and run again: {again[:10]}"
        disorders = self.ledger.disorders("key", records.items())
        assert disorders == [], f"{len(disorders)} disorders: {disorders[:10]}"
        self._check_what_came_of_it(records)
        runs = sum(self.ledger.done_times().values())
        took = {kind: [f"{one.took_s:.1f}" for one in found] for kind, found in self.took.items()}
        sys.stdout.write(
            f"{self.mode}: {sum(map(len, took.values()))} strikes, {len(records):,} records, {runs:,} runs: lost 0, "
            f"disorders 0, acknowledged and run again 0 ({len(self._looks)} looks); went on after, s: {took}\n"
        )
        late = [(kind, one) for kind, found in self.took.items() for one in found if one.is_late()]
        assert not late, f"it did not go on within {GOES_ON_S:.0f} s: {late}"

    def _check_what_came_of_it(self, records: dict[Source, bytes]) -> None:
        """Outputs, as another client reads those that are committed; rows in a database; files of a sink."""
        expected = {(partition, offset) for _, partition, offset in records}
        if self.mode == "dataframes":
            files = [json.loads(file.read_text()) for file in self._folder.glob("*.json")]
            rows = [(partition, offset) for file in files for partition, offset in file]
            assert Counter(rows) == Counter(expected), "rows in the sink"
            return
        outputs = [(one.partition, int(one.value)) for one in self._read(self.out)]
        assert set(outputs) == expected, "records with an output"
        if self.mode == "transactional":
            assert Counter(outputs) == Counter(expected), "each output once"
            self._check_order([(records[self.topic, *output], output[1]) for output in outputs])
        if self.mode == "exactly_once":
            with sqlite3.connect(self._folder / "copied.db") as database:
                stored = Counter(database.execute("SELECT part, at FROM copied"))
            assert stored == Counter(expected), "each row once"

    def _check_order(self, outputs: list[tuple[bytes, int]]) -> None:
        last: dict[bytes, int] = {}
        for key, offset in outputs:
            assert last.get(key, -1) < offset, f"{key!r}: {offset} is seen behind {last[key]}"
            last[key] = offset

    def _ends(self, topic: str) -> dict[int, int]:
        found = self._admin.log_ends([(topic, partition) for partition in range(PARTITIONS)], read_committed=False)
        return {partition: end or 0 for (_, partition), end in found.items()}

    def _read(self, topic: str) -> list[Any]:
        """What another client reads of it, committed records alone."""
        ends = {(topic, partition): end for partition, end in self._ends(topic).items()}
        return committed_records(self._cluster.bootstrap, ends)

    def close(self) -> None:
        for member in self._members:
            if member.poll() is None:
                os.killpg(member.pid, signal.SIGKILL)
                member.wait()
            assert member.stdout is not None
            member.stdout.close()
        self.ledger.close()


def _kinds(mode: str) -> list[str]:
    return [*KINDS] if mode == "transactional" else [*KINDS[:-1]]


def storm(cluster: ApacheCluster, folder: Path, mode: str, kinds: list[str], seed: int) -> None:
    running = Storm(cluster, folder, mode, seed)
    try:
        for kind in kinds:
            running.strike(kind)
        running.finish()
    finally:
        running.close()
    running.check()


@pytest.mark.cluster
@pytest.mark.parametrize("mode", MODES)
def test_a_short_storm(cluster: ApacheCluster, tmp_path: Path, mode: str) -> None:
    """One node of each kind dies under transactions; a leader and a coordinator under each other mode."""
    kinds = _kinds(mode) if mode == "transactional" else _kinds(mode)[:2]
    storm(cluster, tmp_path, mode, kinds, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
def test_a_long_storm(cluster: ApacheCluster, tmp_path: Path, mode: str) -> None:
    kinds = list(itertools.islice(itertools.cycle(_kinds(mode)), KILLS))
    random.Random(mode).shuffle(kinds)
    storm(cluster, tmp_path, mode, kinds, seed=2)
