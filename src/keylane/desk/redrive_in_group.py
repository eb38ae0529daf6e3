"""Dead letters' records run again in their group alone: nothing is copied, and no other group hears of it.

The idea: the group's members do it, as `keylane operate replay-record` asks them to, and their answers stay in the
group's log. So a letter counts as back when a member has said that its record was replayed after the letter was
written, whoever asked, and whoever died in between: the position is written after the answers, and follows from them
(docs/adr/0117). A letter whose place has another record now, since the topic was made anew, say, stays where it is.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from keylane.consumer.dead_letters import read
from keylane.desk.commands import Order, send
from keylane.desk.letters import is_letter_of
from keylane.desk.redrive import Pace, Redrive, begun, check, report_of
from keylane.errors import UsageError
from keylane.kafka.group_standing import offset_map_of
from keylane.kafka.membership import Replay
from keylane.kafka.redriving import Redriving, committed_records, read_committed
from keylane.offsets.edits import standing
from keylane.operations.commands import MOST_RECORDS, named, replaying
from keylane.operations.operator import Operator
from keylane.records import Record, carried_headers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from keylane.desk import Report
    from keylane.desk.letters import Queue, Wanted
    from keylane.desk.redrive import How
    from keylane.offsets import OffsetMap
    from keylane.operations.commands import Command
    from keylane.operations.reports import Members

Place = tuple[str, int, int]
Lot = dict[Place, list[Record]]
"""Letters by the place of their record."""


class Replayed(NamedTuple):
    """What became of a replay that was asked for."""

    began_ms: int
    """When, by the clock of the member; its record may run, and die, before the member has said that it is done."""
    is_done: bool
    """Else a member began, and did not say how that ended."""


@dataclass(slots=True)
class Past:
    """The replays of a group that its log has. Pure."""

    by_record: dict[str, list[Replayed]] = field(default_factory=dict)

    @classmethod
    def of(cls, commands: Iterable[Command], members: Members) -> Past:
        asked = {one.id: one.asked.records for one in commands if isinstance(one.asked, Replay)}
        past = cls()
        for one in (answer for by_member in members.results.values() for answer in by_member.values()):
            began_ms = members.accepted_ms.get((one.command, one.member), one.at_ms)
            is_done = one.state != "accepted"
            records = (one.records or ()) if is_done else map(named, asked.get(one.command, ()))
            for record in records if one.verb == "replay-record" else ():
                past.by_record.setdefault(record, []).append(Replayed(began_ms, is_done))
        return past

    def since(self, record: str, written_ms: int) -> Replayed | None:
        """The last replay of a record after its letter was written; one that is done counts first."""
        found = [one for one in self.by_record.get(record, ()) if one.began_ms >= written_ms]
        return max(found, key=lambda one: (one.is_done, one.began_ms), default=None)

    def rounds(self, record: str) -> int:
        """How often it was replayed."""
        return sum(one.is_done for one in self.by_record.get(record, ()))


def redrive_in_group(queue: Queue, wanted: Wanted, how: How, group: str, token: str | None) -> Report:
    """Let the letters' records run again in `group`, whose members run, or only count them; returns the report of a
    redrive. Raises `UsageError`, and what `send` does."""
    partitions = queue.admin.topics()
    check(how, queue, partitions)
    if how.to is not None:
        raise UsageError(f"--to {how.to}: a record runs again where it is: leave out --to, or --in-group")
    with ExitStack() as stack:
        target = stack.enter_context(Redriving(queue.kafka, queue.group, queue.topic)) if how.execute else None
        run = begun(Redrive(queue.topic, wanted, partitions, None, how.max_rounds), queue)
        with Operator(queue.kafka, group, token, queue.admin) as operator:  # behind an earlier redrive's fence
            past = Past.of(operator.commands, operator.members)
        _go(run, queue, how, past, _Group(queue, group, token, how.execute), target)
    return report_of(run, queue, how)


@dataclass(frozen=True, slots=True)
class _Group:
    """Whose records run again."""

    queue: Queue
    group: str
    token: str | None
    execute: bool

    def why_not(self, places: Iterable[Place]) -> dict[Place, str]:
        """Of records that would not run again: why, as `LEFT` has it."""
        names = {(topic, partition) for topic, partition, _ in places}
        committed = self.queue.admin.committed_offsets(self.group, {topic for topic, _ in names})
        starts = self.queue.admin.log_starts(names)
        maps: dict[tuple[str, int], OffsetMap] = {}
        for name in names & committed.keys():
            found, problem = offset_map_of(committed[name])
            if problem is None:
                maps[name] = found
        left: dict[Place, str] = {}
        for place in places:
            name = place[:2]
            if name not in maps:
                left[place] = "no map"
            elif standing(maps[name], place[2]) not in ("below", "complete"):
                left[place] = "not complete"
            elif place[2] < (starts[name] or 0):
                left[place] = "deleted"
        return left

    def of_other_records(self, lots: Sequence[Lot]) -> set[tuple[int, int]]:
        """Those of these letters whose place has another record now."""
        places = {place for lot in lots for place in lot}
        names = {place[:2] for place in places}
        starts = self.queue.admin.log_starts(names)
        ends = self.queue.admin.log_ends(names, read_committed=True)
        in_log = [one for one in places if (starts[one[:2]] or 0) <= one[2] < (ends[one[:2]] or 0)]
        there = committed_records(self.queue.kafka, in_log)
        return {
            (one.partition, one.offset)
            for lot in lots
            for place, letters in lot.items()
            for one in letters
            if place in there and not is_letter_of(one, read(carried_headers_of(one.message)).death, there[place])
        }

    def replay(self, places: list[Place], refusals: set[str]) -> set[Place]:
        """Those that a member has replayed; all of them where nothing is to be done. What members say that did not is
        added to `refusals`."""
        order = Order(self.group, "replay-record", replaying(places), self.execute)
        report, _ = send(self.queue.kafka, self.queue.admin, self.token, order)
        if not self.execute:
            return {*places}
        refusals |= {f"{one['member']}: {one['text']}" for one in report["members"] if one["text"]}
        done = {one["record"] for one in report["records"] if one["member"] is not None}
        return {place for place in places if named(place) in done}


def _go(run: Redrive, queue: Queue, how: How, past: Past, group: _Group, target: Redriving | None) -> None:
    pace = Pace(how.rate)
    most = how.limit
    lot: Lot = {}
    back: Lot = {}
    changed: set[int] = set()

    def flush() -> None:
        _leave_others(run, group, lot, back)
        changed.update(_complete(run, back))
        left = group.why_not(lot) if lot else {}
        going = [place for place in lot if place not in left]
        if going:
            pace.wait(len(going))
        done = group.replay(going, run.refusals) if going else set()
        for place, letters in lot.items():
            if place in done:
                run.settle(letters, place[0])
                changed.update(one.partition for one in letters)
            else:
                run.left[left.get(place, "refused")] += len(letters)
        if target is not None and changed:
            target.commit(run.positions(changed))
        for some in (lot, back, changed):
            some.clear()

    for batch in read_committed(queue.kafka, queue.topic):
        run.observe(batch)
        for record in batch:
            if (found := _place_of(run, record, past)) is None:
                continue
            place, is_back = found
            (back if is_back else lot).setdefault(place, []).append(record)
            waiting = sum(map(len, lot.values()))
            is_full = max(len(lot), len(back)) >= min(pace.lot, MOST_RECORDS)
            if is_full or (most is not None and run.going.total() + waiting >= most):
                flush()
            if most is not None and run.going.total() >= most:
                return
    flush()


def _complete(run: Redrive, back: Lot) -> set[int]:
    """These letters count as back since before; in which partitions they are."""
    letters = [one for some in back.values() for one in some]
    for letter in letters:
        run.trackers[letter.partition].complete([letter.offset])
    run.before += len(letters)
    return {one.partition for one in letters}


def _leave_others(run: Redrive, group: _Group, *lots: Lot) -> None:
    """Take the letters out whose records are others now."""
    others = group.of_other_records(lots) if any(lots) else set()
    for lot in lots:
        for place, letters in list(lot.items()):
            lot[place] = [one for one in letters if (one.partition, one.offset) not in others]
            run.left["other record"] += len(letters) - len(lot[place])
            if not lot[place]:
                del lot[place]


def _place_of(run: Redrive, record: Record, past: Past) -> tuple[Place, bool] | None:
    """Where the record of a letter is that may go, and whether a member has let it run again already."""
    if (letter := run.chosen(record)) is None:
        return None
    death = letter.death
    if death.topic is None or death.partition is None or death.offset is None:
        run.left["no topic"] += 1
        return None
    place = (death.topic, death.partition, death.offset)
    before = past.since(named(place), record.timestamp_ms)
    if before is not None and before.is_done:
        return place, True
    reason = "unknown" if before is not None else run.why_not(record, letter, past.rounds(named(place)))
    if reason is not None:
        run.left[reason] += 1
        return None
    return place, False
