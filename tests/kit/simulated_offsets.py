"""A world of offset servers on one partition of a replicated log, and all that may happen to them.

Servers take over whenever the seed says, so that two and three believe that they lead. Each has a connection to the
log's broker, which may break: what was sent on it arrives late, twice, or never, and its server sends what is
unanswered again on a new one. The log is compacted at any time; servers crash, freeze and come back; hours and days
pass. The servers' code is keylane's own: `LogJournal` below `OffsetService`. The broker's is keylane's, too: epochs by
`TransactionalIds`, fence and sequences by `Producers`.

Clients commit, commit conditionally, remove and fetch. Each group's history goes to `kit.linearizable`.

`Rules` says where the world differs from the design, to show that the oracle finds it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from keylane.broker.config import BrokerConfig
from keylane.coordinator.formats import OffsetKey, TopicCommit, encode_offset_key
from keylane.coordinator.journal.image import Image
from keylane.coordinator.offset_service import CommitRequest, CommitResult, ConditionalResult, OffsetService
from keylane.coordinator.replicated.follower import Follower
from keylane.coordinator.replicated.journal import Fetched, Host, LogJournal, Refused
from keylane.coordinator.replicated.leadership import SERVING, Limits, Role
from keylane.coordinator.transactions.transactional_ids import CLASSIC, Producer, TransactionalIds
from keylane.storage.filesystem import StorageError
from keylane.storage.producers import OutOfOrderSequenceError, ProducerEpochError, Producers
from keylane.storage.shared_sync import Round
from keylane.wire import codes
from keylane.wire.batches import HEADER, HEADER_SIZE, BatchRecord, decode_records, read_header, rebuild_batch
from kit.linearizable import Operation, why_not

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

T = TypeVar("T")

PARTITIONS = 2
GROUPS = ("a", "b")
TOPIC = "t"
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
RETENTION_MS = DAY_MS
"""How long tombstones stay once compaction has seen them."""
GIVE_UP_MS = 2 * MINUTE_MS
"""A producer sends a batch again for so long."""

LOOP = asyncio.new_event_loop()
"""Rounds want one; it never runs."""
LOOP.close()


@dataclass(frozen=True)
class Rules:
    """How the world works; the defaults are the design."""

    has_fence: bool = True
    """Whether the broker refuses older epochs."""
    has_marks: bool = False
    """Whether readers skip what an older epoch wrote behind a newer mark."""
    reads: str = "append"
    """What a read waits for: `append`, `end` (the log's end, as the broker tells it that this server is connected to;
    one that does not lead the log any more tells an old one), or `nothing` (a lease)."""
    keeps_late_tombstones: bool = True
    """Whether a reader that was away too long begins again."""


DESIGN = Rules()


class Broker:
    """The log's partition, and the coordinator of its transactional id."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.batches: list[bytes] = []
        self.end = 0
        self._producers = Producers()
        self._ids = TransactionalIds(max_timeout_ms=MINUTE_MS, expiration_ms=7 * DAY_MS)
        self._next_id = 1
        self._seen_by_compaction: dict[int, int] = {}
        """By offset of a tombstone, when compaction saw it first."""
        self._last_of: dict[int, int] = {}
        """By producer id, its last batch's base offset: compaction keeps that batch, be it empty."""

    def init(self, expected: Producer | None) -> Producer | Refused:
        for name in self._ids.expired(self._world.now_ms):
            self._ids.restore(name, None)
        new_id = None
        if self._ids.needs_producer_id("p", expected, CLASSIC):
            new_id, self._next_id = self._next_id, self._next_id + 1
        if expected is not None and self._ids.get("p") is None:
            return Refused("the id is not known")
        given = self._ids.init("p", MINUTE_MS, expected, new_id, self._world.now_ms, CLASSIC)
        if isinstance(given, int):
            return Refused(f"error {given}")
        self._ids.restore("p", given)
        return given.producer

    def append(self, batch: bytes) -> int:
        """The base offset, or -1 for a refusal for good, -2 for one out of order."""
        self._producers.expire(self._world.now_ms - DAY_MS)
        header = read_header(batch)
        try:
            if self._world.rules.has_fence:
                known = self._producers.check(header)
                if known is not None:
                    self._world.seen["repeated"] += 1
                    return known.base_offset
        except ProducerEpochError:
            self._world.seen["fenced"] += 1
            return -1
        except OutOfOrderSequenceError:
            return -2
        base = self.end
        if self._world.rules.has_fence:
            self._producers.record(header, base, self._world.now_ms)
        self._last_of[header.producer_id] = base
        self.batches.append(HEADER.pack(base, *HEADER.unpack_from(batch)[1:]) + batch[HEADER.size :])
        self.end = base + header.record_count
        return base

    def read(self, offset: int) -> Fetched:
        found = []
        for batch in self.batches:
            if read_header(batch).next_offset > offset:
                found.append(batch)
                if self._world.random.random() < 0.3:
                    break
        return Fetched(b"".join(found), self.end)

    def compact(self) -> None:
        """Up to some batch: the last record of each key stays, tombstones for a while."""
        world = self._world
        bound = world.random.randrange(len(self.batches) + 1)
        rows: list[tuple[bytes, list[BatchRecord]]] = [(batch, decode_records(batch)) for batch in self.batches[:bound]]
        last = {one.key: one.offset for _, found in rows for one in found}
        kept: list[bytes] = []
        for batch, found in rows:
            header = read_header(batch)
            left = [one for one in found if last[one.key] == one.offset and not self._is_over(one)]
            horizon = world.now_ms + RETENTION_MS if any(one.value is None for one in left) else None
            if left or header.base_offset in self._last_of.values():
                kept.append(rebuild_batch(header, left, horizon))
        world.seen["compacted"] += 1
        self.batches[:bound] = kept

    def _is_over(self, record: BatchRecord) -> bool:
        """A tombstone that readers had the time to see."""
        if record.value is not None:
            return False
        seen_ms = self._seen_by_compaction.setdefault(record.offset, self._world.now_ms)
        return self._world.now_ms - seen_ms > RETENTION_MS


