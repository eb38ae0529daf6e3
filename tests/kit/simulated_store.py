"""The exactly-once store of a simulation: a database that goes back in time, under logs that become other ones.

The idea: the handlers, the starts and the commits of a simulated member go through the real `Once` and a real SQLite
file, of which copies are put back. Whatever happens, each record of a log has its effect in the database once, or the
member has ended with an error that names it, and the way out that the documentation gives was followed.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import TYPE_CHECKING, Any

import keylane as kl
from keylane.consumer.start import Start as OnceStart
from keylane.delivery import SqliteStore
from keylane.delivery.checksums import checksum
from keylane.delivery.exactly_once import Once
from keylane.desk.stores import StoreDesk
from keylane.errors import PeerError, StoreError
from keylane.flow.workers.calls import failure_of
from keylane.kafka.admin import CommittedOffset
from kit.seam import Committed, Raised
from kit.simulated_log import TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from keylane.kafka.log_changes import Reached
    from keylane.pipeline import Pipeline
    from kit.seam import Entry, Item, Outcome, Start
    from kit.simulated_log import Log, TopicPartition
    from kit.simulation import Simulation

CLUSTER = "simulated cluster"
NOT_SEEN = "this store has not seen"
ANEW = "was deleted and made anew"


class SimulatedStore:
    """The database, its older copy, and the member that uses it now."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._folder = TemporaryDirectory(prefix="keylane-simulated-")
        self._live, self._copy = (Path(self._folder.name) / name for name in ("live.db", "copy.db"))
        self.store = SqliteStore(str(self._live))
        self._member: Once | None = None
        self._opened = ExitStack()
        self._outputs: Outcome = None
        """What the handler that runs now returns."""
        self._topic_number = 0
        self._may_repeat: set[bytes] = set()
        """Of whose records `forget` has said that it cannot know."""
        self._rewinds = False
        with sqlite3.connect(self._live) as database:
            database.execute("CREATE TABLE effects (value BLOB)")
        self.store.open().close()
        self._back_up()

    # --- a member ---

    def delivery(self) -> kl.ExactlyOnce:
        rewinds, self._rewinds = self._rewinds, False
        return kl.ExactlyOnce(self.store, unseen_commits="rewind" if rewinds else "error")

    def begin(self, pipeline: Pipeline) -> None:
        """A process starts; the one before is dead, and has purged nothing."""
        self._opened.close()
        pipeline = replace(pipeline, handler=self._book)
        once = self._member = Once(pipeline, CLUSTER, lambda _: self._topic_id, changes=self._changes)
        once._house._timer = Timer(0, print)
        assert once.pipeline.resource is not None
        self._opened = ExitStack()
        self._opened.callback(once._house._disconnect)
        self._opened.enter_context(once.pipeline.resource())

    def check(self, starts: Sequence[Start]) -> list[Start] | None:
        """Where the member starts; None when it is refused, and a way out was taken."""
        assert self._member is not None
        given = [
            OnceStart(
                *one.name,
                one.epoch,
                one.offsets,
                one.log_start,
                one.log_end,
                leader_epoch=one.leader_epoch,
                is_new=self._is_new(one.name),
            )
            for one in starts
        ]
        try:
            checked = self._member.check(given)
        except PeerError as error:
            self.refused(error)
            return None
        return [one._replace(offsets=other.offsets) for one, other in zip(starts, checked, strict=True)]

    def handle(self, item: Item, outcome: Outcome) -> Outcome:
        """The handler's call, which would have this outcome."""
        assert self._member is not None
        self._outputs = outcome
        handler: Any = self._member.pipeline.handler
        try:
            made: Outcome = handler(kl.Record(item.message), kl.Context(None))
        except Exception as error:
            failure = failure_of(error)
            return Raised(failure.error, failure.final, failure.halts)
        self._check_once([item.message.value()])
        return made

    def note(self, entries: Sequence[Entry]) -> bool:
        """The member is about to commit this; False when it is not to."""
        assert self._member is not None
        try:
            self._member.before_commit(entries)
        except StoreError as error:
            self.refused(error)
            return False
        return True

    def committed(self, name: TopicPartition, offset: int) -> None:
        assert self._member is not None
        self._member._house.note({name: offset})

    def keep_house(self) -> bool:
        """As the member does from time to time; False when its store has gone back."""
        assert self._member is not None
        house = self._member._house
        try:
            house._look_back()
        except StoreError as error:
            self.refused(error)
            return False
        house._purge()
        return True

    def refused(self, error: BaseException) -> None:
        """By name; the way out is taken that the error has."""
        text = str(error)
        if ANEW in text or (NOT_SEEN in text and self._world.random.random() < 0.5):
            self._rewinds = True
        elif "`keylane store forget`" in text or NOT_SEEN in text:
            self._forget()
        else:
            self._world.check("start again" in text, "refused without a way out: {}", text)
        kinds = (NOT_SEEN, ANEW, "has lost", "another record", "is purged")
        self._world.seen[next((one for one in kinds if one in text), "refused")] += 1

    # --- what happens to it ---

    def back_up(self) -> None:
        self._world.seen["store copied"] += 1
        self._back_up()

    def put_back(self) -> None:
        """It is what it was when it was copied last: restored, or a replica that was behind takes over."""
        self._world.seen["store put back"] += 1
        self._copy_over(self._copy, self._live)

    def make_topic_anew(self) -> None:
        self._topic_number += 1
        self._world.seen["made anew"] += 1

    # --- what is true ---

    def check_all(self, logs: Iterable[Log]) -> None:
        """Each record that the logs still have has its effect."""
        effects = self._effects()
        for log in logs:
            there = {offset: record for offset, record in log.records.items() if offset >= log.start}
            lost = [offset for offset, record in there.items() if not effects[record.value() or b""]]
            self._world.check(not lost, "{}: {} are committed, and have no effect", log.name, lost)
            self._check_once([record.value() for record in log.records.values()])

    def _check_once(self, values: Iterable[bytes | None]) -> None:
        effects = self._effects()
        twice = [one for one in values if one not in self._may_repeat and effects[one or b""] > 1]
        self._world.check(not twice, "{} have their effect twice", twice)

    def _effects(self) -> Counter[bytes]:
        with sqlite3.connect(self._live) as database:
            return Counter(value for (value,) in database.execute("SELECT value FROM effects"))

    def _book(self, record: kl.Record, context: Any) -> Any:
        context.transaction.execute("INSERT INTO effects VALUES (?)", (record.value,))
        return self._outputs

    @property
    def _topic_id(self) -> str:
        return f"topic {self._topic_number}"

    def _changes(self, starts: Sequence[OnceStart]) -> dict[TopicPartition, int | None]:
        """What leaders say of the epochs of these starts."""
        logs = self._world.logs
        return {(one.topic, one.partition): logs[one.partition].end_of(one.leader_epoch) for one in starts}

    def _is_new(self, name: TopicPartition) -> bool:
        return self._world.logs[name[1]].committed is None

    def _back_up(self) -> None:
        self._copy_over(self._live, self._copy)

    def _copy_over(self, source: Path, target: Path) -> None:
        one, other = sqlite3.connect(source), sqlite3.connect(target)
        one.backup(other)
        one.close()
        other.close()

    def _forget(self) -> None:
        """What `keylane store check` tells apart: a log that is another one, for `forget`, and a group that was set
        back, whose offset is set to what is purged."""
        desk = Desk(self._world, self._topic_id, self.store)
        findings = desk.look()
        for one in findings:
            log = self._world.logs[one.name[1]]
            if one.comparison.unsure and one.start is not None:
                self._may_repeat |= {record.value() or b"" for at, record in log.records.items() if at >= one.start}
            elif one.is_well and log.committed is not None and log.committed.offset < one.kept.below:
                log.committed = Committed(one.kept.below)
        desk.forget(findings)
        self._world.seen["forgotten"] += 1

    def close(self) -> None:
        self._opened.close()
        self._folder.cleanup()


