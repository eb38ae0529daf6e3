"""What the sink's driver does about Kafka: at a batch's start, at its commit and at its abort (docs/adr/0087).

The idea: each is a generator. It yields one request at a time and is sent the answer of Kafka; what it returns is the
outcome. There is no clock, socket or thread, so a simulation drives it as the shell (`driver`) does, and drops it at
any request: that is a driver that died there. Every request may be asked again, because an answer may be lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from keylane.errors import PeerError, UsageError
from keylane.spark.structured.exact.record import Entry, SinkRecord
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

Outcome = TypeVar("Outcome")

AGAIN = frozenset(
    {
        codes.NETWORK_EXCEPTION,
        codes.CONCURRENT_TRANSACTIONS,
        codes.NOT_COORDINATOR,
        codes.COORDINATOR_LOAD_IN_PROGRESS,
        codes.COORDINATOR_NOT_AVAILABLE,
        codes.NOT_LEADER_OR_FOLLOWER,
        codes.LEADER_NOT_AVAILABLE,
        codes.UNKNOWN_TOPIC_OR_PARTITION,
        codes.REQUEST_TIMED_OUT,
        codes.NOT_ENOUGH_REPLICAS,
        codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        codes.KAFKA_STORAGE_ERROR,
        codes.OFFSET_NOT_AVAILABLE,
        codes.FENCED_LEADER_EPOCH,
        codes.UNKNOWN_LEADER_EPOCH,
        codes.BROKER_NOT_AVAILABLE,
    }
)
"""Nothing is decided by these: asked again, until the shell's time is up."""

FENCED = frozenset({codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH})
LOST = FENCED | {codes.INVALID_TXN_STATE}
"""What EndTxn answers for a transaction that is not committed and never will be, in an id that nobody took since."""
FORGOTTEN = codes.INVALID_PRODUCER_ID_MAPPING
"""What it answers when the brokers do not know the id any more: seven days after its last use, by default."""

MOST_MARGIN_MS = 10_000
"""A transaction must have a quarter of its timeout left before it is listed, or so much."""


class Producer(NamedTuple):
    """Who may write and end under a transactional id: the last one to whom it was given."""

    producer_id: int
    epoch: int


class Transaction(NamedTuple):
    """A transaction of one of the sink's tasks."""

    id: str
    producer: Producer


class Described(NamedTuple):
    """What a coordinator says of a transactional id."""

    producer: Producer
    is_open: bool
    started_ms: int
    """Milliseconds since the epoch, by the broker's clock."""
    timeout_ms: int


# --- requests, and what answers them ---


class Answer(NamedTuple):
    code: int = codes.NONE
    """Kafka's error code."""
    value: object = None
    """What the request says that it is answered with, when the code is NONE."""


@dataclass(frozen=True, slots=True)
class Open:
    """Which transactions of the sink's tasks are open: a list of `Transaction`."""


@dataclass(frozen=True, slots=True)
class Init:
    """Give the driver's transactional id to who asks, in a new epoch: a `Producer`. Fenced when `expected` has it no
    more."""

    expected: Producer | None


@dataclass(frozen=True, slots=True)
class Read:
    """The newest committed record: a `SinkRecord`, or None."""


@dataclass(frozen=True, slots=True)
class Describe:
    """These transactional ids: a dict of `Described`, without those that the coordinator does not know."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Add:
    """Make the sink's topic a part of the driver's transaction, which begins."""

    driver: Producer


@dataclass(frozen=True, slots=True)
class Append:
    """Write the record in the driver's transaction."""

    driver: Producer
    sequence: int
    record: SinkRecord


@dataclass(frozen=True, slots=True)
class Decide:
    """Commit the driver's transaction."""

    driver: Producer


@dataclass(frozen=True, slots=True)
class Undo:
    """Abort the driver's transaction."""

    driver: Producer


@dataclass(frozen=True, slots=True)
class End:
    """Commit or abort a task's transaction."""

    id: str
    producer: Producer
    committed: bool


Request = Open | Init | Read | Describe | Add | Append | Decide | Undo | End

