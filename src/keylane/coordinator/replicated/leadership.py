"""One server's leadership of one offsets partition, as a state machine: no clock, no socket, no thread.

The idea: the log is the truth, and Kafka fences it. A leader gets the next epoch of the partition's transactional id
(InitProducerId), appends a mark with it, reads up to its own mark, and serves. Commits go into idempotent batches with
that producer id, epoch and sequence, many in one and none split. From the mark on the log takes nothing of an older
epoch, so what a leader has read up to there, and what it appends behind it, is all there is.

An acknowledged append proves that nobody had taken over when it was appended. That is what a read needs, too: it is
answered with the first batch that began after it. A batch without commits is one keyed note, which also serves as the
mark, and as a sign of life.

A leader that is refused is deposed, for good: it never initialises again by itself, since that would fence its
successor. So is one that was away for so long that the log's brokers may have forgotten it.

Sources: S1 (one log, committed offsets only), S2 (loading), KIP-98 and KIP-360 (epochs and sequences). ADR 94.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.replicated.follower import NO_PRODUCER, Place
from keylane.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.coordinator.formats import Records
    from keylane.coordinator.journal.journal import Done
    from keylane.coordinator.replicated.follower import Follower
    from keylane.coordinator.transactions.transactional_ids import Producer

LAST_SEQUENCE = 2**31 - 1
GROWTH_A_RECORD = 4
"""Bytes by which a record may grow when it stands behind others in a batch: its offset delta and its length."""
HOUR_MS = 3_600_000


class NotLeadingError(PeerError):
    """This server does not lead the partition now: another one may, or will."""


class Role(Enum):
    """How a server stands to the partition."""

    STANDBY = "standby"
    INITIALISING = "initialising"
    MARKING = "marking"
    LOADING = "loading"
    LEADING = "leading"
    RENEWING = "renewing"
    """Leading, and about to have a new epoch: nothing is sent until it has."""
    DEPOSED = "deposed"


ALLOWED = {
    (Role.STANDBY, Role.INITIALISING),
    (Role.INITIALISING, Role.MARKING),
    (Role.MARKING, Role.LOADING),
    (Role.LOADING, Role.LEADING),
    (Role.LEADING, Role.RENEWING),
    (Role.RENEWING, Role.LEADING),
    *((role, Role.DEPOSED) for role in Role if role is not Role.DEPOSED),
}
SERVING = (Role.LEADING, Role.RENEWING)


class Limits(NamedTuple):
    """What a leader goes by; times in milliseconds."""

    batch_bytes: int
    """Of the records of one batch, at most."""
    in_flight: int = 5
    """Batches without an answer, at most: a broker remembers five of a producer."""
    note_ms: int = HOUR_MS
    """An idle leader appends so often, or brokers forget its epoch (`producer.id.expiration.ms`, a day)."""
    epoch_ms: int = 24 * HOUR_MS
    """So often it gets a new epoch, or the transactional id expires (`transactional.id.expiration.ms`, a week)."""
    silence_ms: int = 12 * HOUR_MS
    """Without an acknowledged append for so long, its epoch may be forgotten, and it is deposed."""
    turn_bytes: int = 262_144
    """Of the log that one turn of the event loop brings into the table: whoever waits has a turn in between."""


class Init(NamedTuple):
    """Ask for the next epoch of the partition's transactional id; of `expected` alone, if there is one (KIP-360)."""

    expected: Producer | None


class Entry(NamedTuple):
    """What is to stand in the log whole, or not at all."""

    records: Records
    done: Done


class Batch:
    """What goes into the log in one append; a note, when it has no entries."""

    __slots__ = ("count", "entries", "producer", "sequence", "size")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.size = 0
        """Bytes at most."""
        self.count = 0
        self.producer = NO_PRODUCER
        """Set, with the sequence of its first record, when it is sent."""
        self.sequence = 0

    @property
    def record_count(self) -> int:
        return self.count or 1

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.count += entry.records.record_count
        self.size += size_of(entry)

    def send(self, producer: Producer, sequence: int) -> None:
        self.producer, self.sequence = producer, sequence


def size_of(entry: Entry) -> int:
    """Bytes that an entry takes in a batch, at most."""
    return len(entry.records.body) + GROWTH_A_RECORD * entry.records.record_count


