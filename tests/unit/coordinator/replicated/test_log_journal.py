"""The coordinator on a replicated log: what one server committed another one serves, and one alone is believed."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kio.serial import entity_reader

from keylane.broker.config import BrokerConfig
from keylane.broker.dispatch import KnownRequests, Later, RequestHeader, decode_request, load_apis
from keylane.broker.handlers import conditional_commit, offset_commit, offset_fetch
from keylane.coordinator.consumer_groups.protocol import HeartbeatRequest
from keylane.coordinator.coordinator import Coordinator
from keylane.coordinator.formats import Records, TopicCommit, encode_batch, encode_records
from keylane.coordinator.groups.protocol import JoinRequest, Leaver, SyncRequest
from keylane.coordinator.offset_service import CommitRequest, CommitResult, ConditionalResult
from keylane.coordinator.replicated.batches import read
from keylane.coordinator.replicated.follower import Follower, Place
from keylane.coordinator.replicated.journal import DeposedError, Fetched, Host, LogJournal, Refused
from keylane.coordinator.replicated.leadership import (
    Batch,
    Entry,
    Init,
    Leadership,
    Limits,
    NotLeadingError,
    Role,
    size_of,
)
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.errors import DataFolderError
from keylane.storage.producers import ProducerEpochError, Producers
from keylane.storage.shared_sync import Round
from keylane.wire import codes
from keylane.wire.batches import HEADER, HEADER_SIZE, decode_records, read_header
from keylane.wire.conditional_commit import CONDITION_FAILED, OUTCOME_UNKNOWN, Condition, Request, read_response
from keylane.wire.versions import response_type
from kit.protocol import decode_answer, encode_request, part

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from keylane.coordinator.journal.image import Image
    from keylane.coordinator.options import CoordinatorOptions

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
OPTIONS = BrokerConfig(offsets_topic_num_partitions=1, message_max_bytes=2_000, group_initial_rebalance_delay_ms=0)


class MemoryLog:
    """A partition that any number of servers write to; the fence is keylane's own broker's."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self._end = 0
        self._epoch = -1
        self._producers = Producers()

    def init(self, expected: Producer | None, told: Callable[[Producer | Refused], None]) -> None:
        if expected is None or expected.epoch == self._epoch:
            self._epoch += 1
            told(Producer(7, self._epoch))
        else:
            told(Refused("PRODUCER_FENCED"))

    def append(self, batch: bytes, told: Callable[[int | Refused], None]) -> None:
        asyncio.get_running_loop().call_soon(lambda: told(self._append(batch)))

    def _append(self, batch: bytes) -> int | Refused:
        header = read_header(batch)
        try:
            assert self._producers.check(header) is None
        except ProducerEpochError:
            return Refused("INVALID_PRODUCER_EPOCH")
        base = self._end
        self._producers.record(header, base, NOW_MS)
        self.batches.append(HEADER.pack(base, *HEADER.unpack_from(batch)[1:]) + batch[HEADER.size :])
        self._end += header.record_count
        return base

    def read(self, offset: int, told: Callable[[Fetched | Refused], None]) -> None:
        asyncio.get_running_loop().call_soon(told, Fetched(b"".join(self.batches), self._end))

    def close(self) -> None: ...


class Flights:
    """The one topic, as groups of KIP-848 see it."""

    version = 1
    topic_id, partition_count = uuid.UUID(int=1), 3

    def get(self, name: str) -> Flights | None:
        return self if name == "flights" else None

    def names(self) -> list[str]:
        return ["flights"]

    def name_of(self, topic_id: uuid.UUID | None) -> str | None:
        return "flights" if topic_id == self.topic_id else None


