"""Exactly once into Kafka, simulated: Kafka's transactions, drivers, tasks, worker processes and time, from one seed.

The idea: `protocol` and `task_ids` are the real ones. Everything that acts is a generator, and one chance decides who
takes the next step, which request or answer is lost, comes twice or comes late, who dies, and how long that lasts.
Kafka's answers are those that were seen on real brokers (docs/adr/0087).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from keylane.errors import PeerError
from keylane.spark.structured.exact import protocol
from keylane.spark.structured.exact.digest import Digest
from keylane.spark.structured.exact.protocol import Answer, Described, Plan, Producer, Transaction
from keylane.spark.structured.exact.record import Entry, SinkRecord, task_prefix
from keylane.spark.structured.exact.task_ids import TaskIds
from keylane.spark.structured.sink_rows import SinkRows
from keylane.wire import codes

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Generator

    Actor = Generator[None, None, None]

SINK, QUERY = "sink", "query"
DRIVER = "driver"
TIMEOUT_MS = 20_000
PARTITIONS, ROWS = 3, 3
KILL, TASK_DIES, SLOW = 0.02, 0.03, 0.5
"""Chances: a driver dies at a step, a task at a row, and nobody comes for longer than a transaction lives."""
Row = tuple[int, int]
"""Batch and number."""


@dataclass
class Id:
    """A transactional id at its coordinator."""

    producer: Producer
    last_epoch: int = -1
    state: str = "empty"
    started_ms: int = 0
    sequence: int = -1
    pending: list[Any] = field(default_factory=list)


class Kafka:
    """The coordinator and the logs, as a reader of committed records sees them."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.ids: dict[str, Id] = {}
        self.rows: list[Row] = []
        self.record: SinkRecord | None = None

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for one in self.ids.values():
            if one.state == "open" and one.started_ms + TIMEOUT_MS < self.now_ms:
                self._abort(one, bump=True)

    def init(self, name: str, expected: Producer | None = None) -> Answer:
        one = self.ids.get(name)
        if one is None:
            one = self.ids[name] = Id(Producer(len(self.ids), -1))
        elif expected is not None and expected.epoch not in (one.producer.epoch, one.last_epoch):
            return Answer(codes.PRODUCER_FENCED)
        if one.state == "open":
            self._abort(one, bump=True)
            return Answer(codes.CONCURRENT_TRANSACTIONS)
        if expected is not None and expected.epoch == one.last_epoch:
            return Answer(value=one.producer)
        one.last_epoch = -1 if expected is None else one.producer.epoch
        one.producer = one.producer._replace(epoch=one.producer.epoch + 1)
        one.state, one.sequence, one.pending = "empty", -1, []
        return Answer(value=one.producer)

    def add(self, name: str, producer: Producer) -> Answer:
        one = self.ids[name]
        if one.producer != producer:
            return Answer(codes.PRODUCER_FENCED)
        if one.state != "open":
            one.state, one.started_ms, one.pending = "open", self.now_ms, []
        return Answer()

    def append(self, name: str, producer: Producer, sequence: int, what: Any) -> Answer:
        one = self.ids[name]
        if one.producer != producer:
            return Answer(codes.INVALID_PRODUCER_EPOCH)
        if one.state != "open":
            return Answer(codes.INVALID_TXN_STATE)
        if sequence <= one.sequence:
            return Answer()
        assert sequence == one.sequence + 1, "OUT_OF_ORDER_SEQUENCE_NUMBER"
        one.sequence = sequence
        one.pending.append(what)
        return Answer()

    def end(self, name: str, producer: Producer, *, committed: bool) -> Answer:
        one = self.ids[name]
        if one.producer != producer:
            return Answer(codes.PRODUCER_FENCED)
        if one.state != "open":
            return Answer(
                codes.NONE if one.state == ("committed" if committed else "aborted") else codes.INVALID_TXN_STATE
            )
        if not committed:
            self._abort(one)
        else:
            one.state = "committed"
            for what in one.pending:
                if isinstance(what, SinkRecord):
                    self.record = what
                else:
                    self.rows.append(what)
        return Answer()

    def _abort(self, one: Id, *, bump: bool = False) -> None:
        one.state, one.pending = "aborted", []
        if bump:
            one.producer, one.last_epoch = one.producer._replace(epoch=one.producer.epoch + 1), -1

    def described(self, name: str) -> Described:
        one = self.ids[name]
        return Described(one.producer, one.state == "open", one.started_ms, TIMEOUT_MS)

    def answer(self, request: protocol.Request) -> Answer:
        match request:
            case protocol.Open():
                names = [name for name, one in self.ids.items() if name != DRIVER and one.state == "open"]
                return Answer(value=[Transaction(name, self.ids[name].producer) for name in names])
            case protocol.Init(expected):
                return self.init(DRIVER, expected)
            case protocol.Read():
                return Answer(value=self.record)
            case protocol.Describe(names):
                return Answer(value={name: self.described(name) for name in names})
            case protocol.Add(producer):
                return self.add(DRIVER, producer)
            case protocol.Append(producer, sequence, record):
                return self.append(DRIVER, producer, sequence, record)
            case protocol.Decide(producer):
                return self.end(DRIVER, producer, committed=True)
            case protocol.Undo(producer):
                return self.end(DRIVER, producer, committed=False)
            case protocol.End(name, producer, committed):
                return self.end(name, producer, committed=committed)


