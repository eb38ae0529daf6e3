"""Dead letters back to their topics, each once.

The idea: the letters are read from the start of their topic, and `Redrive` says of each whether it goes, and where: it
keeps the redrive's position as a partition tracker, the same that a consumer has. What came back is complete there;
what was not wanted, or could not go, is not, and another redrive may send it. Lots of letters are one transaction each,
with the position behind them.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from keylane.consumer.dead_letters import read, redriven
from keylane.errors import UsageError
from keylane.kafka.redriving import Redriving, read_committed
from keylane.kafka.sizes import Limits
from keylane.offsets import DispatchBound, OffsetMap, PartitionTracker, encode
from keylane.offsets.read_epoch import ReadEpoch
from keylane.records import Output, carried_headers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keylane.consumer.dead_letters import Letter
    from keylane.desk import Report
    from keylane.desk.letters import Queue, Wanted
    from keylane.records import Record

LOT = 500
"""Letters in one transaction, at most."""

METADATA_CAP = 4_096
"""Characters of a commit's metadata: brokers' default of `offset.metadata.max.bytes`."""

LEFT = {
    "rounds": "came back as often as --max-rounds allows",
    "no topic": "do not say where the record was: name a topic with --to",
    "missing topic": "are of a topic that does not exist: create it, or name another one with --to",
    "own topic": "are of the dead-letter topic itself: name another one with --to",
    "no copy": "have neither key nor value: the share group's errors.deadletterqueue.copy.record.enable is off",
    "too far": "are too far behind letters that wait to be remembered: redrive or purge those first",
    "no map": "are of partitions in which the group has no commit, or none with an offset map",
    "not complete": "are of records that are not complete in the group: they run without that",
    "other record": "are of another log: the topic has another record there now; send the letters' copies, without "
    "--in-group",
    "deleted": "are of records that the log has no longer: send the letters' copies, without --in-group",
    "unknown": "were begun by a member that did not say how that ended: `keylane records show` says where they stand",
    "refused": "were not replayed: `keylane operate log` says why",
}
"""Why a letter that was wanted did not go."""


class Position(NamedTuple):
    """How far a redrive has got in a partition."""

    name: tuple[str, int]
    offset: int
    metadata: str
    leader_epoch: int = -1


@dataclass(slots=True)
class Redrive:
    """Which letters go where, and how far that has got. Pure: it neither reads nor produces."""

    topic: str
    wanted: Wanted
    partitions: Mapping[str, int]
    """How many each topic has."""
    to: str | None = None
    max_rounds: int = 3
    trackers: dict[int, PartitionTracker] = field(default_factory=dict)
    epochs: dict[int, ReadEpoch] = field(default_factory=dict)
    before: int = 0
    """Letters that came back earlier."""
    others: int = 0
    """Letters that are not wanted."""
    left: Counter[str] = field(default_factory=Counter)
    going: Counter[str] = field(default_factory=Counter)
    """Letters that go, by topic."""
    refusals: set[str] = field(default_factory=set)
    """What members said that did not let records run again."""

    def begin(self, starts: Mapping[int, int], committed: Mapping[int, OffsetMap]) -> None:
        """From what is committed, or else from where the log of each partition starts."""
        for partition, start in starts.items():
            self.trackers[partition] = PartitionTracker(committed.get(partition, start))
            self.trackers[partition].drop_below(start)
            self.epochs[partition] = ReadEpoch(committed.get(partition, OffsetMap(start)))

    def observe(self, records: Iterable[Record]) -> None:
        """These are read; those of a partition in their order."""
        offsets: dict[int, list[int]] = {}
        for record in records:
            offsets.setdefault(record.partition, []).append(record.offset)
            self.epochs[record.partition].observe(record.offset, record.leader_epoch)
        for partition, found in offsets.items():
            self.trackers[partition].observe(found)

    def goes(self, record: Record) -> Output | None:
        """What to produce for an observed letter, which then counts as back; None when it does not go."""
        if (letter := self.chosen(record)) is None:
            return None
        topic = self.to or letter.death.topic
        if (reason := self.why_not(record, letter)) is not None or topic is None:
            self.left[reason or "no topic"] += 1
            return None
        self.settle([record], topic)
        partition = letter.death.partition
        is_there = self.to is None and partition is not None and partition < self.partitions[topic]
        return Output(
            topic, record.raw_key, record.raw_value, redriven(letter), partition=partition if is_there else None
        )

    def chosen(self, record: Record) -> Letter | None:
        """What an observed letter says that is wanted, and did not come back."""
        if self.trackers[record.partition].is_complete(record.offset):
            self.before += 1
            return None
        letter = read(carried_headers_of(record.message))
        if not self.wanted.has(record, letter.death):
            self.others += 1
            return None
        return letter

    def settle(self, letters: Iterable[Record], topic: str) -> None:
        """These count as back."""
        for one in letters:
            self.trackers[one.partition].complete([one.offset])
            self.going[topic] += 1

    def why_not(self, record: Record, letter: Letter, more_rounds: int = 0) -> str | None:
        """Why a letter does not go, as `LEFT` has it; None where it does."""
        topic = self.to or letter.death.topic
        if letter.rounds + more_rounds >= self.max_rounds:
            return "rounds"
        if topic is None:
            return "no topic"
        if topic == self.topic:
            return "own topic"
        if topic not in self.partitions:
            return "missing topic"
        if letter.death.kind == "share group" and record.raw_key is None and record.raw_value is None:
            return "no copy"
        limit = self.trackers[record.partition].dispatch_limit(DispatchBound.for_cap(METADATA_CAP))
        return "too far" if record.offset > limit else None

    def positions(self, partitions: Iterable[int]) -> list[Position]:
        """What a commit of this moment says of these."""
        made = []
        for one in sorted(partitions):
            found, epoch = self.trackers[one].snapshot(), self.epochs[one].value
            made.append(Position((self.topic, one), found.base, encode(found, is_marked=epoch >= 0), epoch))
        return made


class Pace:
    """So many a second at most. Thread safety: one thread."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._next = time.monotonic()

    @property
    def lot(self) -> int:
        """Letters that go together."""
        return LOT if self._rate is None else max(1, min(LOT, int(self._rate)))

    def wait(self, letters: int) -> None:
        """Until so many may go."""
        if self._rate is None:
            return
        time.sleep(max(0.0, self._next - time.monotonic()))
        self._next = max(self._next, time.monotonic()) + letters / self._rate


