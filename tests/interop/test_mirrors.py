"""The real MirrorMaker 2, there and back: groups fail over to the other cluster, work there, and fail back.

One group for each guarantee, with a gap in its commit where the guarantee leaves one. Offsets differ between the
clusters (retention took a thousand records before the mirror came) or are the same. Nothing is lost on either way, and
a guarantee that a repeat would break refuses the start until it is told to run again. Exactly once in a store, by keys
under a scope that holds in both clusters, has one effect of each record nonetheless.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import peers
import pytest
from peers.mirror import mirroring

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.soak

WAIT_S = 180.0
PROPERTIES = """\
clusters = from, to
from.bootstrap.servers = {source}
to.bootstrap.servers = {target}
from->to.enabled = true
to->from.enabled = false
from->to.topics = {topics}
from->to.groups = {groups}
from->to.sync.group.offsets.enabled = true
from->to.sync.group.offsets.interval.seconds = 1
from->to.emit.checkpoints.interval.seconds = 1
from->to.refresh.groups.interval.seconds = 1
from->to.refresh.topics.interval.seconds = 1
from->to.replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
dedicated.mode.enable.internal.rest = false
"""
MODES = ("at_least_once", "at_most_once", "almost_once", "transactional", "exactly_once")
RECORDS = 200
WORK = 60
"""Records that are new in the other cluster."""


class Group:
    """A group of one guarantee, in whichever cluster it is, and what its handlers have done."""

    def __init__(self, mode: str, folder: Path) -> None:
        self.mode = mode
        self.name = mode.replace("_", "-")
        self.done: Counter[int] = Counter()
        """Runs of the handler, by value."""
        self.outputs = f"out-{self.name}"
        self._released = threading.Event()
        self._held = -1
        self._store = str(folder / "effects.db")
        self._delivery: Any = mode
        if mode == "exactly_once":
            self._delivery = kl.ExactlyOnce(self._store, identity=lambda record: record.key, scope="shop")
            with closing(sqlite3.connect(self._store)) as database:
                database.execute("CREATE TABLE effects (value INTEGER)")

    @property
    def topic(self) -> str:
        return f"in-{self.name}"

    def stage(self, servers: str) -> Stage:
        return Stage(servers, self.name, group=f"group-{self.name}")

    def effects(self) -> Counter[int]:
        if self.mode != "exactly_once":
            return self.done
        with closing(sqlite3.connect(self._store)) as database:
            return Counter(value for (value,) in database.execute("SELECT value FROM effects"))

    def check_outputs(self, servers: str) -> None:
        """That what was produced in this cluster, where the group never was before, is there once."""
        if self.mode == "transactional":
            outputs = Counter(one.value for one in self.stage(servers).read(self.outputs))
            assert len(outputs) >= RECORDS
            assert set(outputs.values()) == {1}, outputs

    def _handle(self, record: kl.Record, context: kl.Context) -> kl.Output | None:
        assert record.value is not None
        value = int(record.value)
        released = self._released
        if value == self._held and not released.wait(60):
            raise kl.Fatal("it is held")
        if self.mode == "exactly_once":
            context.transaction.execute("INSERT INTO effects VALUES (?)", (value,))
        self.done[value] += 1
        return kl.Output(self.outputs, value=record.value) if self.mode == "transactional" else None

    def _pipeline(self, servers: str, **commit: Any) -> kl.Pipeline:
        return self.stage(servers).pipeline(
            self._handle,
            delivery=self._delivery,
            drain_timeout_ms=300,
            outputs=[self.outputs] if self.mode == "transactional" else [],
            commit=kl.Commit(interval_ms=100, **commit),
        )

    def check(self, values: range) -> str:
        """That none of these is lost, and which had more effects than one; runs, where no effect is promised."""
        effects = self.effects()
        lost = set(values) - effects.keys()
        assert not lost, f"{self.mode} has lost {sorted(lost)}"
        twice = sum(effects[value] > 1 for value in values)
        if self.mode == "exactly_once":
            assert not twice, f"effects more than once: {effects}"
        return f"{self.mode}: lost {len(lost)} of {len(values)}, twice {twice}"

    def leave_a_gap(self, servers: str, held: int, until_value: int) -> None:
        """Run, and stop while one record is held: but at most once, as it would have begun and never run again."""
        self._held, self._released = -1 if self.mode == "at_most_once" else held, threading.Event()
        wanted = set(range(until_value)) - {self._held}
        member = ThreadMember(self._pipeline(servers), self.name)
        try:
            until(lambda: wanted <= self.done.keys(), lambda: f"{self.name}: {len(wanted - self.done.keys())} are left")
            until(
                lambda: not any(one.uncommitted for one in member.consumer.snapshot().partitions), "that is committed"
            )
        finally:
            member.consumer.stop()
            member.end()
        self._held = -1

    def run_to_the_end(self, servers: str) -> str:
        """Why the start was refused, if it was; it is made again with a repeat."""
        try:
            self._run(self._pipeline(servers))
        except kl.PeerError as error:
            refusal = str(error)
        else:
            return ""
        self._run(self._pipeline(servers, on_copied_map="run_again"))
        return refusal

    def _run(self, pipeline: kl.Pipeline) -> None:
        with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
            consumer.run()


def fill(servers: str, groups: list[Group], values: range) -> None:
    with BulkProducer(servers) as producer:
        for group in groups:
            for value in values:
                producer.produce(kl.Output(group.topic, b"%d" % value, b"%d" % value, partition=0))


def copy(source: str, target: str, groups: list[Group], folder: Path) -> None:
    """Until the records and the commits of all groups are there."""
    folder.mkdir()
    there, here = Admin({"bootstrap.servers": target}), Admin({"bootstrap.servers": source})
    names = [(one.topic, 0) for one in groups]

    def length(admin: Admin, name: tuple[str, int]) -> int:
        return (admin.log_ends([name], read_committed=False)[name] or 0) - (admin.log_starts([name])[name] or 0)

    def is_copied() -> bool:
        known = there.topics()
        return all(
            one.topic in known
            and length(there, (one.topic, 0)) >= length(here, (one.topic, 0))
            and (one.topic, 0) in there.committed_offsets(f"group-{one.name}", [one.topic])
            for one in groups
        )

    assert names
    what = {
        "topics": ",".join(one.topic for one in groups),
        "groups": ",".join(f"group-{one.name}" for one in groups),
    }
    with mirroring(PROPERTIES.format(source=source, target=target, **what), folder):
        until(is_copied, lambda: (folder / "mirror.log").read_text(errors="replace")[-2_000:], WAIT_S)


@pytest.mark.parametrize("before", [1_000, 0], ids=["other offsets", "equal offsets"])
def test_nothing_is_lost_there_or_back(
    jvm_peers: None, tmp_path: Path, before: int, capsys: pytest.CaptureFixture[str]
) -> None:
    del jvm_peers
    groups = [Group(mode, tmp_path) for mode in MODES]
    names = {one.topic: 1 for one in groups}
    outputs = {one.outputs: 1 for one in groups if one.mode == "transactional"}
    with peers.ApacheKafka(heap_mb=400) as first, peers.ApacheKafka(heap_mb=400) as second:
        here, there = (Admin({"bootstrap.servers": one.bootstrap}) for one in (first, second))
        here.create_topics(names | outputs)
        there.create_topics(outputs)
        if before:
            fill(first.bootstrap, groups, range(-before, 0))
            here.delete_records({(one.topic, 0): before for one in groups})
        fill(first.bootstrap, groups, range(RECORDS))
        for one in groups:
            one.leave_a_gap(first.bootstrap, 10, RECORDS)
        copy(first.bootstrap, second.bootstrap, groups, tmp_path / "there")

        there_refused = {one.mode: one.run_to_the_end(second.bootstrap) for one in groups}
        counts = [f"there, {one.check(range(RECORDS))}" for one in groups]
        fill(second.bootstrap, groups, range(RECORDS, RECORDS + WORK))
        for one in groups:
            one.leave_a_gap(second.bootstrap, RECORDS + 10, RECORDS + WORK)
            one.check_outputs(second.bootstrap)

        here.delete_topics(list(names))
        for one in groups:
            here.delete_group(f"group-{one.name}")
        until(lambda: not names.keys() & here.topics().keys(), "the first cluster is empty")
        fill(second.bootstrap, groups, range(RECORDS + WORK, RECORDS + WORK + 5))
        there.delete_records({(one.topic, 0): 50 for one in groups})
        copy(second.bootstrap, first.bootstrap, groups, tmp_path / "back")
        back_refused = {one.mode: one.run_to_the_end(first.bootstrap) for one in groups}
        counts += [f"back, {one.check(range(RECORDS + WORK + 5))}" for one in groups]
        for refused in (there_refused, back_refused):
            assert not refused.pop("at_least_once")
            assert all("was copied by another program" in why for why in refused.values()), refused
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(counts) + "\n")