class Server:
    """A coordinator, and the journal below it."""

    def __init__(self, log: MemoryLog, name: str) -> None:
        self.journal: LogJournal
        self.now_ms = 0
        self.alarms: list[str] = []
        self.read_times = 0
        self.follower = Follower(24 * HOUR_MS, 0)

        def made(image: Image, options: CoordinatorOptions, clock: Callable[[], int]) -> LogJournal:
            loop = asyncio.get_running_loop()
            host = Host(name, clock, lambda: self.now_ms, lambda: Round(loop), loop.call_soon, self.alarms.append)
            limits = Limits(options.message_max_bytes - HEADER_SIZE, turn_bytes=300)
            self.journal = LogJournal(log, 0, image, self.follower, options, host, limits=limits, on_read=self._read)
            return self.journal

        self.coordinator = Coordinator(
            journal=made,
            options=OPTIONS,
            partition_count={"flights": 3}.get,
            topics=Flights(),
            clock=lambda: NOW_MS,
        )

    @property
    def was_read(self) -> bool:
        """Whether the table has had all that the log had."""
        return self.read_times > 0

    def _read(self) -> None:
        self.read_times += 1

    async def start(self) -> Server:
        await self.coordinator.start()
        return self

    def commit(self, offset: int, group: str = "g") -> int | CommitResult:
        topics = [TopicCommit("flights", [0, 2], [offset, offset], [-1, -1], None)]
        return self.coordinator.commit(CommitRequest(group, topics))

    async def committed(self, offset: int, group: str = "g") -> None:
        result = self.commit(offset, group)
        assert isinstance(result, CommitResult)
        assert result.durable is not None
        await result.durable

    async def offsets(self, group: str = "g") -> list[int]:
        confirmed = self.coordinator.confirm(group)
        assert confirmed is not None
        await confirmed
        found = self.coordinator.fetch(group, [("flights", [0, 1, 2])])
        assert not isinstance(found, int)
        return list(found[0].columns.offsets)


def run(check: Coroutine[object, object, None]) -> None:
    asyncio.run(check)


async def long_log() -> tuple[MemoryLog, Server]:
    """With 40 commits, and the server that made them."""
    log = MemoryLog()
    server = await Server(log, "one").start()
    for offset in range(40):
        await server.committed(offset)
    return log, server


def test_a_long_log_is_read_in_turns() -> None:
    """Whoever waits has a turn in between; and a standby that is given the partition meanwhile reads on."""

    async def check() -> None:
        log, first = await long_log()
        second = Server(log, "two")
        second.journal.look()
        turns = 0
        while not second.was_read:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 10
        assert second.read_times == 1
        third = Server(log, "three")
        third.journal.look()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not third.was_read
        await third.start()
        assert await third.offsets() == [39, -1, 39]
        for server in (first, second, third):
            await server.coordinator.close()

    run(check())


def test_who_froze_while_it_loaded_has_the_log_as_it_was_before() -> None:
    """Tombstones of the time in between may be gone when the rest is read."""

    async def check() -> None:
        log, first = await long_log()
        second = Server(log, "two")
        started = asyncio.create_task(second.start())
        for _ in range(4):  # its epoch, its mark, and the first turns of its load
            await asyncio.sleep(0)
        assert not second.journal.is_serving
        assert second.follower.position > 0
        second.now_ms = 10 * HOUR_MS
        await started
        assert second.journal.role is Role.LEADING
        assert second.follower.has_missed_tombstones(13 * HOUR_MS)
        for server in (first, second):
            await server.coordinator.close()

    run(check())


def test_what_one_server_committed_the_next_one_serves() -> None:
    async def check() -> None:
        log = MemoryLog()
        first = await Server(log, "one").start()
        await first.committed(5)
        assert await first.offsets() == [5, -1, 5]
        second = await Server(log, "two").start()
        assert await second.offsets() == [5, -1, 5]
        await second.committed(6)
        # The first one does not know yet.
        with pytest.raises(DeposedError, match="INVALID_PRODUCER_EPOCH"):
            await first.offsets()
        assert first.commit(7) == codes.NOT_COORDINATOR
        assert first.journal.role is Role.DEPOSED
        assert await second.offsets() == [6, -1, 6]
        for server in (first, second):
            await server.coordinator.close()
        third = await Server(log, "three").start()
        assert await third.offsets() == [6, -1, 6]
        await third.coordinator.close()

    run(check())


