"""When to commit, what a commit says, and who is told of it (`on_commit`, `on_committed`).

The idea: a commit is made of one snapshot a partition, at most one is on its way, and it counts only once the broker
has acknowledged it: until then the partition stays uncommitted, and what failed is simply part of the next commit.
Offsets cannot go back within an assignment, because the base cannot, and commits do not overtake one another.

A completion is in an acknowledged commit when the commit's snapshot was taken after it. The tracker counts its changes,
and a commit carries that count, so completions wait in order of it and leave together.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from keylane.consumer.outputs import NO_RESULTS
from keylane.errors import HandlerError
from keylane.flow.workers import Meter
from keylane.foreign_errors import line_of
from keylane.offsets import DispatchBound, Encoding, OffsetMap, encode, is_map
from keylane.pipeline import Commit
from keylane.telling import kind_of, size_in_utf8

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keylane.consumer.outputs import ResultsRule
    from keylane.consumer.partitions import Partition
    from keylane.consumer.start import TopicPartition
    from keylane.pipeline import Pipeline
    from keylane.records import Message
    from keylane.telling import Log


LEAST_GAP_S = 0.1
"""Time between two commits, however promptly the lag could go to 0."""

AFTER_FAILURE_S = 0.5
"""Time from a failed commit to the next one: a broker that restarts is not hurried."""

RENEWAL_S = 600.0
"""Age of the last commit of partitions that are assigned by hand at which it is made again. Their group has no members,
so brokers count `offsets.retention.minutes` (7 days; a day before Apache Kafka 2.0) from the commit on."""

MAX_UNHEARD = 10_000
"""Records and commits that may wait for `on_committed` and `on_commit` before nothing new is started: more than a usual
commit has, so that only who hears too slowly slows anything."""

PART = 1_000
"""Records of one `Told`."""

EMPTY_MARKED = encode(OffsetMap(0), Encoding.BITSET_V1, is_marked=True)
"""A map of nothing: it says that the commit has a leader epoch."""

LEAST_CAP = 64
"""Characters: a broker that refuses so few is taken to refuse all metadata."""


class CommitEntry(NamedTuple):
    """One partition of a commit."""

    partition: Partition
    offset: int
    metadata: str
    changes: int
    """The tracker's `changes` that this says."""
    leader_epoch: int = -1
    """Of the newest record that was read (KIP-320); -1 while that is not known."""

    @property
    def name(self) -> tuple[str, int]:
        return self.partition.name


@dataclass(frozen=True, slots=True)
class CommitProblem:
    """Why the broker did not take one partition's offset."""

    text: str
    metadata_too_large: bool = False
    fatal: bool = False
    """Trying again cannot help (not authorized): the consumer stops."""
    fenced: bool = False
    """The transactional producer can do nothing more: another one has to be made."""
    moved_on: bool = False
    """The group went on without this member: the partition is another's, or will be given anew."""

    missing: bool = False
    """There is no such topic or partition, by the broker that was asked."""

    def of(self, entries: Sequence[CommitEntry]) -> dict[tuple[str, int], CommitProblem]:
        """Each partition's, of a transaction: what was too large is the longest metadata."""
        longest = max(entries, key=lambda entry: len(entry.metadata))
        plain = replace(self, metadata_too_large=False)
        return {entry.name: self if entry is longest else plain for entry in entries}