if TYPE_CHECKING:
    Steps = Generator[Request, Answer, Outcome]


# --- outcomes ---


class FencedError(PeerError):
    """Another run of the sink has begun since: this one can decide nothing more."""


class NotOpenError(PeerError):
    """Transactions of the batch ended too early; nothing of the batch is visible."""


class LostError(PeerError):
    """Transactions of the batch timed out after they were listed; the batch's replay writes these partitions again."""


class ForgottenError(PeerError):
    """Nobody knows any more whether transactions that were listed are committed."""


class ReplayDiffersError(PeerError):
    """Partitions that were lost cannot be written again: their rows are not those that were listed."""


class Plan(NamedTuple):
    """What a start found; the tasks of its batch have it, and hand it on to the commit."""

    driver: Producer
    sequence: int
    """Of the driver's next record in this epoch."""
    record: SinkRecord | None
    """Where it is not done, its entries are those that are lost."""
    may_begin: bool = False
    """Whether a batch behind the first one may come without a record before it."""

    @property
    def lost(self) -> dict[int, Entry]:
        """By Spark's partition."""
        return {} if self.record is None else {entry.partition: entry for entry in self.record.entries}


def start(expected: Producer | None = None, *, may_begin: bool = False) -> Steps[Plan]:
    """Fence older drivers, finish what they decided, abort what they did not. `may_begin` as in the plan.

    Raises `FencedError` when `expected` is given and is fenced: then nothing was touched; `ForgottenError` and
    `PeerError`.
    """
    seen = _transactions((yield from _told(Open())))
    driver = _producer((yield from _told(Init(expected))))
    record = _record((yield from _told(Read())))
    sequence = 0
    listed: set[Transaction] = set()
    if record is not None and not record.is_done:
        listed = {_transaction(entry) for entry in record.entries}
        record = record._replace(entries=(yield from _finish(record.entries)))
        if record.is_done:
            yield from _write(driver, sequence, record)
            sequence += 1
    yield from _abort(one for one in seen if one not in listed)
    return Plan(driver, sequence, record, may_begin)


def abort(plan: Plan) -> Steps[bool]:
    """After a batch that failed: a start, if nobody else has started since. Whether that was so."""
    undo = Undo(plan.driver)  # else its end would look like somebody else's start
    answer = yield from _asked(undo)
    if answer.code in (FORGOTTEN, *FENCED):
        return False
    if answer.code not in (codes.NONE, codes.INVALID_TXN_STATE):  # of the latter: there is none, or it is decided
        raise _refusal(undo, answer.code)
    try:
        yield from start(plan.driver)
    except FencedError:
        return False
    return True


def commit(plan: Plan, query: str, batch: int, entries: Sequence[Entry], now_ms: int) -> Steps[None]:
    """Decide a batch and end its transactions. `entries` are those of the tasks that wrote any rows.

    Raises `NotOpenError`, `ReplayDiffersError` and `FencedError`, after which nothing more of the batch is visible than
    before; and `LostError`, after which its replay writes what was lost.
    """
    check(plan, query, batch)
    if plan.record is not None and plan.record.batch == batch:
        _check_replay(plan.lost, entries, query, batch)
    seen = _transactions((yield from _told(Open())))
    listed = [_transaction(entry) for entry in entries]
    if entries:
        yield from _check_open(listed, entries, batch, now_ms)
        record = SinkRecord(query, batch, tuple(entries))
        yield from _write(plan.driver, plan.sequence, record)
        missing = yield from _finish(record.entries)
        if missing:
            raise LostError(
                f"batch {batch} of query {query}: the transactions of {_named(missing)} timed out between the decision "
                "and their end; start the query again: its replay of the batch writes them, and nothing else, again"
            )
    yield from _abort(one for one in seen if one not in listed)
    if entries or plan.record is None or plan.record.batch != batch:
        yield from _write(plan.driver, plan.sequence + bool(entries), SinkRecord(query, batch))