class Desk(StoreDesk):
    """`keylane store` beside the simulated logs and group."""

    def __init__(self, world: Simulation, topic_id: str, store: SqliteStore) -> None:
        self._logs = world.logs
        pipeline = replace(world.pipeline, delivery=kl.ExactlyOnce(store))
        super().__init__(SimulatedAdmin(world, topic_id), pipeline)  # type: ignore[arg-type]

    def _changes(self, reached: Mapping[TopicPartition, Reached]) -> dict[TopicPartition, int | None]:
        return {
            name: self._logs[name[1]].change_since(one.offset, one.leader_epoch, has_map=one.has_map)
            for name, one in reached.items()
        }

    def _log(self, name: TopicPartition, log_start: int, log_end: int) -> Iterator[tuple[int, int]]:
        for offset, record in sorted(self._logs[name[1]].records.items()):
            if log_start <= offset < log_end:
                yield offset, checksum(record.key(), record.value(), record.timestamp()[1])


class SimulatedAdmin:
    """What a desk asks."""

    def __init__(self, world: Simulation, topic_id: str) -> None:
        self._logs, self._topic_id = world.logs, topic_id

    def cluster_id(self) -> str:
        return CLUSTER

    def topic_id(self, _: str) -> str:
        return self._topic_id

    def topics(self) -> dict[str, int]:
        return {TOPIC: len(self._logs)}

    def log_starts(self, _: object) -> dict[TopicPartition, int]:
        return {log.name: log.start for log in self._logs}

    def log_ends(self, _: object, *, read_committed: bool) -> dict[TopicPartition, int]:
        return {log.name: log.end for log in self._logs}

    def committed_offsets(self, _: str) -> dict[TopicPartition, CommittedOffset]:
        return {
            log.name: CommittedOffset(one.offset, one.metadata, one.leader_epoch)
            for log in self._logs
            if (one := log.committed) is not None
        }

    def commit_offsets(self, _: str, offsets: dict[TopicPartition, int]) -> None:
        for (_, partition), offset in offsets.items():
            self._logs[partition].committed = Committed(offset)
