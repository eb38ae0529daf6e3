"""Fetch sessions (KIP-227): the broker remembers what a client fetches, and tells it only what has changed.

A full fetch may open a session: its answer has an id, and tells of every partition. An incremental fetch of that id
names only the partitions that it asks in another way than before, and those to forget; its answer tells only of
partitions with records, with an error, or with another high watermark or log start offset than was told last. The
session's epoch counts its fetches, so that none is lost or taken twice. A session belongs to whoever has its id, which
is drawn at random, and to no connection or user.

A session names topics, or gives their ids (KIP-516), and its fetches have to do the same. With ids it remembers the
name that an id had when it was first known: of a topic that is deleted, or made anew under its name, it is told so.

A fetch costs what has changed: a partition of which the client knows all that there is rests, and is looked at again
when its log tells of something.

The rules are those of Apache Kafka's FetchSession, without its followers, who do not exist here. Pure: whoever calls
gives the time and the logs, and draws the ids.
"""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING, NamedTuple

from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keylane.broker.reads import FetchedPartition, Wanted
    from keylane.broker.topics import NamedPartition
    from keylane.storage.log_view import LogView

NO_SESSION = 0
"""No session has this id."""
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
"""Of full fetches: the first closes the session that it names and asks for a new one, the other only closes."""
LAST_EPOCH = 2**31 - 1
EVICTION_MS = 120_000
"""How long a session is safe: unused for longer it goes for any other, older than that for a larger one."""


class _Remembered:
    """A partition of a session: how it is read, and what the client was told of it. While it rests its log calls it."""

    __slots__ = ("_log", "_partition", "_session", "high_watermark", "log_start_offset", "turn", "wanted")

    def __init__(self, session: Session, partition: NamedPartition, wanted: Wanted) -> None:
        self._session, self._partition = session, partition
        self._log: LogView | None = None
        """The one that it listens to."""
        self.turn = 0
        """Its place among the others of the session."""
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1

    def rest(self, log: LogView) -> None:
        """Until the log tells of a change; unless the client does not know all yet."""
        is_told = (self.high_watermark, self.log_start_offset) == (log.high_watermark, log.log_start_offset)
        if self._log is None and is_told and self.wanted.offset >= log.high_watermark and not log.is_closed:
            self._log = log
            log.listeners.add(self)
            self._session.awake.discard(self._partition)

    def wake(self) -> None:
        if self._log is not None:
            self._log.listeners.discard(self)
            self._log = None
        self._session.awake.add(self._partition)

    def __call__(self, new_bytes: int) -> None:
        self.wake()
        for listener in [*self._session.listeners]:
            listener(new_bytes)

    def ask(self, wanted: Wanted) -> None:
        """It is to be read in another way from now on; its topic's name stays."""
        self.wake()
        name = self.wanted.topic
        self.wanted = wanted if name is None or name == wanted.topic else wanted._replace(topic=name)

    def tell(self, answer: FetchedPartition) -> bool:
        """Whether the client has to be told this; it is, then."""
        has_error = answer.error_code != codes.NONE
        before = (self.high_watermark, self.log_start_offset)
        self.high_watermark = -1 if has_error else answer.high_watermark
        self.log_start_offset = answer.log_start_offset
        is_told = has_error or bool(answer.records) or answer.diverging is not None
        return is_told or before != (answer.high_watermark, answer.log_start_offset)


class Session:
    """One session. Its partitions are read in their order; those that gave records come last the next time."""

    def __init__(self, session_id: int, now_ms: int, *, has_ids: bool) -> None:
        self.session_id = session_id
        self.has_ids = has_ids
        """Whether its topics are given by their ids."""
        self.epoch = INITIAL_EPOCH + 1
        """That of the next fetch."""
        self.partitions: dict[NamedPartition, _Remembered] = {}
        self.awake: set[NamedPartition] = set()
        """Those that a fetch has to look at."""
        self.listeners: set[Callable[[int], None]] = set()
        """Called when one more is awake, with its new bytes, as a log's are."""
        self.opened_ms = self.used_ms = now_ms
        self._turns = itertools.count()

    def to_read(self) -> dict[NamedPartition, Wanted]:
        """What a fetch has to look at, in its order."""
        found = [(self.partitions[partition], partition) for partition in self.awake]
        found.sort(key=lambda one: one[0].turn)
        return {partition: known.wanted for known, partition in found}

    def change(self, wanted: Mapping[NamedPartition, Wanted], forgotten: Iterable[NamedPartition]) -> None:
        for partition, how in wanted.items():
            known = self.partitions.get(partition)
            if known is None:
                known = self.partitions[partition] = _Remembered(self, partition, how)
                known.turn = next(self._turns)
            known.ask(how)
        for partition in forgotten:
            gone = self.partitions.pop(partition, None)
            if gone is not None:
                gone.wake()
                self.awake.discard(partition)

    def tell(self, partition: NamedPartition, answer: FetchedPartition) -> bool:
        """Whether the client has to be told this of a partition; it is, then."""
        known = self.partitions[partition]
        if answer.records:
            known.turn = next(self._turns)
        return known.tell(answer)

    def close(self) -> None:
        """No log calls it any more."""
        for known in self.partitions.values():
            known.wake()


