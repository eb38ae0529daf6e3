"""`Plan`: what one batch of a stream reads, which is also its offset in the checkpoint (docs/adr/0041). Pure.

The idea: an offset that Spark stores is a batch's whole plan, so a batch that is replayed after a crash reads the same
records, whatever has happened to the topics and the group since.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from keylane.consumer.start import cut_at
from keylane.errors import PeerError
from keylane.offsets import OffsetMap, decode, encode
from keylane.spark.structured import spans
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from keylane.spark.structured.options import TopicPartition
    from keylane.spark.structured.spans import Spans

logger = logger_of(__name__)

PLAN = "keylane plan "
"""Begins the one name of an offset that is no topic; the rest of the name is the plan. It has no partitions, so whoever
adds up those of all topics, as tools for the lag do, reads the same as from Spark's own source."""
CARRIED_A_PARTITION = 383
"""Carried records that stop new ones of their partition: so many incomplete offsets always fit into a commit's map."""


@dataclass(frozen=True)
class Plan:
    """A batch. The first offset of a query, before any batch, is a plan with `seq` 0 that reads nothing."""

    id: str
    """The query's, made with its first offset: carry-over lists of another query are told by it."""
    seq: int
    start: Mapping[TopicPartition, int]
    next: Mapping[TopicPartition, int]
    done: Mapping[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    """Base and metadata of what the group had complete above `start` when the query began."""
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of the leaders that the logs had when the batch was planned: a log that was cut since has a later one. Without
    those of plans of earlier versions, and where leaders have none."""
    redo: int | None = None
    """The Spark batch whose carry-over list is run again."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Of the topics, by name: one that was deleted and made anew has another. Without those of plans of earlier
    versions."""

    def spans(self, carried: Iterable[tuple[str, int, int]] = ()) -> dict[TopicPartition, Spans]:
        """The offsets to read, given the records (topic, partition, offset) of the list `redo`: those below where the
        plan starts, because from there on the log has others since, or none."""
        parts: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
        for topic, partition, offset in carried:
            if offset < self.start.get((topic, partition), 0):
                parts[topic, partition].append((offset, offset + 1))
        for name, stop in self.next.items():
            known = decode(self.done[name][1], self.done[name][0]) if name in self.done else None
            parts[name] += spans.incomplete(self.start.get(name, stop), stop, known)
        return {name: joined for name, some in parts.items() if (joined := spans.joined(some))}

    def to_json(self) -> dict[str, Any]:
        """`next` as Spark's own source writes it, and the rest in a name."""
        made: dict[str, Any] = {"id": self.id, "seq": self.seq, "from": _nested(self.start)}
        if self.done:
            made["done"] = _nested({name: list(some) for name, some in self.done.items()})
        if self.epochs:
            made["epochs"] = _nested(self.epochs)
        if self.redo is not None:
            made["redo"] = self.redo
        if self.ids:
            made["ids"] = dict(self.ids)
        return {**_nested(self.next), PLAN + json.dumps(made, separators=(",", ":")): {}}

    @classmethod
    def taken_over(cls, fields: Mapping[str, Any]) -> Plan:
        """The same, and of an offset of Spark's own Kafka source the plan of a query that begins there.

        Raises `PeerError` for any other.
        """
        if is_plan(fields):
            return cls.from_json(fields)
        try:
            offsets = {name: int(offset) for name, offset in _flat(fields).items() if type(offset) is int}
        except (ValueError, AttributeError):
            return cls.from_json(fields)
        if not offsets or len(offsets) < sum(map(len, fields.values())):
            return cls.from_json(fields)
        return cls("", 0, offsets, offsets)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Plan:
        """Raises `PeerError` for an offset that is not of this source."""
        given = fields
        try:
            fields = _fields(given)
            done = {name: (int(base), str(text)) for name, (base, text) in _flat(fields.get("done", {})).items()}
            return cls(
                fields["id"],
                int(fields["seq"]),
                _flat(fields["from"]),
                _flat(fields["next"]),
                done,
                _flat(fields.get("epochs", {})),
                fields.get("redo"),
                dict(fields.get("ids", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise PeerError(
                f"the checkpoint holds the offset {str(given)[:200]}, which is not of this source: use a new "
                "checkpoint, with startingOffsets=… to go on there (the same JSON, where it has topics and offsets)"
            ) from None


def is_plan(fields: Mapping[str, Any]) -> bool:
    """Whether an offset is of this source: of this version, or of one that kept a plan as a list of its own fields."""
    return any(name.startswith(PLAN) for name in fields) or {"id", "seq", "from", "next"} <= fields.keys()


def _fields(offset: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a plan, `next` among them. Raises `ValueError`, or what comes of another shape."""
    for name in offset:
        if name.startswith(PLAN):
            following = {topic: some for topic, some in offset.items() if topic != name}
            return {**json.loads(name.removeprefix(PLAN)), "next": following}
    return offset


def follow(
    before: Plan,
    log_starts: Mapping[TopicPartition, int],
    log_ends: Mapping[TopicPartition, int],
    *,
    limit: int | None = None,
    redo: int | None = None,
    carried: Mapping[TopicPartition, int] | None = None,
    due: bool = False,
    fail_on_data_loss: bool = True,
    epochs: Mapping[TopicPartition, int] | None = None,
    changes: Mapping[TopicPartition, int] | None = None,
    ids: Mapping[str, str] | None = None,
    reads: Callable[[str], bool] = lambda _: True,
) -> Plan:
    """The plan after `before`; `before` itself when there is nothing to do.

    `carried` counts the records of the list `redo`, and `due` says whether one of them may be tried; `epochs` are those
    of the leaders that told `log_ends`, `changes` from which offset on logs have other records than when `before` was
    planned, `ids` those of the topics, and `reads` says of a topic whether the query's options name it. Raises
    `PeerError` when records that were not read are no longer there, or were read and are others now, unless that is
    accepted.
    """
    carried, epochs, changes, ids = carried or {}, epochs or {}, changes or {}, ids or {}
    anew = _made_anew(before, ids)
    _check_gone(before, log_ends, reads, fail_on_data_loss=fail_on_data_loss)
    start = _start(before, log_starts, log_ends, changes, anew, fail_on_data_loss=fail_on_data_loss)
    available = {
        name: log_ends[name] - first
        for name, first in start.items()
        if log_ends[name] > first and carried.get(name, 0) <= CARRIED_A_PARTITION
    }
    taken = available if limit is None else spans.shares(available, limit)
    went_back = bool(anew) or any(start[name] < stop for name, stop in before.next.items() if name in start)
    if (
        not any(taken.values()) and not due and not went_back and not anew
    ):  # an empty batch remembers that a log was cut
        return before
    stops = {name: first + taken.get(name, 0) for name, first in start.items()}
    done = {name: _cut(some, changes.get(name)) for name, some in before.done.items() if name in start}
    done = {name: some for name, some in done.items() if name[0] not in anew}
    done = {name: some for name, some in done.items() if not _passed(some, start[name])}
    led = {name: epochs.get(name, before.epochs.get(name, -1)) for name in start}
    known = {name: epoch for name, epoch in led.items() if epoch >= 0}
    return Plan(before.id, before.seq + 1, start, stops, done, known, redo if carried else None, {**before.ids, **ids})


def still_there(
    plan: Plan,
    there: Collection[TopicPartition],
    changes: Mapping[TopicPartition, int],
    ids: Mapping[str, str],
    *,
    fail_on_data_loss: bool,
) -> Plan:
    """What is to be read of a plan that was made earlier: of the partitions that are `there`, up to where their logs
    have other records since then; the plan that follows begins there. `changes` and `ids` as in `follow`.

    Raises `PeerError` where something is left out, unless that is accepted.
    """
    anew, stops = _made_anew(plan, ids), dict(plan.next)
    for name, stop in plan.next.items():
        if name[0] in anew:
            _lost(_said_anew(name, stop), fail=fail_on_data_loss)
            del stops[name]
        elif name not in there:
            _lost(f"{name[0]}-{name[1]} does not exist any more", fail=fail_on_data_loss)
            del stops[name]
        elif (cut := changes.get(name, stop)) < stop:
            _changed(f"{name[0]}-{name[1]}", stop, cut, fail=fail_on_data_loss)
            stops[name] = cut
    return replace(
        plan, start={name: min(plan.start.get(name, stop), stop) for name, stop in stops.items()}, next=stops
    )


def group_offsets(plan: Plan, carried: Iterable[tuple[str, int, int]] = ()) -> dict[TopicPartition, OffsetMap]:
    """Where a group stands once the plan's batch is done, but for the carried records."""
    left: dict[TopicPartition, list[int]] = defaultdict(list)
    for topic, partition, offset in carried:
        left[topic, partition].append(offset)
    maps = {}
    for name, stop in plan.next.items():
        known = decode(plan.done[name][1], plan.done[name][0]) if name in plan.done else OffsetMap(0)
        incomplete: list[int | range] = [*left[name]]
        highest = stop - 1
        if known.highest_completed >= stop:  # the group was ahead of the query here
            highest = known.highest_completed
            incomplete += [range(*run) for run in known.incomplete_within(stop, highest + 1)]
        base = min(left[name], default=known.first_incomplete(stop))
        maps[name] = OffsetMap(base, incomplete, max(highest, base - 1)).trimmed()
    return maps


def complete_in_both(one: OffsetMap, other: OffsetMap) -> OffsetMap:
    """Of a partition that a query reads by two sources: what it is through with."""
    base, highest = min(one.base, other.base), min(one.highest_completed, other.highest_completed)
    if highest < base:
        return OffsetMap(base)
    incomplete = [range(*run) for each in (one, other) for run in each.incomplete_within(base, highest + 1)]
    return OffsetMap(base, incomplete, highest).trimmed()


def new_records(before: Plan, log_ends: Mapping[TopicPartition, int]) -> int:
    """How many offsets there are beyond the plan; those of unknown partitions count from the first."""
    return sum(max(0, end - before.next.get(name, 0)) for name, end in log_ends.items())


def _start(
    before: Plan,
    log_starts: Mapping[TopicPartition, int],
    log_ends: Mapping[TopicPartition, int],
    changes: Mapping[TopicPartition, int],
    anew: Collection[str],
    *,
    fail_on_data_loss: bool,
) -> dict[TopicPartition, int]:
    """Where each partition goes on. A new one starts at its log start."""
    start = {}
    for name, end in sorted(log_ends.items()):
        first = before.next.get(name, log_starts[name])
        if name[0] in anew and name in before.next:
            _lost(_said_anew(name, first), fail=fail_on_data_loss)
            first = log_starts[name]
        elif first < log_starts[name]:
            _lost(f"{name[0]}-{name[1]} starts at {log_starts[name]}, and {first} is next", fail=fail_on_data_loss)
            first = log_starts[name]
        elif first > (cut := changes.get(name, first)):
            _changed(f"{name[0]}-{name[1]}", first, cut, fail=fail_on_data_loss)
            first = cut
        if first > end:
            _lost(f"{name[0]}-{name[1]} ends at {end}, and {first} is next", fail=fail_on_data_loss)
            first = end
        start[name] = first
    return start


def _made_anew(before: Plan, ids: Mapping[str, str]) -> set[str]:
    """Topics that have another id than when a plan was made."""
    return {topic for topic, known in before.ids.items() if ids.get(topic, known) != known}


def _said_anew(name: TopicPartition, following: int) -> str:
    topic, partition = name
    return (
        f"the topic {topic} was deleted and made anew, or this is another cluster, and {following} of the old "
        f"{topic}-{partition} is next"
    )


def _check_gone(
    before: Plan, log_ends: Mapping[TopicPartition, int], reads: Callable[[str], bool], *, fail_on_data_loss: bool
) -> None:
    gone = sorted(set(before.next) - set(log_ends))
    if left := sorted({topic for topic, _ in gone if not reads(topic)}):
        text = f"the checkpoint reads {', '.join(left)}, which the query's options do not name any more"
        if fail_on_data_loss:
            raise PeerError(f"{text}: name it again, or set failOnDataLoss=false to go on without it")
        logger.warning("%s: going on without it (failOnDataLoss=false)", text)
    if deleted := [name for name in gone if name[0] not in left]:
        _lost(f"partitions {deleted} do not exist any more", fail=fail_on_data_loss)


def _lost(text: str, *, fail: bool) -> None:
    if fail:
        raise PeerError(
            f"{text}: records were deleted before they were read (retention, or the topic was made anew); set "
            "failOnDataLoss=false to go on without them"
        )
    logger.warning("%s: going on without what is lost (failOnDataLoss=false)", text)


def _changed(name: str, first: int, cut: int, *, fail: bool) -> None:
    text = (
        f"{name} was read up to {first}, and was cut at {cut} since then, as by an unclean leader election: from there "
        "on there are other records, or none"
    )
    if fail:
        raise PeerError(f"{text}; set failOnDataLoss=false to read those")
    logger.warning("%s: going on at %d (failOnDataLoss=false)", text, cut)


def _cut(done: tuple[int, str], change: int | None) -> tuple[int, str]:
    """What the group had complete, of what is still there."""
    known = decode(done[1], done[0])
    if change is None or known.highest_completed < change:
        return done
    return done[0], encode(cut_at(known, max(change, done[0])))


def _passed(done: tuple[int, str], start: int) -> bool:
    base, metadata = done
    return decode(metadata, base).highest_completed < start


def _nested(flat: Mapping[TopicPartition, Any]) -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    for (topic, partition), value in sorted(flat.items()):
        made.setdefault(topic, {})[str(partition)] = value
    return made


def _flat(nested: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, Any]:
    return {(topic, int(one)): value for topic, some in nested.items() for one, value in some.items()}