def test_commits_of_one_turn_stand_in_one_batch_and_none_is_split() -> None:
    async def check() -> None:
        log = MemoryLog()
        server = await Server(log, "one").start()
        before = len(log.batches)
        results = [server.commit(number, f"g{number}") for number in range(40)]
        await asyncio.gather(*(one.durable for one in results if isinstance(one, CommitResult) and one.durable))
        batches = [decode_records(batch) for batch in log.batches[before:]]
        assert 1 < len(batches) < 8, "as many as the size of a batch asks for"
        assert all(len(records) % 2 == 0 for records in batches)
        assert all(len(batch) <= OPTIONS.message_max_bytes for batch in log.batches)
        assert await server.offsets("g39") == [39, -1, 39]
        await server.coordinator.close()
        again = await Server(log, "two").start()
        assert [(await again.offsets(f"g{number}"))[0] for number in range(40)] == list(range(40))
        await again.coordinator.close()

    run(check())


def test_commits_have_the_offsets_of_their_own_records() -> None:
    async def check() -> None:
        log = MemoryLog()
        server = await Server(log, "one").start()
        results = [server.commit(number, f"g{number}") for number in range(3)]
        await asyncio.gather(*(one.durable for one in results if isinstance(one, CommitResult) and one.durable))
        again = await Server(log, "two").start()
        for name in ("g0", "g1", "g2"):
            stores = [one.coordinator._image.store for one in (server, again)]
            live, loaded = (store.log_offset_of(name, "flights", 2) for store in stores)
            assert live == loaded
        for one in (server, again):
            await one.coordinator.close()

    run(check())


def test_a_refused_condition_rests_on_an_append_that_began_after_it() -> None:
    """What was sent before may stand before another leader's commits, and be acknowledged after them."""

    async def check() -> None:
        server = await Server(MemoryLog(), "one").start()
        sent = server.commit(5)
        assert isinstance(sent, CommitResult)
        await asyncio.sleep(0)  # it is on its way
        request = CommitRequest("g", [TopicCommit("flights", [0], [9], [-1], None)])
        refused = server.coordinator.commit_if(request, [[7]])
        assert isinstance(refused, ConditionalResult)
        assert (refused.error, refused.current) == (CONDITION_FAILED, [[5]]), "what is pending counts"
        assert refused.durable is not None
        assert refused.durable is not sent.durable
        await refused.durable
        await server.coordinator.close()

    run(check())


def test_waiting_reads_share_one_note() -> None:
    async def check() -> None:
        log = MemoryLog()
        server = await Server(log, "one").start()
        before = len(log.batches)
        await asyncio.gather(*(server.offsets() for _ in range(50)))
        assert len(log.batches) == before + 1
        await server.coordinator.close()

    run(check())


def test_groups_and_what_ends_them_are_in_the_log() -> None:
    async def check() -> None:
        log = MemoryLog()
        first = await Server(log, "one").start()
        joined = await first.coordinator.join("g", _join())
        await first.coordinator.sync("g", _sync(joined.member_id, joined.generation))
        second = await Server(log, "two").start()
        error, found = second.coordinator.describe("g")
        assert (error, found.state, len(found.members)) == (codes.NONE, "Stable", 1)
        await second.coordinator.leave("g", [Leaver(joined.member_id, None)])
        await second.committed(5, "h")
        ended = second.coordinator.delete_group("h")
        assert not isinstance(ended, int)
        await ended
        third = await Server(log, "three").start()
        assert third.coordinator.describe("g")[1].state == "Empty"
        assert await third.offsets("h") == [-1, -1, -1]
        for server in (first, second, third):
            await server.coordinator.close()

    run(check())


def _heartbeat(member: str, epoch: int, *owned: int) -> HeartbeatRequest:
    has = {Flights.topic_id: frozenset(owned)} if owned else {}
    return HeartbeatRequest("g", member, epoch, "c", "/h", None, None, 60_000, ("flights",), owned=has)