class Begun(NamedTuple):
    """A fetch that is under way."""

    wanted: Mapping[NamedPartition, Wanted]
    """What to read, in this order."""
    code: int = codes.NONE
    """What is wrong with its session: nothing is to be read then."""
    opens: bool = False
    has_ids: bool = False
    session: Session | None = None
    epoch: int = INITIAL_EPOCH
    """That of the session, as long as no other fetch of it has come."""


class Finished(NamedTuple):
    """What a fetch is answered."""

    code: int
    session_id: int
    answers: Sequence[tuple[NamedPartition, FetchedPartition]]


class FetchSessions:
    """All sessions, of which there are at most `slots`. `new_id` draws ids, each from 1 to 2³¹ - 1; `name_of` is the
    name of the topic that has an id."""

    def __init__(
        self, slots: int, new_id: Callable[[], int], name_of: Callable[[uuid.UUID], str | None] = lambda _: None
    ) -> None:
        self._slots = slots
        self._new_id = new_id
        self._name_of = name_of
        self._sessions: dict[int, Session] = {}
        """By id, in the order of their last use."""

    def begin(
        self,
        session_id: int,
        epoch: int,
        wanted: Mapping[NamedPartition, Wanted],
        forgotten: Iterable[NamedPartition],
        now_ms: int,
        *,
        has_ids: bool = False,
    ) -> Begun:
        """A fetch has come, whose topics are given by their ids or by their names. A full one may name partitions to
        forget; that has no meaning."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._close(session_id)
            return Begun(wanted, opens=epoch == INITIAL_EPOCH, has_ids=has_ids)
        session = self._sessions.get(session_id)
        if session is None:
            return Begun({}, codes.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return Begun({}, codes.INVALID_FETCH_SESSION_EPOCH)
        if session.has_ids is not has_ids:
            return Begun({}, codes.FETCH_SESSION_TOPIC_ID_ERROR)
        session.change(wanted, forgotten)
        del self._sessions[session_id]
        if not session.partitions:
            return Begun(wanted)
        self._sessions[session_id] = session
        session.used_ms = now_ms
        session.epoch = INITIAL_EPOCH + 1 if epoch == LAST_EPOCH else epoch + 1
        if has_ids:
            self._look_up_names(session)
        return Begun(session.to_read(), session=session, epoch=session.epoch)

    def finish(self, begun: Begun, answers: Sequence[tuple[NamedPartition, FetchedPartition]], now_ms: int) -> Finished:
        """It was read: `answers` has each wanted partition once, and those of its session that have woken since."""
        session = begun.session
        if session is None:
            session_id = self._open(begun, answers, now_ms) if begun.opens else NO_SESSION
            return Finished(begun.code, session_id, answers)
        if session.epoch != begun.epoch:  # another fetch of it came while this one waited
            return Finished(codes.INVALID_FETCH_SESSION_EPOCH, session.session_id, ())
        told = [(partition, answer) for partition, answer in answers if session.tell(partition, answer)]
        return Finished(codes.NONE, session.session_id, told)

    def rest(self, session_id: int, partition: NamedPartition, log: LogView) -> None:
        """This was just told of a partition: it may rest until its log changes."""
        session = self._sessions.get(session_id)
        known = None if session is None else session.partitions.get(partition)
        if known is not None:
            known.rest(log)

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _look_up_names(self, session: Session) -> None:
        """Of topics that are only there since the last fetch."""
        for partition in session.awake:
            (topic, _), known = partition, session.partitions[partition]
            if known.wanted.topic is None and isinstance(topic, uuid.UUID):
                known.wanted = known.wanted._replace(topic=self._name_of(topic))

    def _open(self, begun: Begun, answers: Sequence[tuple[NamedPartition, FetchedPartition]], now_ms: int) -> int:
        """The id of a new session that was told this, or NO_SESSION when there is no room for it."""
        if len(self._sessions) >= self._slots and not self._evict(len(answers), now_ms):
            return NO_SESSION
        session_id = self._new_id()
        while session_id in self._sessions:
            session_id = self._new_id()
        session = self._sessions[session_id] = Session(session_id, now_ms, has_ids=begun.has_ids)
        session.change({partition: begun.wanted[partition] for partition, _ in answers}, ())
        for partition, answer in answers:
            session.partitions[partition].tell(answer)
        return session_id

    def _evict(self, size: int, now_ms: int) -> bool:
        """Make room for a session of so many partitions, if another one is worth less."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms > EVICTION_MS:
            self._close(oldest.session_id)
            return True
        old = (one for one in self._sessions.values() if one.used_ms - one.opened_ms > EVICTION_MS)
        smallest = min(old, key=lambda one: (len(one.partitions), one.session_id), default=None)
        if smallest is None or len(smallest.partitions) >= size:
            return False
        self._close(smallest.session_id)
        return True