def described(transactional_id: str) -> Steps[Described]:
    """What a task's open transaction is known by. Raises `NotOpenError`."""
    answer = yield from _told(Describe((transactional_id,)))
    assert isinstance(answer, dict)
    found: Described | None = answer.get(transactional_id)
    if found is None or not found.is_open:
        raise NotOpenError(
            f"the transaction of {transactional_id} ended before its task: it took longer than "
            "kafka.transaction.timeout.ms, or another run of this sinkName has begun"
        )
    return found


def writes(plan: Plan, query: str, batch: int, partition: int) -> bool:
    """Whether a task is to write its rows, or only to read them: what is committed is not written again."""
    check(plan, query, batch)
    return plan.record is None or plan.record.batch != batch or partition in plan.lost


def check(plan: Plan, query: str, batch: int) -> None:
    """Raises `UsageError` for a batch that cannot follow the sink's record, and `PeerError` where the record, or the
    checkpoint, is of another time."""
    record = plan.record
    if record is None:
        if batch and not plan.may_begin:
            raise PeerError(
                f"the sink has no record, and batch {batch} of query {query} is not the first: if the query has "
                "written under this sinkName, its topic was deleted, put back, or is in another cluster, and rows are "
                "missing, or would be there twice; onMissingRecord=begin goes on, which is right where it has not"
            )
        return
    if record.query != query:
        raise UsageError(
            f"sinkName: the name belongs to query {record.query}, which wrote batch {record.batch} under it, and this "
            f"is query {query}: give another sinkName (a new checkpoint makes a new query), or delete the sink's topic "
            "if the old query never comes back"
        )
    if batch < record.batch:
        raise UsageError(
            f"batch {batch} of query {query} comes after batch {record.batch}, which the sink has written: the "
            "checkpoint was set back; go on with the newest one, or give a new checkpoint and another sinkName"
        )
    if batch > record.batch and not record.is_done:
        raise PeerError(
            f"batch {record.batch} of query {query} is not whole ({_named(record.entries)} were lost), and batch "
            f"{batch} comes: the checkpoint passed over it; go back to the one that has it"
        )
    if batch > record.batch + 1 and record.is_gapless:
        raise PeerError(
            f"batch {batch} of query {query} comes, and the last one that the sink knows is {record.batch}: its topic "
            "was put back to an earlier time, and the rows' topics with it, or batches were written elsewhere: delete "
            f"from {record.batch + 1} on what the checkpoint has in offsets and commits, and those batches are written "
            "again; or give another sinkName and onMissingRecord=begin to go on without them"
        )


def _check_replay(lost: dict[int, Entry], entries: Sequence[Entry], query: str, batch: int) -> None:
    made = {entry.partition: entry for entry in entries}
    if too_many := made.keys() - lost.keys():
        raise PeerError(f"batch {batch} of query {query}: tasks wrote {too_many}, which is done: keylane has a defect")
    different = [one for number, one in lost.items() if number not in made or _content(made[number]) != _content(one)]
    if different:
        raise ReplayDiffersError(
            f"batch {batch} of query {query}: {_named(different)} timed out after the batch was decided, and the "
            "replay has other rows than were listed, so they are not written: what the query computes must be the same "
            "for the same input; the other partitions of the batch are visible"
        )


def _content(entry: Entry) -> tuple[int, int]:
    return entry.rows, entry.digest


def _check_open(listed: Sequence[Transaction], entries: Sequence[Entry], batch: int, now_ms: int) -> Steps[None]:
    answer = yield from _told(Describe(tuple(one.id for one in listed)))
    assert isinstance(answer, dict)
    late: list[Entry] = []
    for one, entry in zip(listed, entries, strict=True):
        found: Described | None = answer.get(one.id)
        if found is None or found.producer != one.producer or not found.is_open or not _has_time(found, now_ms):
            late.append(entry)
    if late:
        raise NotOpenError(
            f"batch {batch}: the transactions of {_named(late)} ended before the batch could be decided, or are about "
            "to; nothing of the batch is visible: raise kafka.transaction.timeout.ms above the time of a batch"
        )


