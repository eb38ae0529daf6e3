"""Fetch sessions: who gets one, what their epochs refuse, and which one goes for another."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from keylane.broker.fetch_sessions import EVICTION_MS, FINAL_EPOCH, INITIAL_EPOCH, LAST_EPOCH, NO_SESSION, FetchSessions
from keylane.broker.reads import FetchedPartition, Wanted
from keylane.wire import codes

if TYPE_CHECKING:
    from keylane.broker.fetch_sessions import Begun, Finished
    from keylane.broker.topics import NamedPartition

QUIET = FetchedPartition(0, codes.NONE, high_watermark=7, log_start_offset=2)


class Server:
    """Sessions with the numbers 1, 2, 3, … as ids, and what is read of each partition."""

    def __init__(self, slots: int = 10) -> None:
        self.now_ms = 1_000
        numbers = itertools.count(1)
        self.sessions = FetchSessions(slots, lambda: next(numbers))
        self.answers: dict[NamedPartition, FetchedPartition] = {}

    def fetch(
        self, session_id: int, epoch: int, *wanted: NamedPartition, forgotten: tuple[NamedPartition, ...] = ()
    ) -> Finished:
        asked = {partition: Wanted(5, 1_000) for partition in wanted}
        begun = self.sessions.begin(session_id, epoch, asked, forgotten, self.now_ms)
        read = [(partition, self.answers.get(partition, QUIET)) for partition in begun.wanted]
        return self.sessions.finish(begun, read, self.now_ms)

    def open(self, size: int = 1) -> int:
        return self.fetch(NO_SESSION, INITIAL_EPOCH, *partitions(size)).session_id

    def knows(self, session_id: int) -> bool:
        """Whether it has the session; an epoch that is wrong changes nothing."""
        return self.fetch(session_id, LAST_EPOCH).code == codes.INVALID_FETCH_SESSION_EPOCH


def partitions(size: int) -> list[NamedPartition]:
    return [("topic", number) for number in range(size)]


def told(finished: Finished) -> list[NamedPartition]:
    assert finished.code == codes.NONE
    return [partition for partition, _ in finished.answers]


def test_a_session_tells_only_what_has_changed() -> None:
    server = Server()
    first, second = partitions(2)
    opened = server.fetch(NO_SESSION, INITIAL_EPOCH, first, second)
    assert (opened.session_id, told(opened)) == (1, [first, second])
    assert told(server.fetch(1, 1)) == []
    server.answers[second] = QUIET._replace(records=b"x")
    assert told(server.fetch(1, 2)) == [second]
    server.answers[second] = QUIET._replace(high_watermark=8)
    assert told(server.fetch(1, 3)) == [second]
    server.answers[first] = QUIET._replace(log_start_offset=3)
    assert told(server.fetch(1, 4)) == [first]
    assert told(server.fetch(1, 5)) == []
    server.answers[first] = FetchedPartition(0, codes.OFFSET_OUT_OF_RANGE)
    assert told(server.fetch(1, 6)) == [first]
    assert told(server.fetch(1, 7)) == [first], "an error is told as long as it is there"
    server.answers[first] = QUIET._replace(log_start_offset=3)
    assert told(server.fetch(1, 8)) == [first], "and its end is told"
    assert told(server.fetch(1, 9)) == []


def test_a_partition_rests_until_its_log_tells_of_something() -> None:
    """And a fetch that waits is told of it."""
    server = Server()
    first, second = partitions(2)
    log: Any = SimpleNamespace(high_watermark=7, log_start_offset=2, is_closed=False, listeners=set())
    at_its_end = {partition: Wanted(7, 1_000) for partition in (first, second)}
    begun = server.sessions.begin(NO_SESSION, INITIAL_EPOCH, at_its_end, (), 1)
    server.sessions.finish(begun, [(first, QUIET), (second, QUIET)], 1)
    server.sessions.rest(1, first, log)
    begun = server.sessions.begin(1, 1, {}, (), 1)
    assert list(begun.wanted) == [second]
    assert begun.session is not None
    heard: list[int] = []
    begun.session.listeners.add(heard.append)
    (listener,) = log.listeners
    listener(5)
    assert (heard, log.listeners, list(begun.session.to_read())) == ([5], set(), [first, second])
    server.sessions.finish(begun, [(second, QUIET)], 1)
    log.high_watermark = 8
    server.sessions.rest(1, first, log)
    assert not log.listeners, "its client does not know all yet"


def test_the_end_of_an_error_is_told_though_the_log_has_not_moved() -> None:
    server = Server()
    (only,) = partitions(1)
    server.open()
    server.answers[only] = QUIET._replace(error_code=codes.KAFKA_STORAGE_ERROR)
    assert told(server.fetch(1, 1)) == [only]
    del server.answers[only]
    assert told(server.fetch(1, 2)) == [only]


def test_partitions_come_to_a_session_and_are_forgotten() -> None:
    server = Server()
    first, second, third = partitions(3)
    server.fetch(NO_SESSION, INITIAL_EPOCH, first, second)
    assert told(server.fetch(1, 1, third, forgotten=(first,))) == [third]
    server.answers = dict.fromkeys(partitions(3), QUIET._replace(high_watermark=9))
    assert told(server.fetch(1, 2)) == [second, third]
    gone = server.fetch(1, 3, first, forgotten=(first, second, third))
    assert (gone.session_id, told(gone)) == (NO_SESSION, [first])
    assert not server.knows(1), "one without partitions is over"


def test_what_gave_records_is_read_last_the_next_time() -> None:
    server = Server()
    first, second, third = partitions(3)
    server.fetch(NO_SESSION, INITIAL_EPOCH, first, second, third)
    server.answers[first] = QUIET._replace(records=b"x")
    server.fetch(1, 1)
    assert list(server.sessions.begin(1, 2, {first: Wanted(6, 1_000)}, (), 0).wanted) == [second, third, first]


def test_what_is_asked_in_another_way_is_read_in_that() -> None:
    server = Server()
    first, second = partitions(2)
    server.open(2)
    begun = server.sessions.begin(1, 1, {second: Wanted(8, 99, 0)}, (), 0)
    assert begun.wanted == {first: Wanted(5, 1_000), second: Wanted(8, 99, 0)}


def test_epochs_and_ids_that_are_wrong() -> None:
    server = Server()
    server.open()
    for wrong in (2, LAST_EPOCH, -2):
        refused = server.fetch(1, wrong, ("other", 0))
        assert refused == (codes.INVALID_FETCH_SESSION_EPOCH, NO_SESSION, [])
    assert server.fetch(9, 1) == (codes.FETCH_SESSION_ID_NOT_FOUND, NO_SESSION, [])
    assert server.fetch(NO_SESSION, 1) == (codes.FETCH_SESSION_ID_NOT_FOUND, NO_SESSION, [])
    assert server.fetch(1, 1).code == codes.NONE, "what was refused changed nothing"
    assert server.fetch(1, 1).code == codes.INVALID_FETCH_SESSION_EPOCH


@pytest.mark.parametrize("epoch", [INITIAL_EPOCH, FINAL_EPOCH])
def test_a_full_fetch_closes_the_session_that_it_names(epoch: int) -> None:
    server = Server()
    other, mine = server.open(), server.open()
    answer = server.fetch(mine, epoch, *partitions(2))
    assert answer.session_id == (3 if epoch == INITIAL_EPOCH else NO_SESSION)
    assert told(answer) == partitions(2)
    assert not server.knows(mine)
    assert server.knows(other)


def test_a_fetch_that_another_one_of_its_session_overtook_is_refused() -> None:
    server = Server()
    server.open()
    slow = server.sessions.begin(1, 1, {}, (), 0)
    quick = server.fetch(1, 2)
    assert quick.code == codes.NONE
    assert server.sessions.finish(slow, [(("topic", 0), QUIET)], 0) == (codes.INVALID_FETCH_SESSION_EPOCH, 1, ())


def test_epochs_begin_anew_at_1() -> None:
    server = Server()
    server.open()
    server.sessions._sessions[1].epoch = LAST_EPOCH
    assert server.fetch(1, LAST_EPOCH).code == codes.NONE
    assert server.fetch(1, 1).code == codes.NONE


def test_an_id_in_use_is_drawn_again() -> None:
    drawn = iter([4, 4, 4, 7])
    sessions = FetchSessions(10, lambda: next(drawn))
    ids = [sessions.finish(sessions.begin(0, 0, {}, (), 0), [], 0).session_id for _ in range(2)]
    assert ids == [4, 7]


def test_without_room_a_full_fetch_is_answered_without_a_session() -> None:
    server = Server(slots=2)
    assert [server.open(size) for size in (1, 1, 9)] == [1, 2, NO_SESSION]
    assert told(server.fetch(NO_SESSION, INITIAL_EPOCH, *partitions(9))) == partitions(9)
    assert Server(slots=0).open() == NO_SESSION


def test_one_that_was_not_used_for_two_minutes_goes_for_any_other() -> None:
    server = Server(slots=2)
    first, second = server.open(9), server.open(9)
    server.now_ms += EVICTION_MS
    server.fetch(first, 1)
    assert server.open(1) == NO_SESSION
    server.now_ms += 1
    assert server.open(1) not in (NO_SESSION, first, second)
    assert server.open(1) == NO_SESSION, "the other one was used a millisecond ago"
    assert server.knows(first)
    assert not server.knows(second)


def test_one_that_is_older_than_two_minutes_goes_for_a_larger_one() -> None:
    server = Server(slots=3)
    small, larger = server.open(2), server.open(3)
    server.now_ms += EVICTION_MS
    young = server.open(1)
    server.now_ms += 1
    server.fetch(small, 1)
    server.fetch(larger, 1)
    assert server.open(2) == NO_SESSION, "as large is not larger"
    assert server.open(3) != NO_SESSION
    assert [server.knows(one) for one in (small, larger, young)] == [False, True, True]


class Named:
    """Sessions of topics that are given by ids."""

    def __init__(self) -> None:
        self.names: dict[UUID, str] = {}
        self.sessions = FetchSessions(10, lambda: 7, self.names.get)

    def begin(self, session_id: int, epoch: int, *wanted: NamedPartition, has_ids: bool = True) -> Begun:
        asked = {one: Wanted(5, 1_000, topic=self.names.get(one[0])) for one in wanted if isinstance(one[0], UUID)}
        return self.sessions.begin(session_id, epoch, asked, (), 0, has_ids=has_ids)

    def topics(self, session_id: int, epoch: int, *wanted: NamedPartition) -> list[str | None]:
        """The names of the topics that are to be read."""
        begun = self.begin(session_id, epoch, *wanted)
        assert self.sessions.finish(begun, [(one, QUIET) for one in begun.wanted], 0).code == codes.NONE
        return [how.topic for how in begun.wanted.values()]


FIRST, SECOND = UUID(int=1), UUID(int=2)


def test_a_session_keeps_the_names_that_its_ids_had() -> None:
    server = Named()
    server.names[FIRST] = "flights"
    assert server.topics(NO_SESSION, INITIAL_EPOCH, (FIRST, 0), (SECOND, 0)) == ["flights", None]
    server.names[SECOND] = "logs"
    assert server.topics(7, 1) == ["flights", "logs"], "one that is only there now is found"
    server.names.clear()
    assert server.topics(7, 2) == ["flights", "logs"]
    assert server.topics(7, 3, (FIRST, 0)) == ["flights", "logs"], "also when it is asked in another way"
    assert server.topics(7, 4, (UUID(int=3), 0)) == ["flights", "logs", None]


@pytest.mark.parametrize("has_ids", [True, False])
def test_fetches_of_a_session_all_give_ids_or_all_names(has_ids: bool) -> None:
    server = Named()
    opened = server.begin(NO_SESSION, INITIAL_EPOCH, (FIRST, 0), has_ids=has_ids)
    assert server.sessions.finish(opened, [((FIRST, 0), QUIET)], 0).session_id == 7
    assert server.begin(7, 1, has_ids=not has_ids).code == codes.FETCH_SESSION_TOPIC_ID_ERROR
    assert server.begin(7, 9, has_ids=not has_ids).code == codes.INVALID_FETCH_SESSION_EPOCH
    assert server.begin(7, 1, has_ids=has_ids).code == codes.NONE, "what was refused changed nothing"
