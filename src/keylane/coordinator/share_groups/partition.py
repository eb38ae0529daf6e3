"""One partition of a share group as a state machine: which of its records are with whom, and which are done.

There is no clock, thread or socket here. The records from `start` to `end` are in flight; they are kept as runs of
neighbours in the same state. All below `start` are done, all from `end` on have never been given out. `SharePartition`
has the table of states.

`state` is what has to survive a restart. A delivery that is out is not in it: a restart ends it as if it had never
been, so no record is archived because the broker stopped.

Where a group has a topic for dead letters, records that it gives up are archiving until their letters are written.

Source: KIP-932, KIP-1191 (dead letters), KIP-1206 (the limit of records of a fetch), KIP-1222 (renewal); Apache Kafka's
`SharePartition`.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = range(5)
"""Kafka's numbers."""
DONE = (ACKNOWLEDGED, ARCHIVED)
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
"""How a record is acknowledged; a gap is an offset at which its client found no record."""
NOT_BEGUN = -1
"""The start of a partition of which nothing was read yet."""
LEAST_SUSPICIOUS = 2
"""Deliveries after which records are not taken for faulty yet, whatever the limit is."""


class Limits(NamedTuple):
    """What holds for a group now."""

    lock_ms: int
    """How long a record is a member's."""
    deliveries: int
    """How often a record is given out at most."""
    in_flight: int
    """Records between `start` and `end`: at so many nothing new is given out. The last batch is given whole."""
    has_letters: bool = False
    """Whether records that the group gives up are written to its topic of dead letters."""


class GivenUp(NamedTuple):
    """Neighbours whose dead letters are to be written."""

    first: int
    last: int
    delivered: int
    """How often."""
    is_rejected: bool
    """Whether a member rejected them; else, or where that is forgotten, they were delivered too often."""


class Batch(NamedTuple):
    """Neighbours of one state, as they are kept; nobody has them."""

    first: int
    last: int
    state: int
    delivered: int
    """How often."""


class State(NamedTuple):
    """What is made durable of a partition."""

    start: int = NOT_BEGUN
    epoch: int = 0
    """Grows when someone sets the start."""
    batches: tuple[Batch, ...] = ()
    """From the start on; what they leave out is available, and was never delivered."""

    @property
    def done(self) -> int:
        """Records behind the start that nobody has to have any more."""
        return sum(batch.last - batch.first + 1 for batch in self.batches if batch.state in DONE)


class Acquired(NamedTuple):
    """Neighbours that a member has from now on."""

    first: int
    last: int
    delivered: int
    """How often, with this time."""