class TaskFailedError(Exception):
    """An attempt ends."""


Message = tuple[Plan, int, Entry | None]
"""Plan, partition, entry."""


@dataclass
class Attempt:
    plan: Plan
    batch: int
    partition: int
    process: int
    message: Message | None = None
    has_failed: bool = False


class World:
    """One run: `batches` batches, until Spark's commit log has all of them."""

    def __init__(self, chance: random.Random, batches: int, *, is_repeatable: bool = True) -> None:
        """`is_repeatable`: a replay puts the same rows into the same partitions."""
        self.chance = chance
        self.batches = batches
        self.is_repeatable = is_repeatable
        self.kafka = Kafka()
        self.log: set[int] = set()
        """Spark's commit log."""
        self.processes = [TaskIds(self._word) for _ in range(3)]
        self.late: list[Callable[[], Any]] = []
        self.actors: list[Actor] = []
        self.errors: list[str] = []
        self.kills = 0
        self.faults = True
        self._words = 0
        self._replays: dict[int, int] = {}

    def run(self, steps: int) -> None:
        """Faults for so many steps; then everything that was begun comes to an end."""
        driver = self._start()
        for step in range(20 * steps):
            self.faults = step < steps
            if self.log >= set(range(self.batches)) and not self.faults:
                break
            self.kafka.pass_time(self.chance.randrange(60))
            if self.late and self.chance.random() < 0.05:
                self.late.pop(self.chance.randrange(len(self.late)))()
            if self.faults and self.chance.random() < KILL:
                driver = self._kill(driver)
            if driver not in self.actors:  # it failed
                driver = self._start()
            actor = self.chance.choice(self.actors)
            if next(actor, self) is self:
                self.actors.remove(actor)
            assert len(self.kafka.rows) == len(set(self.kafka.rows)), f"twice: {sorted(self.kafka.rows)}"

    def rows(self, batch: int, partition: int, replay: int) -> list[Row]:
        """What a task computes."""
        shift = 0 if self.is_repeatable else replay
        return [(batch, number) for number in range(PARTITIONS * ROWS) if (number + shift) % PARTITIONS == partition]

    def _word(self) -> str:
        self._words += 1
        return str(self._words)

    def _start(self) -> Actor:
        driver = self._driver()
        self.actors.append(driver)
        return driver

    def _kill(self, driver: Actor) -> Actor:
        """The driver is dead, or only believed so; its tasks end with it, or later; and nobody comes, for a while."""
        self.kills += 1
        kind = self.chance.random()
        if kind < 0.6:
            self.actors = []
        elif kind < 0.8 and driver in self.actors:
            self.actors.remove(driver)
        if self.chance.random() < SLOW:
            self.kafka.pass_time(self.chance.choice((TIMEOUT_MS // 2, 2 * TIMEOUT_MS)))
        return self._start()

    # --- a query's run ---

    def _driver(self) -> Actor:
        while (batch := len(self.log)) < self.batches:
            replay = self._replays[batch] = self._replays.get(batch, -1) + 1
            try:
                plan = yield from self._asked(protocol.start())
                messages = yield from self._tasks(plan, batch, replay)
            except (PeerError, TaskFailedError) as error:
                self.errors.append(type(error).__name__)
                return
            try:
                entries = [entry for _, _, entry in messages if entry is not None]
                yield from self._asked(protocol.commit(plan, QUERY, batch, entries, self.kafka.now_ms))
            except PeerError as error:
                self.errors.append(type(error).__name__)
                try:
                    yield from self._asked(protocol.abort(plan))
                except PeerError as another:
                    self.errors.append(type(another).__name__)
                return
            yield
            if batch in self.log:
                return  # Spark: another run has written the commit log
            self.log.add(batch)

    def _asked(self, steps: Generator[protocol.Request, Answer, Any]) -> Generator[None, None, Any]:
        request = next(steps)
        while True:
            yield
            answer = self._answer(partial(self.kafka.answer, request))
            try:
                request = steps.send(answer)
            except StopIteration as end:
                return end.value

    def _answer(self, ask: Callable[[], Answer]) -> Answer:
        """A request's way there and back."""
        fate = self.chance.random() if self.faults else 1.0
        if fate < 0.02:
            return Answer(codes.NETWORK_EXCEPTION)
        if fate < 0.04:
            ask()
            return Answer(codes.NETWORK_EXCEPTION)
        if fate < 0.05:
            return Answer(self.chance.choice((codes.NOT_COORDINATOR, codes.CONCURRENT_TRANSACTIONS)))
        if fate < 0.07:
            self.late.append(ask)
        return ask()

    def _tasks(self, plan: Plan, batch: int, replay: int) -> Generator[None, None, list[Message]]:
        """The first message of each partition, as Spark takes it; what comes later is a loser."""
        attempts: list[Attempt] = []
        failures = 0

        def begin(partition: int) -> None:
            attempt = Attempt(plan, batch, partition, self.chance.randrange(len(self.processes)))
            attempts.append(attempt)
            self.actors.append(self._task(attempt, replay))

        for partition in range(PARTITIONS):
            begin(partition)
            if self.faults and self.chance.random() < 0.2:  # speculation
                begin(partition)
        while True:
            messages: dict[int, Message] = {}
            for one in attempts:
                if one.message is not None:
                    messages.setdefault(one.partition, one.message)
            if len(messages) == PARTITIONS:
                return list(messages.values())
            for partition in range(PARTITIONS):
                if partition not in messages and all(one.has_failed for one in attempts if one.partition == partition):
                    failures += 1
                    if failures > 4:
                        raise TaskFailedError
                    begin(partition)
            yield

    def _task(self, attempt: Attempt, replay: int) -> Actor:
        try:
            attempt.message = yield from self._write(attempt, replay)
        except (PeerError, TaskFailedError):
            attempt.has_failed = True

    def _write(self, attempt: Attempt, replay: int) -> Generator[None, None, Message]:
        plan, batch, partition = attempt.plan, attempt.batch, attempt.partition
        if not protocol.writes(plan, QUERY, batch, partition):
            return plan, partition, None
        name = self.processes[attempt.process].take(task_prefix(SINK), QUERY, batch)
        producer: Any = None
        while producer is None:
            yield
            answer = self.kafka.init(name)
            producer = answer.value if answer.code == codes.NONE else None
        digest = Digest()
        for sequence, row in enumerate(self.rows(batch, partition, replay)):
            yield
            if self.faults and self.chance.random() < TASK_DIES:
                raise TaskFailedError  # with its executor: nobody aborts
            for ask in (
                (lambda: self.kafka.add(name, producer)) if sequence == 0 else Answer,
                lambda sequence=sequence, row=row: self.kafka.append(name, producer, sequence, row),
            ):
                while (answer := self._answer(ask)).code in protocol.AGAIN:
                    yield
                if answer.code != codes.NONE:
                    raise TaskFailedError
            digest.add(SinkRows("rows", [b"%d" % row[0]], [b"%d" % row[1]]))
        yield
        held = self.kafka.described(name)
        if not held.is_open or held.producer != producer:
            raise TaskFailedError
        entry = Entry(partition, name, *held.producer, digest.rows, digest.sum, held.started_ms)
        return plan, partition, entry