def _has_time(one: Described, now_ms: int) -> bool:
    return one.started_ms + one.timeout_ms - now_ms >= min(MOST_MARGIN_MS, one.timeout_ms // 4)


def _write(driver: Producer, sequence: int, record: SinkRecord) -> Steps[None]:
    """A transaction of the driver's with one record."""
    yield from _told(Add(driver))
    yield from _told(Append(driver, sequence, record))
    yield from _told(Decide(driver))


def _finish(entries: Sequence[Entry]) -> Steps[tuple[Entry, ...]]:
    """Commit what is listed; what is lost."""
    lost: list[Entry] = []
    forgotten: list[Entry] = []
    for entry in entries:
        end = End(*_transaction(entry), committed=True)
        answer = yield from _asked(end)
        if answer.code in LOST:
            (lost if (yield from _is_the_same(entry)) else forgotten).append(entry)
        elif answer.code == FORGOTTEN:
            forgotten.append(entry)
        elif answer.code != codes.NONE:
            raise _refusal(end, answer.code)
    if forgotten:
        raise ForgottenError(
            f"the transactions of {_named(forgotten)} were decided, and the brokers do not know them any more "
            "(transactional.id.expiration.ms, or a late request began others), so nobody knows whether their rows are "
            "visible: look for them in the topics, and go on with a new checkpoint and another sinkName"
        )
    return tuple(lost)


def _is_the_same(entry: Entry) -> Steps[bool]:
    """Whether the last transaction of a listed id is the listed one: a request of its producer's that comes late may
    begin another one behind a commit, and what times out is that one."""
    answer = yield from _told(Describe((entry.id,)))
    assert isinstance(answer, dict)
    found: Described | None = answer.get(entry.id)
    return found is not None and found.started_ms == entry.started_ms


def _abort(transactions: Sequence[Transaction] | Generator[Transaction]) -> Steps[None]:
    for one in transactions:
        end = End(*one, committed=False)
        answer = yield from _asked(end)
        if answer.code not in (codes.NONE, FORGOTTEN, *LOST):
            raise _refusal(end, answer.code)


def _told(request: Request) -> Steps[object]:
    """The answer's value. Raises `FencedError` and `PeerError`."""
    answer = yield from _asked(request)
    if answer.code in FENCED or (answer.code in (FORGOTTEN, *LOST) and isinstance(request, Add | Append | Decide)):
        raise FencedError(
            "another run of this sinkName has begun since, or the driver stood still for too long: this one decides "
            "nothing more; let one query run under the name at a time"
        )
    if answer.code != codes.NONE:
        raise _refusal(request, answer.code)
    return answer.value


def _asked(request: Request) -> Steps[Answer]:
    while (answer := (yield request)).code in AGAIN:
        pass
    return answer


def _refusal(request: Request, code: int) -> PeerError:
    what = {
        Open: "list transactions (right Describe on the transactional ids)",
        Init: "give the driver its transactional id (right Write on it; kafka.transaction.timeout.ms is within the "
        "broker's transaction.max.timeout.ms)",
        Read: "read the sink's topic (right Read on it)",
        Describe: "describe transactions (right Describe on their ids)",
        Add: "add the sink's topic to a transaction (right Write on it)",
        Append: "write the sink's record (right Write on its topic; a batch of many tasks makes it long: "
        "max.message.bytes)",
        Decide: "end the driver's transaction",
        Undo: "end the driver's transaction",
        End: "end a task's transaction (right Write on its id)",
    }[type(request)]
    name = next((name for name, number in vars(codes).items() if number == code and name.isupper()), str(code))
    return PeerError(f"the broker refuses to {what}: {name}")


def _named(entries: Sequence[Entry]) -> str:
    return f"partitions {', '.join(str(entry.partition) for entry in entries)}" if entries else "no partition"


def _transaction(entry: Entry) -> Transaction:
    return Transaction(entry.id, Producer(entry.producer_id, entry.epoch))


def _transactions(value: object) -> list[Transaction]:
    assert isinstance(value, list)
    return value


def _producer(value: object) -> Producer:
    assert isinstance(value, Producer)
    return value


def _record(value: object) -> SinkRecord | None:
    assert value is None or isinstance(value, SinkRecord)
    return value