class Unanswered(NamedTuple):
    batch: bytes
    told: Callable[[int | Refused], None]
    since_ms: int


class Connection:
    """Requests arrive in their order; when it is broken, perhaps, and later, and no answer comes back."""

    def __init__(self, owner: SimulatedLog) -> None:
        self.owner = owner
        self.requests: deque[Callable[[], Callable[[], None]]] = deque()
        self.answers: deque[Callable[[], None]] = deque()
        self.is_broken = False
        self.old_end: int | None = None
        """Where the log ended when the broker that this goes to lost its leadership, if it did."""


class SimulatedLog:
    """One server's way to the log: a producer that keeps order, and sends again what has no answer."""

    def __init__(self, world: World, broker: Broker) -> None:
        self._world = world
        self._broker = broker
        self._unanswered: deque[Unanswered] = deque()
        self._other: list[Callable[[Connection], None]] = []
        """Questions without an answer that are asked again."""
        self.connection = self._connect()

    def _connect(self) -> Connection:
        made = Connection(self)
        self._world.connections.append(made)
        return made

    def init(self, expected: Producer | None, told: Callable[[Producer | Refused], None]) -> None:
        self._ask(lambda: self._broker.init(expected), told)

    def read(self, offset: int, told: Callable[[Fetched | Refused], None]) -> None:
        self._ask(lambda: self._broker.read(offset), told)

    def end(self, told: Callable[[int], None]) -> None:
        connection = self.connection
        self._ask(lambda: self._broker.end if connection.old_end is None else connection.old_end, told)

    def append(self, batch: bytes, told: Callable[[int | Refused], None]) -> None:
        self._unanswered.append(Unanswered(batch, told, self._world.now_ms))
        self._send(batch, self.connection)

    def close(self) -> None:
        self.connection.is_broken = True

    def break_off(self) -> None:
        """The connection is gone; all that has no answer goes out again, in its order."""
        self.connection.is_broken = True
        self.connection.answers.clear()
        self.connection = self._connect()
        if self._unanswered and self._world.now_ms - self._unanswered[0].since_ms > GIVE_UP_MS:
            self._refuse("no answer for too long")
            return
        for one in self._unanswered:
            self._send(one.batch, self.connection)
        for ask in list(self._other):
            ask(self.connection)

    def _ask(self, question: Callable[[], T], told: Callable[[T], None]) -> None:
        is_over = False

        def ask(connection: Connection) -> None:
            def arrive() -> Callable[[], None]:
                answer = question()

                def tell() -> None:
                    nonlocal is_over
                    if not is_over:
                        is_over = True
                        self._other.remove(ask)
                        told(answer)

                return tell

            connection.requests.append(arrive)

        self._other.append(ask)
        ask(self.connection)

    def _send(self, batch: bytes, connection: Connection) -> None:
        def arrive() -> Callable[[], None]:
            base = self._broker.append(batch)
            return lambda: self._answered(batch, base)

        connection.requests.append(arrive)

    def _answered(self, batch: bytes, base: int) -> None:
        if not self._unanswered:
            return
        if base < 0:
            self._refuse("INVALID_PRODUCER_EPOCH" if base == -1 else "OUT_OF_ORDER_SEQUENCE_NUMBER")
            return
        assert self._unanswered[0].batch is batch, "answers come in the order of the requests"
        self._unanswered.popleft().told(base)

    def _refuse(self, reason: str) -> None:
        left, self._unanswered = self._unanswered, deque()
        for one in left:
            one.told(Refused(reason))


