"""Unclean leader elections on three nodes: a log is cut below what groups have committed, and new records take the old
offsets.

In each round a node alone has the last records of a partition, and dies; the one that is elected had not copied them.
Meanwhile one group is stopped with all of it done, another one is stopped with a gap, and a third one runs. Afterwards
each has run every record that the log has, nothing ran again that was before the cut, and an offset beyond the cut was
refused with the command that goes on. Under exactly once (in transactions, and in a SQL store) effects are counted in
place of runs: one of each record that the log has.

`make soak ARGS="tests/cluster/test_cut_logs.py -s"`. KEYLANE_CUTS: rounds (20).
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import threading
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import peers
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # exported untyped
from peers.cluster import NODES, ApacheCluster

import keylane as kl
from keylane.cli import main
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROUNDS = int(os.environ.get("KEYLANE_CUTS", "20"))
MODES = ("at_least_once", "at_most_once", "almost_once", "transactional", "exactly_once")
EXACT = ("transactional", "exactly_once")
PROGRAM = """
import keylane as kl

pipeline = kl.Pipeline(kafka={kafka!r}, topics=[{topic!r}], handler=print, delivery=kl.ExactlyOnce({store!r}))
"""
"""For `keylane store`."""
QUICK = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
"""A node that is dead leaves those in sync 3 s later."""
HELD = 10
"""The value of the record that is held, where there is a gap."""

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApacheCluster]:
    if what := peers.missing():
        pytest.skip(what)
    with ApacheCluster(QUICK) as cluster:
        yield cluster


class Group:
    """A group that reads the topic in one mode, and what its handlers have done."""

    def __init__(self, cluster: ApacheCluster, topic: str, name: str, mode: str, folder: Path) -> None:
        self.stage = Stage(cluster.bootstrap, topic, group=f"{topic}-{name}")
        self.mode = mode
        self.done: Counter[int] = Counter()
        """Runs of the handler, by value."""
        self.released = threading.Event()
        self._lock = threading.Lock()
        self.member: ThreadMember | None = None
        self.outputs = f"out-{topic}-{name}"
        self._store = str(folder / f"{name}.db")
        self._file = folder / f"{name}.py"
        self._file.write_text(PROGRAM.format(kafka=self.stage.kafka, topic=self.stage.topic, store=self._store))
        if mode == "exactly_once":
            with closing(sqlite3.connect(self._store)) as database:
                database.execute("CREATE TABLE effects (value INTEGER)")

    def _handle(self, record: kl.Record, context: kl.Context) -> kl.Output | None:
        assert record.value is not None
        value = int(record.value)
        if value == HELD:
            self.released.wait()
        if self.mode == "exactly_once":
            context.transaction.execute("INSERT INTO effects VALUES (?)", (value,))
        with self._lock:
            self.done[value] += 1
        return kl.Output(self.outputs, value=record.value) if self.mode == "transactional" else None

    def effects(self) -> Counter[int]:
        """What counts: a record that is held may begin more than once where that is not promised."""
        if self.mode == "exactly_once":
            with closing(sqlite3.connect(self._store)) as database:
                return Counter(value for (value,) in database.execute("SELECT value FROM effects"))
        if self.mode == "transactional":
            return Counter(int(record.value or b"") for record in self.stage.read(self.outputs))
        return Counter({value: 1 if value == HELD else count for value, count in self.done.items()})

    def pipeline(self) -> kl.Pipeline:
        delivery: Any = kl.ExactlyOnce(self._store) if self.mode == "exactly_once" else self.mode
        outputs = [self.outputs] if self.mode == "transactional" else []
        return self.stage.pipeline(
            self._handle,
            delivery=delivery,
            outputs=outputs,
            commit=kl.Commit(interval_ms=100),
            drain_timeout_ms=300,
        )

    def start(self) -> None:
        self.member = ThreadMember(self.pipeline(), self.stage.group)

    def await_all_but_the_held(self, values: range) -> None:
        wanted = set(values) - {HELD}
        until(lambda: wanted <= self.done.keys(), lambda: f"{self.stage.group} has {len(self.done)} of {len(wanted)}")
        until(self._is_committed, f"{self.stage.group} commits", 20)

    def _is_committed(self) -> bool:
        assert self.member is not None
        return not any(one.uncommitted for one in self.member.consumer.snapshot().partitions)

    def stop(self) -> str:
        """What it failed with, if it did."""
        assert self.member is not None
        self.member.consumer.stop()
        try:
            self.member.end()
        except kl.KeylaneError as error:
            return str(error)
        return ""

    def run_to_the_end(self) -> list[str]:
        """The commands that went on, where the start was refused."""
        self.released.set()
        commands: list[str] = []
        while True:
            try:
                with kl.ParallelConsumer(self.pipeline(), ending_offsets="latest") as consumer:
                    consumer.run()
            except kl.KeylaneError as error:
                refusal = str(error)
            else:
                return commands
            commands.append(self._way_out(refusal))
            assert len(set(commands)) == len(commands), f"a way out that is none: {refusal}"

    def _way_out(self, refusal: str) -> str:
        """Do what a refusal says."""
        if "its log was cut at" in refusal:
            command = refusal.split("`")[1]
            assert main([*command.split()[1:], "--bootstrap", self.stage.servers]) == 0
            return command
        assert self.mode == "exactly_once", refusal
        assert "keylane store forget" in refusal, refusal
        assert main(["store", "forget", str(self._file), "--execute"]) == 0
        return "keylane store forget"


def produce(cluster: ApacheCluster, topic: str, values: range, acks: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": acks})
    answers: list[Any] = []
    for value in values:
        producer.produce(topic, b"%d" % value, b"%d" % value, on_delivery=lambda error, _: answers.append(error))
    assert producer.flush(60) == 0
    assert answers == [None] * len(values)


def make_topic(cluster: ApacheCluster, topic: str, first: int, second: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    for made in admin.create_topics([NewTopic(topic, 1, replica_assignment=[[first, second]], config=config)]).values():
        made.result()


def in_sync(cluster: ApacheCluster, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    found = admin.list_topics(topic, timeout=10).topics[topic].partitions
    return len(found[0].isrs) if 0 in found else 0


@pytest.mark.parametrize("number", range(ROUNDS))
def test_nothing_that_is_there_is_lost_and_nothing_before_the_cut_runs_again(
    cluster: ApacheCluster,
    number: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    chance = random.Random(number)
    topic = f"in-cut-{number}"
    first, second = chance.sample(NODES, 2)
    cut, lost, new = chance.randint(20, 120), chance.randint(1, 120), chance.randint(1, 250)
    mode = MODES[number % len(MODES)]
    cluster.wait_until_in_sync()
    make_topic(cluster, topic, first, second)
    request.addfinalizer(lambda: gap.stage.admin.delete_topics([topic]))  # it never has three copies
    until(lambda: in_sync(cluster, topic) == 2, "both copies")
    produce(cluster, topic, range(cut), "all")
    names = ("done", "gap", "running")
    groups = [Group(cluster, topic.removeprefix("in-"), name, mode, tmp_path) for name in names]
    done, gap, running = groups
    if mode == "transactional":
        gap.stage.admin.create_topics({one.outputs: 1 for one in groups}, replication_factor=len(NODES))
    done.released.set()

    cluster.kill(second)
    until(lambda: in_sync(cluster, topic) == 1, "one copy")
    before = range(cut + lost)
    produce(cluster, topic, before[cut:], "1")
    for one in groups:
        one.start()
    for one in groups:
        one.await_all_but_the_held(before)
    assert (done.stop(), gap.stop()) == ("", "")

    cluster.kill(first)
    cluster.start(second)
    until(lambda: cluster.leaders(topic).get(0) == second, "the one that was behind leads")
    after = range(1_000, 1_000 + new)
    produce(cluster, topic, after, "1")
    member = running.member
    assert member is not None
    # It ends; or it was given the partition anew, because the group's coordinator has died as well, and goes on.
    until(
        lambda: not member.thread.is_alive() or set(after) <= running.done.keys(),
        lambda: f"the running one notices: {member.consumer.snapshot()}",
    )
    why = running.stop()
    assert "its log was cut" in why or "keylane store" in why or set(after) <= running.done.keys(), why
    cluster.start(first)
    until(lambda: in_sync(cluster, topic) == 2, "both copies again")

    ways = {one.stage.group: one.run_to_the_end() for one in groups}
    capsys.readouterr()
    there = {*range(cut), *after}
    found = {one.stage.group: one.effects() for one in groups}
    for name, effects in found.items():
        missing = there - effects.keys()
        again = {value: count for value, count in effects.items() if count > 1 and (value < cut or mode in EXACT)}
        assert not missing, f"{name} ({mode}) has lost {sorted(missing)[:9]}; {ways}"
        assert not again, f"{name} ({mode}) ran again {again}; {ways}"
    ended = f"ended: {why}" if why else "went on"
    with capsys.disabled():
        sys.stdout.write(
            f"\n{number}: {mode}, cut at {cut} of {cut + lost}, {new} new: lost 0 of {len(there)}, twice 0 in each of "
            f"{len(groups)} groups; the running one {ended}; {ways}\n"
        )