@dataclass(frozen=True, slots=True)
class How:
    """What a redrive is told."""

    execute: bool
    """Else letters that would go are counted."""
    to: str | None = None
    """Another topic than that of the record."""
    max_rounds: int = 3
    rate: float | None = None
    """Letters a second at most."""
    limit: int | None = None


def redrive(queue: Queue, wanted: Wanted, how: How) -> Report:
    """Send letters back, or only count those that would go; returns the report. Raises `UsageError`."""
    partitions = queue.admin.topics()
    check(how, queue, partitions)
    run = Redrive(queue.topic, wanted, partitions, how.to, how.max_rounds)
    if how.execute:
        with Redriving(queue.kafka, queue.group, queue.topic) as target:
            _go(run, queue, how, target)
    else:
        _go(run, queue, how, None)
    return report_of(run, queue, how)


def report_of(run: Redrive, queue: Queue, how: How) -> Report:
    """What became of it."""
    return {
        "topic": queue.topic,
        "group": queue.group,
        "executed": how.execute,
        "letters": run.going.total(),
        "to": dict(sorted(run.going.items())),
        "redriven_before": run.before,
        "not_selected": run.others,
        "left": dict(+run.left),
        "refusals": sorted(run.refusals),
    }


def did_nothing(report: Report) -> bool:
    """Whether none of the letters went that were to go."""
    return bool(report["executed"] and not report["letters"] and report["left"])


def check(how: How, queue: Queue, partitions: Mapping[str, int]) -> None:
    """Raises `UsageError` for what cannot be."""
    if how.max_rounds < 1:
        raise UsageError(f"--max-rounds {how.max_rounds}: give a whole number of at least 1")
    if how.rate is not None and not 0 < how.rate <= MAX_RATE:
        raise UsageError(f"--rate {how.rate:g}: give records a second, more than 0")
    if how.limit is not None and how.limit < 1:
        raise UsageError(f"--limit {how.limit}: give a whole number of at least 1")
    if how.to == queue.topic:
        raise UsageError(f"--to {how.to}: that is the dead-letter topic itself: name another one")
    if how.to is not None and how.to not in partitions:
        raise UsageError(f"--to {how.to}: there is no such topic: `keylane topics create {how.to}` makes it")


MAX_RATE = 1e9


def begun(run: Redrive, queue: Queue) -> Redrive:
    """The same, from where the redrive's group stands. Behind an earlier one's fence nobody changes that any more."""
    names = [(queue.topic, number) for number in range(run.partitions[queue.topic])]
    run.begin({name[1]: start or 0 for name, start in queue.admin.log_starts(names).items()}, queue.redriven())
    return run


def _go(run: Redrive, queue: Queue, how: How, target: Redriving | None) -> None:
    begun(run, queue)
    pace = Pace(how.rate)
    most = how.limit
    lot: dict[int, list[Output]] = {}
    limits = Limits(queue.kafka)

    def send() -> None:
        outputs = [one for some in lot.values() for one in some]
        if target is not None and outputs:
            pace.wait(len(outputs))
            for output in outputs:
                target.produce(limits.fitted(output))
            target.commit(run.positions(lot))
        lot.clear()

    for batch in read_committed(queue.kafka, queue.topic):
        run.observe(batch)
        for record in batch:
            if (output := run.goes(record)) is None:
                continue
            lot.setdefault(record.partition, []).append(output)
            if sum(map(len, lot.values())) >= pace.lot or run.going.total() == most:
                send()
            if run.going.total() == most:
                return
        send()