@dataclass
class Server:
    """One process: its table outlives leaderships, and not a crash."""

    name: str
    log: SimulatedLog
    image: Image
    follower: Follower
    journal: LogJournal = field(init=False)
    service: OffsetService = field(init=False)
    is_frozen: bool = False
    due: list[Callable[[], None]] = field(default_factory=list)
    """What its event loop has to do."""


class World:
    """One run of a seed."""

    def __init__(self, random: random.Random, rules: Rules = DESIGN, servers: int = 3) -> None:
        self.random = random
        self.rules = rules
        self.now_ms = 1_700_000_000_000
        self.moment = 0
        self.connections: list[Connection] = []
        self.alarms: list[str] = []
        self.seen = dict.fromkeys(
            ("acknowledged", "compacted", "conditions", "crashed", "deposed", "fenced", "frozen", "led"), 0
        )
        self.seen |= dict.fromkeys(("reads", "refused conditions", "removed", "repeated", "unknown", "several lead"), 0)
        self.broker = Broker(self)
        self.histories: dict[str, list[Operation]] = {group: [] for group in GROUPS}
        self._known = {group: dict.fromkeys(range(PARTITIONS), -1) for group in GROUPS}
        """What some client believes is committed."""
        self._number = 0
        self._options = BrokerConfig(offsets_topic_num_partitions=1, message_max_bytes=1_000)
        self.servers = [self._start(f"s{number}") for number in range(servers)]

    # --- servers ---

    def _start(self, name: str) -> Server:
        image, follower = Image(), Follower(self._retention_ms(), self.now_ms)
        log = SimulatedLog(self, self.broker)
        return self._stand_by(Server(name, log, image, follower))

    def _retention_ms(self) -> int:
        return RETENTION_MS if self.rules.keeps_late_tombstones else 1_000 * RETENTION_MS

    def _stand_by(self, server: Server) -> Server:
        """A new journal on the same table."""
        server.log.close()
        server.log = SimulatedLog(self, self.broker)
        server.due = []
        host = Host(
            server.name,
            lambda: self.now_ms,
            lambda: self.now_ms,
            lambda: Round(LOOP),
            server.due.append,
            self.alarms.append,
        )

        def deposed() -> None:
            self.seen["deposed"] += 1
            server.due.append(lambda: self._again(server, journal))

        # A fetch has a few batches of these sizes: some are taken in one turn, some in several.
        limits = Limits(self._options.message_max_bytes - HEADER_SIZE, turn_bytes=self.random.choice((1, 300)))
        journal = LogJournal(server.log, 0, server.image, server.follower, self._options, host, deposed, limits)
        if self.rules.has_marks:
            skip_what_marks_fence(journal)
        server.journal = journal
        image = server.image
        service = OffsetService(
            image.store, image.transactional, journal, self._options, {TOPIC: PARTITIONS}.get, host.clock
        )
        server.service = service
        return server

    def _again(self, server: Server, journal: LogJournal) -> None:
        if server.journal is journal:
            self._stand_by(server)

    def crash(self, server: Server) -> None:
        """The process ends; what it had sent may still arrive."""
        self.seen["crashed"] += 1
        server.image, server.follower = Image(), Follower(self._retention_ms(), self.now_ms)
        server.is_frozen = False
        self._stand_by(server)

    # --- clients ---

    def _begin(self, group: str, kind: str) -> Operation:
        self.moment += 1
        one = Operation(kind, self.moment)
        self.histories[group].append(one)
        return one

    def _end(self, one: Operation, round_: Round, group: str, found: dict[int, int] | None = None) -> None:
        if round_.exception() is not None:
            self.seen["unknown"] += 1
            return
        self.moment += 1
        one.ended, one.found = self.moment, found
        self._known[group] |= one.changes if found is None else found

    def commit(self, server: Server, group: str) -> None:
        service, changes = server.service, self._changes()
        one = self._begin(group, "commit")
        one.changes = changes
        result = service.commit(0, _request(group, changes))
        if isinstance(result, int):
            self.histories[group].pop()
            return
        assert isinstance(result, CommitResult)
        assert result.durable is not None
        self.seen["acknowledged"] += 1
        result.durable.when_over(lambda round_: self._end(one, round_, group))

    def commit_if(self, server: Server, group: str) -> None:
        service, changes = server.service, self._changes()
        one = self._begin(group, "commit_if")
        one.changes = changes
        one.expected = {partition: self._known[group][partition] for partition in changes}
        result = service.commit_if(0, _request(group, changes), [list(one.expected.values())])
        if isinstance(result, int):
            self.histories[group].pop()
            return
        assert isinstance(result, ConditionalResult)
        assert result.durable is not None
        self.seen["conditions"] += 1
        if result.error == codes.NONE:
            result.durable.when_over(lambda round_: self._end(one, round_, group))
            return
        self.seen["refused conditions"] += 1
        found = dict(zip(changes, result.current[0], strict=True))
        if self.rules.reads == "nothing":
            self.moment += 1
            one.ended, one.found = self.moment, found
            return
        result.durable.when_over(lambda round_: self._end(one, round_, group, found))

    def remove(self, server: Server, group: str) -> None:
        known = server.service.partitions_of(group).get(TOPIC)
        if not known:
            return
        one = self._begin(group, "commit")
        one.changes = dict.fromkeys(known, -1)
        names = [OffsetKey(group, TOPIC, partition) for partition in sorted(known)]
        keys = [encode_offset_key(*name) for name in names]
        try:
            durable = server.service.remove(0, names, keys, lambda _failure, _offset: None)
        except StorageError:
            self.histories[group].pop()
            return
        self.seen["removed"] += 1
        durable.when_over(lambda round_: self._end(one, round_, group))

    def fetch(self, server: Server, group: str) -> None:
        one = self._begin(group, "fetch")
        self.seen["reads"] += 1

        def look() -> dict[int, int]:
            (found,) = service.fetch(group, [(TOPIC, range(PARTITIONS))])
            return dict(enumerate(found.columns.offsets))

        service, journal = server.service, server.journal
        if self.rules.reads == "nothing":
            self.moment += 1
            one.ended, one.found = self.moment, look()
            return
        if self.rules.reads == "end":

            def at_end(end: int) -> None:
                if journal.role in SERVING and server.follower.position >= end:
                    self.moment += 1
                    one.ended, one.found = self.moment, look()

            server.log.end(at_end)
            return
        try:
            confirmed = journal.confirm()
        except StorageError:
            self.histories[group].pop()
            return
        confirmed.when_over(lambda round_: self._end(one, round_, group, None if round_.exception() else look()))

    def _changes(self) -> dict[int, int]:
        some = self.random.sample(range(PARTITIONS), self.random.randint(1, PARTITIONS))
        self._number += 1
        return dict.fromkeys(sorted(some), self._number)

    # --- what happens ---

    def run(self, steps: int) -> None:
        self.servers[0].journal.take_over()
        for _ in range(steps):
            self.step()
        self.end()

    def step(self) -> None:
        chance = self.random.random()
        server = self.random.choice(self.servers)
        if self.rules.reads == "end" and server.log.connection.old_end is None and self.random.random() < 0.1:
            server.log.connection.old_end = self.broker.end  # the log has another leader now
        if chance < 0.30:
            self.turn(server)
        elif chance < 0.62:
            self.carry()
        elif chance < 0.86:
            serving = [one for one in self.servers if one.journal.role in SERVING and not one.is_frozen]
            self.seen["several lead"] += len(serving) > 1
            if serving:
                ask = self.random.choice(
                    (self.commit, self.commit, self.commit_if, self.fetch, self.fetch, self.remove)
                )
                ask(self.random.choice(serving), self.random.choice(GROUPS))
        elif chance < 0.89:
            server.log.break_off()
        elif chance < 0.92:
            if server.journal.role is Role.STANDBY and not server.is_frozen:
                self.seen["led"] += 1
                server.journal.take_over()
        elif chance < 0.95:
            self.broker.compact()
        elif chance < 0.96:
            self.crash(server)
        elif chance < 0.975:
            server.is_frozen = not server.is_frozen
            self.seen["frozen"] += 1
        else:
            self.pass_time(self.random.choice((1_000, MINUTE_MS, HOUR_MS, 7 * HOUR_MS, 30 * HOUR_MS)))

    def turn(self, server: Server) -> None:
        """A turn of a server's event loop."""
        if server.is_frozen:
            return
        due, server.due[:] = list(server.due), []
        for call in due:
            call()
        if not due:
            server.journal.look()

    def carry(self) -> None:
        """One request or one answer arrives."""
        moving = [one for one in self.connections if one.requests or (one.answers and not self._is_frozen(one))]
        if not moving:
            return
        connection = self.random.choice(moving)
        if (
            connection.answers
            and not self._is_frozen(connection)
            and (not connection.requests or self.random.random() < 0.5)
        ):
            connection.answers.popleft()()
            return
        answer = connection.requests.popleft()()
        if not connection.is_broken:
            connection.answers.append(answer)

    def _is_frozen(self, connection: Connection) -> bool:
        return any(server.is_frozen and server.log is connection.owner for server in self.servers)

    def pass_time(self, for_ms: int) -> None:
        """No request is on its way for minutes."""
        if for_ms > MINUTE_MS:
            for connection in list(self.connections):
                while connection.requests:
                    answer = connection.requests.popleft()()
                    if not connection.is_broken:
                        connection.answers.append(answer)
            self.connections = [one for one in self.connections if not one.is_broken]
        else:
            kept = [one for one in self.connections if one.requests or not one.is_broken]
            self.connections = kept
        self.now_ms += for_ms

    def end(self) -> None:
        """Nothing happens any more: a last leader takes over, and every group is read."""
        for server in self.servers:
            server.is_frozen = False
        last = self.random.choice(self.servers)
        for group in GROUPS:
            for _ in range(20):
                if last.journal.role is Role.STANDBY:
                    last.journal.take_over()
                self._settle(last)
                if last.journal.role in SERVING:
                    self.fetch(last, group)
                    self._settle(last)
                    if self.rules != DESIGN or self.histories[group][-1].ended is not None:
                        break
            else:
                raise AssertionError(f"nobody comes to answer: {last.journal.role}")

    def _settle(self, server: Server) -> None:
        """Until nothing is on its way, and this server has nothing to do."""
        while server.due or any(one.requests or one.answers for one in self.connections):
            if server.due:
                self.turn(server)
            self.carry()

    def violation(self) -> str | None:
        """What is wrong with a history, if anything."""
        for group, history in self.histories.items():
            wrong = why_not(history, PARTITIONS)
            if wrong is not None:
                return f"group {group}: {wrong}"
        return None


def _request(group: str, changes: dict[int, int]) -> CommitRequest:
    offsets = list(changes.values())
    return CommitRequest(group, [TopicCommit(TOPIC, list(changes), offsets, [-1] * len(offsets), None)])


def skip_what_marks_fence(journal: LogJournal) -> None:
    """Readers as in the design with marks: what an older epoch wrote behind a newer one's mark is not applied."""
    replayer, follower = journal._replayer, journal._leadership.follower
    whole = replayer.replay

    def replay(partition: int, batch: bytes) -> None:
        header = read_header(batch)
        is_older = header.producer_epoch < follower.newest.epoch and header.producer_id == follower.newest.producer_id
        if not is_older:
            whole(partition, batch)

    replayer.replay = replay  # type: ignore[method-assign]
