"""Fetch sessions beside an oracle: whatever changes in between, a session tells what a whole fetch would."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.broker.fetch_sessions import EVICTION_MS, INITIAL_EPOCH, LAST_EPOCH, NO_SESSION, FetchSessions
from keylane.broker.reads import FetchedPartition, Wanted
from keylane.wire import codes
from kit.examples import examples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.broker.fetch_sessions import Begun
    from keylane.broker.topics import NamedPartition

    Answers = list[tuple[NamedPartition, FetchedPartition]]

SLOTS = 1
PARTITIONS: list[NamedPartition] = [("a", 0), ("a", 1), ("b", 0)]


class Log:
    """One partition: a record is one byte. It has what sessions need of a log."""

    def __init__(self) -> None:
        self.log_start_offset = self.high_watermark = 0
        self.is_closed = False
        self.listeners: set[Any] = set()

    def tell(self, new_bytes: int) -> None:
        for listener in list(self.listeners):
            listener(new_bytes)


@dataclass
class Client:
    """What a client wants, and what it was told; it asks by the rules of KIP-227."""

    wanted: dict[NamedPartition, Wanted] = field(default_factory=dict)
    session_id: int = NO_SESSION
    epoch: int = INITIAL_EPOCH
    asked: dict[NamedPartition, Wanted] = field(default_factory=dict)
    """What the session knows, in the order in which it has to read."""
    told: dict[NamedPartition, tuple[int, int, int]] = field(default_factory=dict)
    """Error code, high watermark and log start offset, of the last answer that told of the partition."""

    def reset(self) -> None:
        self.session_id, self.epoch, self.asked, self.told = NO_SESSION, INITIAL_EPOCH, {}, {}


def three(answer: FetchedPartition) -> tuple[int, int, int]:
    return answer.error_code, answer.high_watermark, answer.log_start_offset


class World:
    """Two clients, one slot, and logs that grow, shrink, go, and come back."""

    def __init__(self) -> None:
        numbers = itertools.count(1)
        self.sessions = FetchSessions(SLOTS, lambda: next(numbers))
        self.now_ms = 0
        self.logs: dict[NamedPartition, Log] = {partition: Log() for partition in PARTITIONS}
        self.clients = [Client(dict.fromkeys(PARTITIONS, Wanted(0, 2))) for _ in range(2)]
        self.budget = 0

    def read(self, wanted: Mapping[NamedPartition, Wanted]) -> Answers:
        left, found = self.budget, []
        for partition, how in wanted.items():
            log = self.logs.get(partition)
            if log is None:
                answer = FetchedPartition(partition[1], codes.UNKNOWN_TOPIC_OR_PARTITION)
            elif not log.log_start_offset <= how.offset <= log.high_watermark:
                answer = FetchedPartition(partition[1], codes.OFFSET_OUT_OF_RANGE)
            else:
                records = bytes(min(log.high_watermark - how.offset, how.max_bytes, left))
                left -= len(records)
                offsets = (log.high_watermark, log.log_start_offset)
                answer = FetchedPartition(partition[1], codes.NONE, *offsets, records)
            found.append((partition, answer))
        return found

    def append(self, partition: NamedPartition, count: int) -> None:
        """To a new log, if there is none."""
        log = self.logs.setdefault(partition, Log())
        log.high_watermark += count
        log.tell(count)

    def trim(self, partition: NamedPartition, count: int) -> None:
        log = self.logs.get(partition)
        if log is not None:
            log.log_start_offset = min(log.log_start_offset + count, log.high_watermark)
            log.tell(0)

    def delete(self, partition: NamedPartition) -> None:
        log = self.logs.pop(partition, None)
        if log is not None:
            log.is_closed = True
            log.tell(0)

    def rest(self, session_id: int, answers: Answers) -> None:
        """As the handler of fetches does."""
        for partition, answer in answers:
            log: Any = self.logs.get(partition)
            if log is not None and answer.error_code == codes.NONE:
                self.sessions.rest(session_id, partition, log)

    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    def assign(self, client: int, chosen: set[NamedPartition]) -> None:
        known = self.clients[client].wanted
        self.clients[client].wanted = {one: known.get(one, Wanted(0, 2)) for one in sorted(chosen)}

    def seek(self, client: int, partition: NamedPartition, offset: int, max_bytes: int) -> None:
        wanted = self.clients[client].wanted
        if partition in wanted:
            wanted[partition] = Wanted(offset, max_bytes)

    def loses_an_answer(self, client: int) -> None:
        """Its next fetch of the session is refused, and it asks for a new one."""
        one = self.clients[client]
        if one.session_id:
            self.sessions.begin(one.session_id, one.epoch, {}, (), self.now_ms)

    def epochs_run_out(self, client: int) -> None:
        one = self.clients[client]
        session = self.sessions._sessions.get(one.session_id)
        if session is not None and session.epoch == one.epoch:
            session.epoch = one.epoch = LAST_EPOCH

    def fetch(self, client: int, meanwhile: NamedPartition | None, goes_on: bool, budget: int) -> None:
        """With `goes_on` the client asks for what follows the next time, as consumers do."""
        self.budget = budget
        one = self.clients[client]
        answers = self.full(one) if one.session_id == NO_SESSION else self.incremental(one, meanwhile)
        for partition, answer in answers if goes_on else ():
            offset, max_bytes = one.wanted[partition][:2]
            one.wanted[partition] = Wanted(offset + len(answer.records), max_bytes)

    def full(self, one: Client) -> Answers:
        begun = self.sessions.begin(NO_SESSION, INITIAL_EPOCH, one.wanted, (), self.now_ms)
        assert begun.wanted == one.wanted
        answers = self.read(begun.wanted)
        finished = self.sessions.finish(begun, answers, self.now_ms)
        assert (finished.code, finished.answers) == (codes.NONE, answers), "a whole fetch is told all"
        one.reset()
        if finished.session_id:
            one.session_id, one.epoch, one.asked = finished.session_id, 1, dict(one.wanted)
            one.told = {partition: three(answer) for partition, answer in answers}
            self.rest(finished.session_id, answers)
        return answers

    def incremental(self, one: Client, meanwhile: NamedPartition | None) -> Answers:
        changed = {partition: how for partition, how in one.wanted.items() if one.asked.get(partition) != how}
        forgotten = [partition for partition in one.asked if partition not in one.wanted]
        begun = self.sessions.begin(one.session_id, one.epoch, changed, forgotten, self.now_ms)
        if begun.code != codes.NONE:
            assert self.sessions.finish(begun, [], self.now_ms) == (begun.code, NO_SESSION, [])
            one.reset()
            return []
        to_read = begun.wanted
        if meanwhile is not None:
            self.append(meanwhile, 1)
            to_read = begun.session.to_read() if begun.session is not None else to_read
        for partition in forgotten:
            del one.asked[partition]
            del one.told[partition]
        one.asked |= changed
        looked_at = [(partition, how) for partition, how in one.asked.items() if partition in to_read]
        assert list(to_read.items()) == looked_at, "what it reads, and in which order"
        return self.compare(one, begun, to_read)

    def compare(self, one: Client, begun: Begun, to_read: Mapping[NamedPartition, Wanted]) -> Answers:
        """With what a fetch of everything would be told; of partitions that rest there is no news."""
        answers = self.read(one.asked)
        read = [found for found in answers if found[0] in to_read]
        finished = self.sessions.finish(begun, read, self.now_ms)
        assert finished.code == codes.NONE
        self.rest(finished.session_id, read)
        told = dict(finished.answers)
        assert [partition for partition, _ in answers if partition in told] == list(told)
        for partition, whole in answers:
            if partition in told:
                assert told[partition] == whole
                is_news = whole.records or whole.error_code or one.told.get(partition) != three(whole)
                assert is_news, f"{partition} has not changed"
                one.told[partition] = three(whole)
            else:
                assert not whole.records
                assert one.told[partition] == three(whole), f"{partition} has changed, and nobody was told"
            if whole.records:
                one.asked[partition] = one.asked.pop(partition)
        if one.wanted:
            assert finished.session_id == one.session_id
            one.epoch = 1 if one.epoch == LAST_EPOCH else one.epoch + 1
        else:
            assert finished.session_id == NO_SESSION
            one.reset()
        return answers


clients = st.integers(0, 1)
partitions = st.sampled_from(PARTITIONS)
changes = st.one_of(
    st.tuples(st.just(World.append), partitions, st.integers(1, 4)),
    st.tuples(st.just(World.trim), partitions, st.integers(1, 2)),
    st.tuples(st.just(World.delete), partitions),
    st.tuples(st.just(World.time_passes), st.sampled_from([1, EVICTION_MS, EVICTION_MS + 1])),
    st.tuples(st.just(World.assign), clients, st.sets(partitions)),
    st.tuples(st.just(World.seek), clients, partitions, st.integers(0, 6), st.integers(1, 3)),
    st.tuples(st.just(World.loses_an_answer), clients),
    st.tuples(st.just(World.epochs_run_out), clients),
)
fetches = st.tuples(clients, st.none() | partitions, st.sampled_from([True, True, False]), st.integers(0, 5))
rounds = st.tuples(st.lists(changes, max_size=2), fetches)


@given(st.lists(rounds, min_size=10, max_size=40))
@settings(max_examples=examples(300), deadline=None)
def test_a_session_tells_what_a_whole_fetch_would(history: list[tuple[list[tuple[Any, ...]], tuple[Any, ...]]]) -> None:
    world = World()
    for happened, fetched in history:
        for change, *arguments in happened:
            change(world, *arguments)
        world.fetch(*fetched)
        assert len(world.sessions._sessions) <= SLOTS
        open_ones = {id(known) for one in world.sessions._sessions.values() for known in one.partitions.values()}
        called = {id(listener) for log in world.logs.values() for listener in log.listeners}
        assert called <= open_ones, "a log calls a session that is over"