class Commits:
    """Plans commits and learns from their answers."""

    def __init__(
        self,
        pipeline: Pipeline,
        counters: Counter[str],
        log: Log,
        fail: Callable[[BaseException, float], None],
        *,
        may_put_off: bool = True,
    ) -> None:
        """`fail` stops the consumer because of an error."""
        self._log = log
        self._fail = fail
        self._metadata = pipeline.metadata
        self._marks_all = pipeline.guarantee != "at_least_once"
        """Whether a commit without a map is marked as well: to start at a copy of it would break the promise."""
        self._interval_s = pipeline.commit_interval_s
        self._every = pipeline.commit.every_records
        self._completed = 0
        """Records since the last commit was planned."""
        self._counters = counters
        self._last = 0.0
        self._sent_at = 0.0
        self._renews = bool(pipeline.assignment) and isinstance(pipeline.commit, Commit)
        self._renewed_at = 0.0
        self._may_put_off = may_put_off
        """Whether a map over the cap may wait; in a transaction its outputs would be seen without it, so that the
        broker has to say whether it takes the map."""
        self.latency = Meter()
        """From a commit to its acknowledgement; those of revokes are not in it."""
        self.not_before = 0.0
        """The earliest time for any commit: a while after one that failed."""
        self._failing = False
        self.metadata_cap = pipeline.metadata_cap
        self.bound = DispatchBound.for_cap(self.metadata_cap)
        self.on_its_way: list[CommitEntry] | None = None
        """The commit that the broker has not answered yet."""

    def started(self, now: float) -> None:
        """The first interval begins."""
        self._last = self._renewed_at = now

    @property
    def renewal_at(self) -> float | None:
        """When commits that have nothing new to say are made again; None where a group's members keep them."""
        return self._renewed_at + RENEWAL_S if self._renews else None

    def renew(self, partitions: Iterable[Partition], now: float) -> None:
        """The next commit is of all of these, whatever was committed before."""
        self._renewed_at = now
        for partition in partitions:
            partition.doubt(partition.tracker.changes - 1)

    def count(self, completed: int) -> None:
        """So many records more are complete."""
        self._completed += completed

    def due_at(self, *, promptly: bool) -> float:
        """The earliest time for the next commit; `promptly` when nothing is left to wait for."""
        if self._every and self._completed >= self._every:
            return self.not_before
        regular = self._last + (LEAST_GAP_S if promptly else self._interval_s)
        return max(regular, self.not_before)

    def plan(self, partitions: Iterable[Partition], now: float) -> list[CommitEntry] | None:
        """The next commit, of all partitions that changed; None when there is nothing to say, or one is on its way."""
        if self.on_its_way is not None:
            return None
        self._last = now
        self._completed = 0
        entries = self.entries(partitions, now)
        if not entries:
            return None
        self.on_its_way = entries
        self._sent_at = now
        return entries

    def wait_for(self, partitions: Iterable[Partition]) -> bool:
        """Whether something of these is complete, and in no commit that was answered."""
        on_its_way = {entry.partition for entry in self.on_its_way or ()}
        return any(one in on_its_way or (one.wanted and one.uncommitted) for one in partitions)

    def entries(self, partitions: Iterable[Partition], now: float) -> list[CommitEntry]:
        """What a commit of this moment says of each partition that changed since its last acknowledged commit."""
        entries = (self._entry(one, now) for one in partitions if one.uncommitted)
        return [entry for entry in entries if entry is not None]

    def _entry(self, partition: Partition, now: float) -> CommitEntry | None:
        """What to commit of one partition; None to put it off until its map fits.

        The bound on dispatch keeps maps within the cap, but a cap can shrink under records that already run, and a
        group can bring a map that is beyond the bound. Without the map, what an earlier commit said is complete would
        run again after a crash; the earlier commit stays instead. Only the commit that teaches us a smaller cap goes
        without.
        """
        tracker = partition.tracker
        changes = tracker.changes
        offsets = tracker.snapshot()
        epoch = partition.leader_epoch
        if offsets.span:
            metadata = self._within_cap(offsets, encode(offsets, is_marked=epoch >= 0))
        else:
            metadata = self._own_metadata(*partition.name, offsets.base, now, is_known=epoch >= 0)
        if metadata and partition.without_map:
            self._counters["commits_without_map"] += 1
            self._log.warning(
                "%s-%d: committing offset %d without its map of %d characters: the broker takes fewer",
                *partition.name,
                offsets.base,
                len(metadata),
            )
            metadata = ""
        elif len(metadata) > self.metadata_cap and self._may_put_off:
            self._counters["commits_put_off"] += 1
            self._log.debug(
                "%s-%d: the commit of offset %d is put off: its map of %d characters is over the cap of %d",
                *partition.name,
                offsets.base,
                len(metadata),
                self.metadata_cap,
            )
            return None
        return CommitEntry(partition, offsets.base, metadata, changes, epoch)

    def _within_cap(self, offsets: OffsetMap, marked: str) -> str:
        """The map, without its mark where that alone takes it over the cap."""
        return marked if len(marked) <= self.metadata_cap else encode(offsets)

    def _own_metadata(self, topic: str, number: int, offset: int, now: float, *, is_known: bool) -> str:
        """What the user's function makes for a commit without a map; without one, a mark where it is wanted. One that
        fails ends the run; the offset is as good without."""
        if self._metadata is None:
            has_room = len(EMPTY_MARKED) <= self.metadata_cap
            return EMPTY_MARKED if self._marks_all and is_known and has_room else ""
        called = f"Commit.metadata({topic!r}, {number}, {offset})"
        try:
            made: object = self._metadata(topic, number, offset)
        except BaseException as error:  # told by the run that it ends
            failed = HandlerError(f"{called} raised {line_of(error)}")
            failed.__cause__ = error
            self._fail(failed, now)
            return ""
        if not isinstance(made, str):
            self._fail(HandlerError(f"{called} returned {kind_of(made)}: return a str"), now)
        elif (size := size_in_utf8(made)) is None:
            self._fail(HandlerError(f"{called} returned text that UTF-8 cannot carry (a lone surrogate)"), now)
        elif size > self.metadata_cap:
            text = f"{called} returned {size} bytes: brokers take {self.metadata_cap} with a commit"
            self._fail(HandlerError(f"{text} (Commit.metadata_max_bytes)"), now)
        elif made and is_map(made):
            self._fail(HandlerError(f"{called} returned what reads as an offset map: return other text"), now)
        else:
            return made
        return ""

    def answered(
        self,
        entries: list[CommitEntry],
        sent: Sequence[CommitEntry],
        problems: Mapping[tuple[str, int], CommitProblem],
        now: float,
    ) -> CommitProblem | None:
        """The broker answered what was `sent` of a planned commit; returns a problem that the consumer cannot go on
        with, if there is one."""
        if entries is self.on_its_way:
            self.on_its_way = None
            if sent and not problems:
                self.latency.add(round((now - self._sent_at) * 1e9))
        if not sent:
            return None
        for entry in sent:
            problem = problems.get(entry.partition.name)
            if problem is None:
                self._acknowledged(entry)
            elif problem.metadata_too_large:
                self._lower_cap(entry)
        others = [problem for problem in problems.values() if not problem.metadata_too_large]
        if not others:
            self._counters["commits"] += bool(len(problems) < len(sent))
            self._counters["commit_failures"] += bool(problems)
            self._failing = False
            return None
        self._counters["commit_failures"] += 1
        self.not_before = now + AFTER_FAILURE_S
        if not self._failing:
            self._log.warning("a commit failed and will be repeated: %s", others[0].text)
            self._failing = True
        return next((problem for problem in others if problem.fatal), None)

    def _acknowledged(self, entry: CommitEntry) -> None:
        if entry.partition.wanted:  # else of old; its revoke may have committed more already
            entry.partition.acknowledged(entry.offset, entry.metadata, entry.changes)

    def _lower_cap(self, entry: CommitEntry) -> None:
        entry.partition.refuse_map()
        lower = len(entry.metadata) // 2 if len(entry.metadata) > LEAST_CAP else 0
        self.not_before = self._last = float("-inf")  # the same commit goes again at once, without that map
        if lower < self.metadata_cap:
            self._log.warning(
                "%s-%d: the broker refused %d characters of commit metadata (offset.metadata.max.bytes); "
                "lowering Commit.metadata_max_bytes from %d to %d",
                *entry.partition.name,
                len(entry.metadata),
                self.metadata_cap,
                lower,
            )
            self.metadata_cap = lower
            self.bound = DispatchBound.for_cap(lower)