class Acknowledgement(NamedTuple):
    """What a member says of some neighbours: one type for all of them, or one for each."""

    first: int
    last: int
    types: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        is_range = 0 <= self.first <= self.last
        return (
            is_range
            and len(self.types) in (1, self.last - self.first + 1)
            and all(GAP <= one <= RENEW for one in self.types)
        )

    def of(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """First offset, last offset and type of all that it says of these."""
        if len(self.types) == 1:
            yield max(first, self.first), min(last, self.last), self.types[0]
            return
        for offset in range(max(first, self.first), min(last, self.last) + 1):
            yield offset, offset, self.types[offset - self.first]


class _Run(NamedTuple):
    first: int
    last: int
    state: int
    delivered: int
    member: str = ""
    until_ms: int = 0
    is_rejected: bool = False
    """Of archiving ones: by a member."""

    def is_like(self, other: _Run) -> bool:
        return self[2:] == other[2:]


class SharePartition:
    """Every event changes it at once; what `state` is then has to be durable before anyone is told, unless the event
    says that it is the same as before.

    | state of a record | who holds it | what brings it there | it becomes |
    |---|---|---|---|
    | beyond `end` | the log | | acquired (`acquire`); archived (`acquire`: a gap in the log) |
    | available | nobody: the next fetch may have it | `acknowledge` (release), `release`, `tick`, each below the limit | acquired (`acquire`); archived (`acquire`: it is gone from the log) |
    | acquired | one member, until a time | `acquire`, which counts a delivery; `acknowledge` (renew) | acknowledged (`acknowledge`: accept); archived (`acknowledge`: gap); archived, or archiving where there are dead letters (`acknowledge`: reject; at the limit of deliveries any end but accept); available (`acknowledge`: release, `release`, `tick`) |
    | acknowledged | nobody, for good | `acknowledge` (accept) | below `start`, once all before it are done |
    | archiving | nobody | see above | archived (`archive`) |
    | archived | nobody, for good | see above | below `start`, once all before it are done |
    """  # noqa: E501 - a table

    def __init__(self, state: State) -> None:
        """Of one that has begun."""
        assert state.start >= 0, state
        self.start = state.start
        self._epoch = state.epoch
        self._runs: list[_Run] = []
        """Sorted, and without gaps from `start` to `end`."""
        for batch in state.batches:
            if batch.first > self.end:
                self._runs.append(_Run(self.end, batch.first - 1, AVAILABLE, 0))
            self._runs.append(_Run(*batch))
        self._move_start()

    @property
    def end(self) -> int:
        """The first offset that was never given out."""
        return self._runs[-1].last + 1 if self._runs else self.start

    @property
    def next_offset(self) -> int:
        """Where to read what can be acquired next."""
        return next((run.first for run in self._runs if run.state == AVAILABLE), self.end)

    def has_room(self, limits: Limits) -> bool:
        """Whether anything could be acquired, if the log has it."""
        return self.next_offset < self.end or self.end - self.start < limits.in_flight

    @property
    def next_deadline_ms(self) -> int | None:
        """When the first of the members' times is over."""
        return min((run.until_ms for run in self._runs if run.state == ACQUIRED), default=None)

    @property
    def given_up(self) -> list[GivenUp]:
        """The archiving ones."""
        return [
            GivenUp(run.first, run.last, run.delivered, run.is_rejected) for run in self._runs if run.state == ARCHIVING
        ]

    @property
    def state(self) -> State:
        batches: list[Batch] = []
        for run in self._runs:
            # A delivery that is out does not count yet.
            kept = (AVAILABLE, run.delivered - 1) if run.state == ACQUIRED else (run.state, run.delivered)
            if batches and batches[-1][2:] == kept:
                batches[-1] = batches[-1]._replace(last=run.last)
            else:
                batches.append(Batch(run.first, run.last, *kept))
        if batches and batches[-1][2:] == (AVAILABLE, 0):
            del batches[-1]  # as if it had never been given out
        return State(self.start, self._epoch, tuple(batches))

    # Events

    def acquire(
        self,
        member: str,
        read: tuple[int, int],
        batches: Iterable[tuple[int, int]],
        max_records: int,
        limits: Limits,
        now_ms: int,
        *,
        is_strict: bool,
    ) -> list[Acquired]:
        """The member gets what it can have of these batches (first and last offset, in order), all that the log has
        between the two offsets of `read` (the second is the first that was not read). What no batch has is gone.
        `is_strict`: never more than `max_records`; else the last batch is given whole. The state that has to survive
        stays the same, but for what is gone, which would be found again."""
        at, end = read
        until_ms = now_ms + limits.lock_ms
        found: list[Acquired] = []
        left = max_records
        for first, last in batches:
            if left <= 0:
                break
            self._archive_gap(at, first - 1)
            at = last + 1
            given, is_more = self._acquire_batch(member, first, last, left if is_strict else None, limits, until_ms)
            found += given
            left -= sum(one.last - one.first + 1 for one in given)
            if not is_more:
                break
        else:
            self._archive_gap(at, end - 1)
        self._move_start()
        return _joined(found)

    def _acquire_batch(
        self, member: str, first: int, last: int, most: int | None, limits: Limits, until_ms: int
    ) -> tuple[list[Acquired], bool]:
        """Of one batch; and whether there may be more."""
        found: list[Acquired] = []
        for run in self._available(first, last):
            size = run.last - run.first + 1
            alone = _suspicious(run.delivered, size, limits)
            if alone is not None and found:
                return found, False
            size = min(size, size if most is None else most, size if alone is None else alone)
            if size <= 0:
                return found, False
            one = _Run(run.first, run.first + size - 1, ACQUIRED, run.delivered + 1, member, until_ms)
            self._put(one)
            found.append(Acquired(one.first, one.last, one.delivered))
            most = None if most is None else most - size
            if alone is not None:
                return found, False
        begin = max(first, self.end)
        if last < begin:
            return found, True
        room = max(limits.in_flight - (begin - self.start), 0)
        size = last - begin + 1 if most is None and room else min(last - begin + 1, room, most or 0)
        if size > 0:
            self._runs.append(_Run(begin, begin + size - 1, ACQUIRED, 1, member, until_ms))
            found.append(Acquired(begin, begin + size - 1, 1))
        return found, begin + size - 1 == last

    def acknowledge(
        self, member: str, said: Sequence[Acknowledgement], limits: Limits, now_ms: int
    ) -> tuple[int, bool]:
        """All of it, or nothing: an error code, and whether the state is another one."""
        for before, one in pairwise((Acknowledgement(NOT_BEGUN, NOT_BEGUN, ()), *said)):
            error = codes.INVALID_REQUEST if one.first <= before.last else self._check(member, one)
            if error != codes.NONE:
                return error, False
        is_other = False
        for one in said:
            for run in self._between(one.first, one.last):
                for first, last, kind in one.of(run.first, run.last):
                    piece = run._replace(first=first, last=last)
                    self._put(_acknowledged(piece, kind, limits, now_ms))
                    is_other = is_other or kind != RENEW
        self._move_start()
        return codes.NONE, is_other

    def release(self, member: str, limits: Limits) -> bool:
        """The member's session is over, and what it has with it. Whether the state is another one."""
        return self._end(lambda run: run.member == member, lambda run: _ended(run, limits))

    def tick(self, limits: Limits, now_ms: int) -> bool:
        """End what members have had for too long. Whether the state is another one."""
        return self._end(lambda run: run.until_ms <= now_ms, lambda run: _ended(run, limits))

    def archive(self, first: int, last: int) -> None:
        """The letters of these are written, or never will be."""
        for run in self._between(first, last):
            if run.state == ARCHIVING:
                self._put(_Run(run.first, run.last, ARCHIVED, run.delivered))
        self._move_start()

    def begin_at(self, offset: int) -> None:
        """The log begins here now: what was before is gone."""
        if offset <= self.start:
            return
        self._runs = [run._replace(first=max(run.first, offset)) for run in self._runs if run.last >= offset]
        self.start = offset
        self._move_start()

    # Parts of them

    def _check(self, member: str, said: Acknowledgement) -> int:
        if not said.is_whole:
            return codes.INVALID_REQUEST
        if said.last < self.start or not self._runs:
            return codes.INVALID_RECORD_STATE
        if said.last >= self.end:
            return codes.INVALID_REQUEST
        has_all = all(run.state == ACQUIRED and run.member == member for run in self._between(said.first, said.last))
        return codes.NONE if has_all else codes.INVALID_RECORD_STATE

    def _end(self, is_over: Callable[[_Run], bool], ended: Callable[[_Run], _Run]) -> bool:
        over = [run for run in self._runs if run.state == ACQUIRED and is_over(run)]
        for run in over:
            self._put(ended(run))
        self._move_start()
        return bool(over)

    def _archive_gap(self, first: int, last: int) -> None:
        """The log has nothing here, and never will."""
        for run in self._available(first, last):
            self._put(run._replace(state=ARCHIVED))
        if last >= self.end:
            if self._runs:
                self._runs.append(_Run(self.end, last, ARCHIVED, 0))
            else:
                self.start = max(self.start, last + 1)

    def _available(self, first: int, last: int) -> list[_Run]:
        return [run for run in self._between(first, last) if run.state == AVAILABLE]

    def _between(self, first: int, last: int) -> list[_Run]:
        """The runs from one offset to another, cut there; none where that is less than one offset."""
        if last < first:
            return []
        at = max(bisect_right(self._runs, first, key=lambda run: run.first) - 1, 0)
        found = []
        while at < len(self._runs) and self._runs[at].first <= last:
            run = self._runs[at]
            if run.last >= first:
                found.append(run._replace(first=max(run.first, first), last=min(run.last, last)))
            at += 1
        return found

    def _put(self, new: _Run) -> None:
        """In place of a part of one run, or the whole."""
        at = bisect_right(self._runs, new.first, key=lambda run: run.first) - 1
        old = self._runs[at]
        assert old.first <= new.first <= new.last <= old.last, (old, new)
        pieces = []
        if old.first < new.first:
            pieces.append(old._replace(last=new.first - 1))
        pieces.append(new)
        if new.last < old.last:
            pieces.append(old._replace(first=new.last + 1))
        low, high = max(at - 1, 0), at + 2
        around = [*self._runs[low:at], *pieces, *self._runs[at + 1 : high]]
        merged = around[:1]
        for run in around[1:]:
            if merged[-1].is_like(run):
                merged[-1] = merged[-1]._replace(last=run.last)
            else:
                merged.append(run)
        self._runs[low:high] = merged

    def _move_start(self) -> None:
        done = 0
        while done < len(self._runs) and self._runs[done].state in DONE:
            self.start = self._runs[done].last + 1
            done += 1
        del self._runs[:done]


def _acknowledged(run: _Run, kind: int, limits: Limits, now_ms: int) -> _Run:
    if kind == RENEW:
        return run._replace(until_ms=now_ms + limits.lock_ms)
    if kind == RELEASE:
        return _ended(run, limits)
    if kind == REJECT:
        return _given_up(run, limits, is_rejected=True)
    return _Run(run.first, run.last, ACKNOWLEDGED if kind == ACCEPT else ARCHIVED, run.delivered)


def _ended(run: _Run, limits: Limits) -> _Run:
    """Nobody has accepted it."""
    if run.delivered >= limits.deliveries:
        return _given_up(run, limits, is_rejected=False)
    return _Run(run.first, run.last, AVAILABLE, run.delivered)


def _given_up(run: _Run, limits: Limits, *, is_rejected: bool) -> _Run:
    if not limits.has_letters:
        return _Run(run.first, run.last, ARCHIVED, run.delivered)
    return _Run(run.first, run.last, ARCHIVING, run.delivered, is_rejected=is_rejected)


def _suspicious(delivered: int, size: int, limits: Limits) -> int | None:
    """How many of neighbours that were delivered so often are given out at once, and alone; None for no bound. The
    faulty one of them is found by halves, and in the end by itself: the others are not archived with it."""
    patience = max(LEAST_SUSPICIOUS, (limits.deliveries + 1) // 2)
    if delivered < patience:
        return None
    return 1 if delivered >= limits.deliveries - 1 else max(size >> (delivered - patience + 1), 1)


def _joined(found: list[Acquired]) -> list[Acquired]:
    joined: list[Acquired] = []
    for one in found:
        if joined and joined[-1].last + 1 == one.first and joined[-1].delivered == one.delivered:
            joined[-1] = joined[-1]._replace(last=one.last)
        else:
            joined.append(one)
    return joined