def test_a_member_of_kip_848_goes_on_in_its_epoch_at_the_next_leader() -> None:
    async def check() -> None:
        log = MemoryLog()
        first = await Server(log, "one").start()
        joined = await first.coordinator.consumer_heartbeat(_heartbeat("m", 0))
        assert joined.error == codes.NONE
        assert {topic: set(ones) for topic, ones in (joined.assignment or {}).items()} == {Flights.topic_id: {0, 1, 2}}
        second = await Server(log, "two").start()
        went_on = await second.coordinator.consumer_heartbeat(_heartbeat("m", joined.epoch, 0, 1, 2))
        assert (went_on.error, went_on.epoch, went_on.assignment) == (codes.NONE, joined.epoch, joined.assignment)
        commit = CommitRequest(
            "g",
            [TopicCommit("flights", [0], [9], [-1], None)],
            member_id="m",
            generation=joined.epoch,
            has_member_epochs=True,
        )
        taken = second.coordinator.commit(commit)
        assert isinstance(taken, CommitResult)
        assert taken.durable is not None
        await taken.durable
        # The first one does not know yet: what it decides is in no log, and nobody is told of it.
        refused = await first.coordinator.consumer_heartbeat(_heartbeat("n", 0))
        assert refused.error in (codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR)
        found = second.coordinator.describe_consumer_group("g")
        assert [(one.member_id, one.epoch) for one in found.members] == [("m", joined.epoch)]
        for server in (first, second):
            await server.coordinator.close()

    run(check())


def _join() -> JoinRequest:
    return JoinRequest(
        "", None, "c", "h", 10_000, 10_000, "consumer", (("range", b""),), requires_known_member_id=False
    )


def _sync(member_id: str, generation: int) -> SyncRequest:
    return SyncRequest(member_id, None, generation, "consumer", "range", {member_id: b"all"})


def test_a_log_that_cannot_be_read_is_told() -> None:
    async def check() -> None:
        log = MemoryLog()
        server = await Server(log, "one").start()
        await server.committed(5)
        log.batches[-1] = log.batches[-1][:-3] + b"???"
        with pytest.raises(DataFolderError, match="the checksum of the batch at offset 1 does not hold"):
            await Server(log, "two").start()
        await server.coordinator.close()

    run(check())


# --- the machine alone ---


def leading(limits: Limits | None = None) -> tuple[Leadership, list[str]]:
    alarms: list[str] = []
    made = Leadership(Follower(24 * HOUR_MS, 0), limits or Limits(1_000), alarms.append)
    made.take_over()
    assert made.step(0) == Init(None)
    assert made.step(0) is None, "it asks once"
    made.initialised(Producer(7, 3), 0)
    mark = made.step(0)
    assert isinstance(mark, Batch)
    assert made.acknowledged(mark, 10, 0)
    made.hear(Place(0, 10, Producer(7, 2)), 0)
    refuses(made)
    made.hear(Place(10, 11, Producer(7, 3)), 0)
    return made, alarms


def refuses(leadership: Leadership) -> None:
    with pytest.raises(NotLeadingError):
        leadership.append(entry())
    with pytest.raises(NotLeadingError):
        leadership.confirm()


def entry(offset: int = 1) -> Entry:
    records: Records = encode_records([(b"k%d" % offset, b"v")], 0)
    return Entry(records, lambda _failure, _offset: None)


def sent(leadership: Leadership, now_ms: int = 0) -> Batch:
    batch = leadership.step(now_ms)
    assert isinstance(batch, Batch)
    return batch


def test_nobody_is_served_before_the_own_mark_is_read() -> None:
    made = Leadership(Follower(24 * HOUR_MS, 0), Limits(1_000), print)
    refuses(made)
    made.take_over()
    refuses(made)
    assert leading()[0].is_serving, "and it refuses while it loads"


def test_a_read_waits_for_a_batch_that_begins_after_it() -> None:
    made, _ = leading()
    made.append(entry())
    first = sent(made)
    behind = made.confirm()
    assert behind is not first
    assert made.step(0) is None, "the next one has room until the first has an answer"
    assert made.acknowledged(first, 11, 0)
    assert sent(made) is behind


def test_batches_have_the_epoch_and_follow_each_other() -> None:
    made, _ = leading(Limits(size_of(entry())))
    batches = [made.append(entry(number)) for number in range(8)]
    on_their_way = [sent(made) for _ in range(5)]
    assert on_their_way == batches[:5], "those that are full need not wait"
    assert [batch.sequence for batch in on_their_way] == [1, 2, 3, 4, 5]
    assert made.step(0) is None, "five at most have no answer"