class Leadership:
    """Call `step` after each event until it is None, and do what it says; whoever calls it owns the table."""

    def __init__(self, follower: Follower, limits: Limits, alarm: Callable[[str], None]) -> None:
        """`follower` has read the log so far; it is the leader's from now on. `alarm` takes a sentence."""
        self.follower = follower
        self.role = Role.STANDBY
        self.reason = ""
        """Why it is deposed."""
        self.producer: Producer = NO_PRODUCER
        self._limits = limits
        self._alarm = alarm
        self._forming: deque[Batch] = deque()
        """What is to be sent."""
        self._in_flight: deque[Batch] = deque()
        self._sequence = 0
        self._end = 0
        """The log's end, as far as this leader has written it."""
        self._is_asked = False
        """Whether the epoch has been asked for."""
        self._epoch_ms = self._acknowledged_ms = self._sent_ms = 0

    # --- taking over ---

    def take_over(self) -> None:
        """Lead this partition; once in the life of this object. The table must hold what `follower` has read."""
        self._move(Role.INITIALISING)

    def initialised(self, producer: Producer, now_ms: int) -> None:
        """The log has given this epoch."""
        if self.role is Role.DEPOSED:
            return
        self.producer = producer
        self._sequence = 0
        self._is_asked = False
        self._epoch_ms = now_ms
        if self.role is Role.RENEWING:
            self._move(Role.LEADING)
        else:
            self._acknowledged_ms = now_ms
            self._move(Role.MARKING)
        self._forming.appendleft(Batch())  # the mark

    @property
    def loads_to(self) -> int | None:
        """Up to where the log is to be read, with `hear`, before this leader serves; None when it has been."""
        return self._end if self.role is Role.LOADING else None

    def hear(self, place: Place, asked_ms: int) -> None:
        """The next batch of the log is in the table, as it was when it was asked for."""
        told = self.follower.hear(place)
        if told is not None:
            self._alarm(told)
        if self.role is Role.LOADING and self.follower.position >= self._end:
            self.follower.reached_end(asked_ms)
            self._move(Role.LEADING)

    # --- serving ---

    @property
    def is_serving(self) -> bool:
        return self.role in SERVING

    def append(self, entry: Entry) -> Batch:
        """The batch that this entry goes into. Raises `NotLeadingError`."""
        self._check()
        if not self._forming or self._forming[-1].size + size_of(entry) > self._limits.batch_bytes:
            self._forming.append(Batch())
        batch = self._forming[-1]
        batch.add(entry)
        return batch

    def confirm(self) -> Batch:
        """A batch that begins after now, behind all that was appended: once it is acknowledged, the table shows every
        commit that was acknowledged before now, whoever led. Raises `NotLeadingError`."""
        self._check()
        if not self._forming:
            self._forming.append(Batch())
        return self._forming[-1]

    @property
    def last(self) -> Batch | None:
        """When this is acknowledged, all is that was asked for so far."""
        waiting = self._forming or self._in_flight
        return waiting[-1] if waiting else None

    def step(self, now_ms: int) -> Init | Batch | None:
        """What the log is to be asked for next, if anything; batches in this order, on whatever connection."""
        if self.is_serving and now_ms - self._acknowledged_ms >= self._limits.silence_ms:
            self.depose("no append was acknowledged for so long that the log's brokers may have forgotten this epoch")
        if self.role is Role.LEADING:
            if now_ms - self._epoch_ms >= self._limits.epoch_ms:
                self._move(Role.RENEWING)
            elif now_ms - self._sent_ms >= self._limits.note_ms and self.last is None:
                self._forming.append(Batch())
        if self.role is Role.INITIALISING or (self.role is Role.RENEWING and not self._in_flight):
            if self._is_asked:
                return None
            self._is_asked = True
            return Init(self.producer if self.role is Role.RENEWING else None)
        is_open = self.role in (Role.MARKING, Role.LEADING)
        if not is_open or not self._forming or len(self._in_flight) >= self._limits.in_flight:
            return None
        if self._in_flight and len(self._forming) == 1:
            return None  # it has room: what comes until there is an answer goes with it, and costs no append of its own
        batch = self._forming.popleft()
        batch.send(self.producer, self._sequence)
        self._sequence = (self._sequence + batch.record_count) % (LAST_SEQUENCE + 1)
        self._sent_ms = now_ms
        self._in_flight.append(batch)
        return batch

    def acknowledged(self, batch: Batch, base_offset: int, now_ms: int) -> bool:
        """The log has this batch, at this offset, on all of its replicas in sync. Whether it counts: then its entries
        come into the table now, before anything else; else this leader is deposed."""
        if self.role is Role.DEPOSED:
            return False
        assert batch is self._in_flight[0], "batches are acknowledged in order"
        if self.role is not Role.MARKING and base_offset != self._end:
            self._alarm(
                f"offset {base_offset} was given to a batch of epoch {batch.producer.epoch} where {self._end} was due: "
                "something else has been written in between"
            )
            self.depose("something else writes to its log")
            return False
        self._in_flight.popleft()
        self._acknowledged_ms = now_ms
        self._end = base_offset + batch.record_count
        if self.role is Role.MARKING:
            self._move(Role.LOADING)
        else:
            self.follower.hear(Place(base_offset, self._end, batch.producer))
            self.follower.reached_end(now_ms)
        return True

    def depose(self, reason: str) -> None:
        """It is refused, for good: `failed` has what was under way."""
        if self.role is not Role.DEPOSED:
            self.reason = reason
            self._move(Role.DEPOSED)

    def failed(self) -> list[Batch]:
        """What a deposed leader has to give up, the oldest first; whether it is in the log is not known."""
        given_up = [*self._in_flight, *self._forming]
        self._in_flight.clear()
        self._forming.clear()
        return given_up

    def _check(self) -> None:
        if not self.is_serving:
            raise NotLeadingError(f"this server does not lead the partition: {self.reason or self.role.value}")

    def _move(self, target: Role) -> None:
        assert (self.role, target) in ALLOWED, f"{self.role} -> {target}"
        self.role = target