@dataclass(frozen=True, slots=True)
class Told:
    """What user code is to hear of one answer, or a part of it."""

    accepted: dict[TopicPartition, int]
    refused: dict[TopicPartition, int]
    problem: str
    """Why, of the first that was refused."""
    records: Sequence[Message]
    """Whose completion is in an acknowledged commit now."""

    @property
    def count(self) -> int:
        """How many things there are to hear."""
        return len(self.records) + bool(self.accepted or self.refused)

    def parts(self) -> list[Told]:
        """The same, of so many records each that who hears slowly gets on visibly."""
        rest = range(PART, len(self.records), PART)
        later = [Told({}, {}, "", self.records[at : at + PART]) for at in rest]
        return [replace(self, records=self.records[:PART]), *later]


class Acknowledgements:
    """What is complete and not in an acknowledged commit yet; and how much of commits user code has not heard yet.
    Thread safety: the loop's."""

    def __init__(self, pipeline: Pipeline, rule: ResultsRule = NO_RESULTS, *, keeps_records: bool = False) -> None:
        self._tells_commits = pipeline.on_commit is not None or rule.commits
        self._tells_records = pipeline.on_committed is not None or rule.committed
        self._keeps_records = self._tells_records or keeps_records
        self._unheard = 0
        self._waiting: dict[Partition, deque[tuple[int, Sequence[Message]]]] = {}
        """By the tracker's changes right after their completion."""
        self.waiting = 0
        """Records in it."""

    def completed(self, partition: Partition, messages: Sequence[Message]) -> None:
        if self._keeps_records:
            queue = self._waiting.setdefault(partition, deque())
            queue.append((partition.tracker.changes, messages))
            self.waiting += len(messages)

    def answered(self, entries: Sequence[CommitEntry], problems: Mapping[TopicPartition, CommitProblem]) -> Told | None:
        """The broker answered a commit; what there is to tell."""
        if not (self._tells_commits or self._keeps_records):
            return None
        accepted, refused = {}, {}
        records: list[Message] = []
        for entry in entries:
            if entry.name in problems:
                refused[entry.name] = entry.offset
            else:
                accepted[entry.name] = entry.offset
                records += self._in(entry)
            if not entry.partition.wanted:  # revoked: the last one
                self.forget((entry.partition,))
        problem = next((one.text for one in problems.values()), "")
        if not (self._tells_commits or self._tells_records):
            return None
        told = Told(accepted, refused, problem, records)
        self._unheard += told.count
        return told

    def heard(self, count: int) -> None:
        """User code has heard of so many."""
        self._unheard -= count

    @property
    def too_many_unheard(self) -> bool:
        """Whether nothing new may start until user code has heard of commits."""
        return self._unheard >= MAX_UNHEARD

    def forget(self, partitions: Iterable[Partition]) -> None:
        """No commit of these follows."""
        for partition in partitions:
            self.waiting -= sum(len(messages) for _, messages in self._waiting.pop(partition, ()))

    def _in(self, entry: CommitEntry) -> list[Message]:
        """What this commit has complete. Without a map it speaks of what lies below its offset alone."""
        queue = self._waiting.get(entry.partition)
        within: list[Message] = []
        kept: list[tuple[int, Sequence[Message]]] = []
        while queue and queue[0][0] <= entry.changes:
            changes, messages = queue.popleft()
            below = messages if entry.metadata else [one for one in messages if one.offset() < entry.offset]
            within += below
            if len(below) < len(messages):
                kept.append((changes, [one for one in messages if one.offset() >= entry.offset]))
        if queue is not None:
            queue.extendleft(reversed(kept))
        self.waiting -= len(within)
        return within