def test_what_comes_while_a_batch_is_on_its_way_goes_together() -> None:
    made, _ = leading()
    first = made.append(entry())
    assert sent(made) is first
    batches = [made.append(entry(number)) for number in range(7)]
    assert made.step(0) is None
    assert made.acknowledged(first, 11, 0)
    assert sent(made) is batches[0] is batches[6]
    assert (len(batches[0].entries), batches[0].sequence) == (7, 2)


def test_a_sign_of_life_each_hour_and_a_new_epoch_each_day() -> None:
    made, _ = leading()
    assert made.step(HOUR_MS - 1) is None
    end = 11
    for hour in range(1, 24):
        note = sent(made, hour * HOUR_MS)
        assert note.entries == []
        assert made.acknowledged(note, end, hour * HOUR_MS)
        end += 1
    made.append(entry())
    assert made.step(24 * HOUR_MS) == Init(Producer(7, 3))
    made.initialised(Producer(7, 4), 24 * HOUR_MS)
    mark = sent(made, 24 * HOUR_MS)
    assert (mark.entries, mark.producer, mark.sequence) == ([], Producer(7, 4), 0)
    assert made.acknowledged(mark, end, 24 * HOUR_MS)
    assert sent(made, 24 * HOUR_MS).sequence == 1


def test_who_was_away_for_half_a_day_is_deposed_and_never_asks_again() -> None:
    made, _ = leading()
    made.append(entry())
    assert made.step(12 * HOUR_MS) is None
    assert made.role is Role.DEPOSED
    assert len(made.failed()) == 1
    made.initialised(Producer(7, 9), 12 * HOUR_MS)
    assert made.step(13 * HOUR_MS) is None
    with pytest.raises(NotLeadingError, match="no append was acknowledged for so long"):
        made.append(entry())


def test_an_offset_that_is_not_due_is_an_alarm() -> None:
    made, alarms = leading()
    made.append(entry())
    batch = sent(made)
    assert not made.acknowledged(batch, 12, 0)
    assert made.role is Role.DEPOSED
    assert "offset 12 was given to a batch of epoch 3 where 11 was due" in alarms[0]


def test_an_older_epoch_behind_a_newer_one_is_an_alarm_and_comes_into_the_table() -> None:
    follower = Follower(24 * HOUR_MS, 0)
    assert follower.hear(Place(0, 1, Producer(7, 3))) is None
    told = follower.hear(Place(1, 2, Producer(7, 2)))
    assert told is not None
    assert "a batch of epoch 2 at offset 1, behind one of epoch 3" in told
    assert follower.position == 2
    assert follower.hear(Place(2, 3, Producer(7, 3))) is None
    told = follower.hear(Place(3, 4, Producer(8, 0)))
    assert told is not None
    assert "producer id 8 at offset 3, where 7 wrote before" in told


def test_who_has_not_read_for_half_of_the_tombstones_time_begins_again() -> None:
    follower = Follower(24 * HOUR_MS, 0)
    assert not follower.has_missed_tombstones(12 * HOUR_MS)
    assert follower.has_missed_tombstones(12 * HOUR_MS + 1)
    follower.reached_end(6 * HOUR_MS)
    assert not follower.has_missed_tombstones(18 * HOUR_MS)
    follower.hear(Place(0, 1, Producer(7, 3)))
    follower.begin_again(20 * HOUR_MS)
    assert (follower.position, follower.has_missed_tombstones(30 * HOUR_MS)) == (0, False)


def test_reads_skip_what_is_known() -> None:
    log = MemoryLog()
    for number in range(3):
        entry_ = entry(number)
        whole = entry_.records._replace(producer_id=7, producer_epoch=0, base_sequence=number)
        log._append(b"".join(encode_batch(whole, 0)))
    assert [place.base_offset for place, _ in read(b"".join(log.batches), 1)] == [1, 2]


async def answered(server: Server, handler: Any, version: int, request: Any) -> Any:
    """What a handler of the broker answers for this server's coordinator, when what it waits for is over."""
    node: Any = SimpleNamespace(coordinator=server.coordinator)
    told = handler.begin(request, RequestHeader(handler.API_KEY, version, 1, None, "h"), node)
    while isinstance(told, Later):
        await asyncio.wait({told.durable})
        told = told.finish()
    body = told if isinstance(told, bytes) else b"".join(told)
    kind = response_type(handler.__name__.rpartition(".")[2], version)
    return entity_reader(kind)(body, 0)[0]


def test_clients_of_a_deposed_leader_are_told_who_it_is_not() -> None:
    """It does not know yet: neither what it has in its table nor what it appends counts."""

    async def check() -> None:
        log = MemoryLog()
        first = await Server(log, "one").start()
        asked = [offset_fetch.OffsetFetch("g", [("flights", [0])], require_stable=False)]
        topics = [TopicCommit("flights", [0], [5], [-1], None)]
        accepted = await answered(first, offset_commit, 8, CommitRequest("g", topics))
        assert accepted.topics[0].partitions[0].error_code == codes.NONE
        served = await answered(first, offset_fetch, 5, asked)
        assert (served.error_code, served.topics[0].partitions[0].committed_offset) == (codes.NONE, 5)
        second = await Server(log, "two").start()
        await second.committed(6)
        refused = await answered(first, offset_fetch, 5, asked)
        assert (refused.error_code, refused.topics) == (codes.NOT_COORDINATOR, ())

        third = await Server(log, "three").start()
        refused = await answered(second, offset_commit, 8, CommitRequest("g", topics))
        assert refused.topics[0].partitions[0].error_code == codes.NOT_COORDINATOR
        assert await third.offsets() == [6, -1, 6]

    run(check())


def test_a_fetch_that_comes_again_is_confirmed_too() -> None:
    """A request that is recognised by its bytes waits like one that is decoded."""
    topic = part("offset_fetch", 8, "OffsetFetchRequestTopics", name="flights", partition_indexes=(0,))
    group = part("offset_fetch", 8, "OffsetFetchRequestGroup", group_id="g", topics=(topic,))
    request = part("offset_fetch", 8, "OffsetFetchRequest", groups=(group,), require_stable=False)
    frame = encode_request("offset_fetch", request, 1)[4:]

    async def check() -> None:
        log = MemoryLog()
        first = await Server(log, "one").start()
        await first.committed(5)
        node: Any = SimpleNamespace(coordinator=first.coordinator)
        known = KnownRequests(node, load_apis())
        known.remember(frame, decode_request(frame, "h", load_apis()).request)
        second = await Server(log, "two").start()
        await second.committed(6)
        found = known.recognise(frame)
        assert isinstance(found, Later), "the offset that was committed before is told"
        await asyncio.wait({found.durable})
        _, told = decode_answer("offset_fetch", 8, found.finish()[4:])
        assert (told.groups[0].error_code, told.groups[0].topics) == (codes.NOT_COORDINATOR, ())

    run(check())


async def answered_if(server: Server, expected: int, offset: int) -> int:
    """The error of a conditional commit, as a handler tells it."""
    topics = [("flights", [Condition(0, expected, offset, -1, "")])]
    node: Any = SimpleNamespace(coordinator=server.coordinator)
    header = RequestHeader(conditional_commit.API_KEY, 0, 1, None, "h")
    told = conditional_commit.begin(Request("g", -1, "", None, topics), header, node)
    while isinstance(told, Later):
        await asyncio.wait({told.durable})
        told = told.finish()
    return read_response(told).error


def test_a_conditional_commit_of_a_deposed_leader_may_have_been_made() -> None:
    """Only who was refused, or came too late, is told that it can be tried again."""

    async def check() -> None:
        log = MemoryLog()
        leaders = [await Server(log, "0").start()]
        assert await answered_if(leaders[0], -1, 5) == codes.NONE
        leaders.append(await Server(log, "1").start())
        assert await answered_if(leaders[0], 5, 6) == OUTCOME_UNKNOWN
        assert await answered_if(leaders[0], 5, 6) == codes.NOT_COORDINATOR, "it knows now, and appends nothing"
        leaders.append(await Server(log, "2").start())
        assert await answered_if(leaders[1], 7, 8) == codes.NOT_COORDINATOR, "another offset is there: nothing is made"
        assert await answered_if(leaders[2], 5, 6) == codes.NONE

    run(check())
