"""The transactions' shell: makes durable what `TransactionalIds` decides, writes markers, and owns the timers.

The one discipline: a state is served when its record is durable. EndTxn is answered when the *prepare* record is; from
then on nothing can change the outcome. Markers in the logs and in `__consumer_offsets` follow, and when all of them are
durable, the *complete* record. A restart takes every prepared transaction up again: a marker that is written twice does
no harm.

Thread safety: the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.formats import OFFSETS_TOPIC, TRANSACTION_STATE, encode_records
from keylane.coordinator.journal.journal import BatchTooLargeError
from keylane.coordinator.transactions.records import FLEXIBLE_VERSION, encode_transaction, encode_transaction_key
from keylane.coordinator.transactions.states import PREPARED, State
from keylane.coordinator.transactions.transactional_ids import (
    CLASSIC,
    EPOCH_A_TRANSACTION,
    NO_EPOCH,
    NO_PRODUCER_ID,
    TAGGED_RECORDS,
    Producer,
    Transaction,
    TransactionalIds,
    completed,
)
from keylane.errors import DataFolderError
from keylane.storage.filesystem import NoRoomError, StorageError
from keylane.storage.producers import ProducerEpochError
from keylane.storage.shared_sync import Round
from keylane.telling import logger_of
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from keylane.coordinator.journal.image import Image
    from keylane.coordinator.journal.journal import Journal
    from keylane.coordinator.offset_service import OffsetService
    from keylane.coordinator.options import CoordinatorOptions
    from keylane.coordinator.transactions.transactional_ids import TopicPartition
    from keylane.storage.log import PartitionLog
    from keylane.storage.producers import ProducerDescription

logger = logger_of("keylane.coordinator")

MAX_HOLD_S = 1.0
"""How long a request waits for a change of its id that is under way before it is told CONCURRENT_TRANSACTIONS: a client
that is told so waits for tens of milliseconds, and the change takes one or two."""
NO_ROOM = codes.COORDINATOR_NOT_AVAILABLE
"""A change of an id that finds no room: every client tries again, where it ends with KAFKA_STORAGE_ERROR."""
MARKERS_AT_ONCE = 500
"""Partitions of a transaction that end before others have their turn: a few milliseconds."""
NO_ROOM_PAUSE_S = 1.0
"""Before what a prepared transaction still has to write is tried again."""


class ProducerAnswer(NamedTuple):
    """To InitProducerId, and to EndTxn from version 5 on: what the producer goes on with."""

    error: int
    producer: Producer = Producer(NO_PRODUCER_ID, NO_EPOCH)


class Joining(Round):
    """Of partitions that are being made part of a transaction: never fails, and says how it went once it is over."""

    error = codes.NONE


class Ports(NamedTuple):
    """What transactions need of the broker around the coordinator."""

    log_of: Callable[[str, int], PartitionLog | None]
    """The log of a partition; None when there is none (any more)."""
    take_producer_id: Callable[[], Awaitable[int]]
    """A producer id that nobody has had. Raises `StorageError`."""
    producers: Callable[[], Iterable[tuple[TopicPartition, ProducerDescription]]] = tuple
    """The producers that the logs know. They are believed where the journal knows less."""
    start_ids_above: Callable[[int], None] = lambda _highest: None
    """Told of the highest producer id in the journal before one is taken; -1 for none."""
    transaction_version: Callable[[], int] = lambda: EPOCH_A_TRANSACTION
    """The level of `transaction.version`."""


class TransactionService:
    """Made before the journal is loaded; `restore` after."""

    def __init__(
        self,
        journal: Journal,
        offsets: OffsetService,
        options: CoordinatorOptions,
        ports: Ports,
        clock: Callable[[], int],
    ) -> None:
        self.ids = TransactionalIds(
            max_timeout_ms=options.transaction_max_timeout_ms, expiration_ms=options.transactional_id_expiration_ms
        )
        self._journal = journal
        self._offsets = offsets
        self._options = options
        self._ports = ports
        self._clock = clock
        self._completions: dict[str, asyncio.Task[None]] = {}
        """By transactional id: what carries out a prepared transaction."""
        self._appended: dict[str, Round] = {}
        """By transactional id: the change that is not durable yet."""
        self._joining: dict[str, Joining] = {}
        """By transactional id: the last of those whose records wait until they are part of the transaction."""
        self._joins: set[asyncio.Task[None]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self.is_loaded = False
        self._is_closed = self._has_failed = False
        self._closing = asyncio.Event()

    # Life

    def restore(self, image: Image) -> None:
        """Take up what the journal knows, and finish what was prepared. From here on requests are served.

        Raises `DataFolderError` when a log has an open transaction that the journal knows nothing of.
        """
        last = dict(image.transactions())
        known = list(self._ports.producers())
        _check_open(last.values(), known)
        ids = (max(value.producer_id, value.next_producer_id) for value in last.values())
        self._ports.start_ids_above(max(ids, default=NO_PRODUCER_ID))
        epochs: dict[int, int] = {}
        for _, producer in known:
            epochs[producer.producer_id] = max(producer.epoch, epochs.get(producer.producer_id, NO_EPOCH))
        for transactional_id, stored in last.items():
            value = _not_below(stored, epochs.get(stored.producer_id, NO_EPOCH), transactional_id)
            self.ids.restore(transactional_id, value)
            if value.state in PREPARED:
                self._begin_completion(transactional_id, value)
        self.is_loaded = True
        self._every(self._options.transaction_abort_timed_out_transaction_cleanup_interval_ms, self.abort_timed_out)
        self._every(self._options.transaction_remove_expired_transaction_cleanup_interval_ms, self.remove_expired)

    async def close(self) -> None:
        """Let what is under way come to an end; a prepared transaction that cannot is finished by the next start."""
        self._is_closed = True
        self._closing.set()
        for timer in self._timers:
            timer.cancel()
        if under_way := {*self._completions.values(), *self._joins}:
            await asyncio.wait(under_way)

    async def settled(self) -> None:
        """Return when no prepared transaction is being carried out."""
        while self._completions:
            await asyncio.wait(self._completions.values())

    @property
    def refusal(self) -> int:
        """Why no transactional id is served, or NONE."""
        if self._is_closed:
            return codes.NOT_COORDINATOR
        if self._has_failed:
            return codes.KAFKA_STORAGE_ERROR
        return codes.NONE if self.is_loaded else codes.COORDINATOR_LOAD_IN_PROGRESS

    # Requests

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None
    ) -> ProducerAnswer:
        """Give a producer the id's next epoch. An open transaction is aborted first: CONCURRENT_TRANSACTIONS then."""
        if self.refusal:
            return ProducerAnswer(self.refusal)
        await self._free(transactional_id)
        new_id, level = None, self._ports.transaction_version()
        if self.ids.needs_producer_id(transactional_id, expected, level) and (new_id := await self._new_id()) is None:
            return ProducerAnswer(codes.KAFKA_STORAGE_ERROR)
        decided = self.ids.init(transactional_id, timeout_ms, expected, new_id, self._clock(), level)
        if isinstance(decided, int):
            return ProducerAnswer(decided)
        error_code = await self._store(transactional_id, decided)
        if error_code != codes.NONE:
            return ProducerAnswer(error_code)
        if decided.state is State.PREPARE_ABORT:
            logger.info("transactional id %s: another producer asks for it; its transaction aborts", transactional_id)
            return ProducerAnswer(codes.CONCURRENT_TRANSACTIONS)
        return ProducerAnswer(codes.NONE, decided.producer)

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        client_version: int = CLASSIC,
    ) -> int:
        """Make these partitions part of the transaction: an error code."""
        if self.refusal:
            return self.refusal
        await self._free(transactional_id)
        decided = self.ids.add_partitions(transactional_id, producer, partitions, self._clock(), client_version)
        return decided if isinstance(decided, int) else await self._store(transactional_id, decided)

    def join(self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]) -> Joining | None:
        """Make these partitions part of the transaction, since their producer writes to them and has not added them
        (KIP-890); None when they are, and nobody waits for it. Those who wait go on in the order in which they came."""
        before = self._joining.get(transactional_id)
        if before is None and self._has_joined(transactional_id, producer, partitions):
            return None
        joining = self._joining[transactional_id] = Joining(asyncio.get_running_loop())
        task = joining.get_loop().create_task(self._join(joining, before, transactional_id, producer, partitions))
        self._joins.add(task)
        task.add_done_callback(self._joins.discard)
        return joining

    async def _join(
        self,
        joining: Joining,
        before: Joining | None,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
    ) -> None:
        if before is not None:
            await before
        if not self._has_joined(transactional_id, producer, partitions):
            joining.error = await self.add_partitions(transactional_id, producer, partitions, EPOCH_A_TRANSACTION)
        if self._joining[transactional_id] is joining:
            del self._joining[transactional_id]
        joining.set_result(None)
        joining.tell()

    def _has_joined(self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]) -> bool:
        return all(self.check_write(transactional_id, producer, one) == codes.NONE for one in partitions)

    async def end(self, transactional_id: str, producer: Producer, *, committed: bool) -> int:
        """Decide the transaction: an error code."""
        if self.refusal:
            return self.refusal
        await self._free(transactional_id)
        decided = self.ids.end(transactional_id, producer, committed=committed, now_ms=self._clock())
        return decided if isinstance(decided, int) else await self._store(transactional_id, decided)

    async def end_to_next_epoch(self, transactional_id: str, producer: Producer, *, committed: bool) -> ProducerAnswer:
        """Decide the transaction, and give its producer the epoch of the next one (KIP-890)."""
        if self.refusal:
            return ProducerAnswer(self.refusal)
        await self._free(transactional_id)
        next_id = None
        if self.ids.needs_next_id(transactional_id) and (next_id := await self._new_id()) is None:
            return ProducerAnswer(codes.KAFKA_STORAGE_ERROR)
        decided = self.ids.end_to_next_epoch(
            transactional_id, producer, committed=committed, now_ms=self._clock(), next_id=next_id
        )
        if isinstance(decided, int):
            current = self.ids.get(transactional_id)
            if decided != codes.NONE or current is None:
                return ProducerAnswer(decided)
            return ProducerAnswer(decided, current.producer)
        error = await self._store(transactional_id, decided)
        if error != codes.NONE:
            return ProducerAnswer(error)
        return ProducerAnswer(codes.NONE, completed(decided, self._clock()).producer)

    def check_write(self, transactional_id: str, producer: Producer, partition: TopicPartition) -> int:
        """Whether this producer may write to this partition now, as a part of its transaction: an error code."""
        return self.refusal or self.ids.check_write(transactional_id, producer, partition)

    async def _new_id(self) -> int | None:
        """A producer id that nobody has had; None when the disk has failed."""
        try:
            return await self._ports.take_producer_id()
        except StorageError as error:
            logger.error("%s", error)  # noqa: TRY400 - one line says it all
            return None

    async def _free(self, transactional_id: str) -> None:
        """Return when no change of the id is under way, or has been for too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + MAX_HOLD_S
        while (left_s := deadline - loop.time()) > 0:
            under_way = self._appended.get(transactional_id) or self._completions.get(transactional_id)
            if under_way is None:
                return
            await asyncio.wait({under_way}, timeout=left_s)

    # Time

    async def abort_timed_out(self) -> None:
        """Abort every transaction that has taken longer than its producer allowed, and fence the producer."""
        rounds = []
        for transactional_id in self.ids.timed_out(self._clock()):
            new_id, level = None, self._ports.transaction_version()
            if self.ids.needs_next_id(transactional_id, level) and (new_id := await self._new_id()) is None:
                continue
            fenced = self.ids.fence(transactional_id, self._clock(), level, new_id)
            if not isinstance(fenced, int):
                logger.info("transactional id %s: no end within %d ms; it aborts", transactional_id, fenced.timeout_ms)
                rounds.append(self._append(transactional_id, fenced))
        await _wait(rounds)

    async def remove_expired(self) -> None:
        """Forget transactional ids that have not been used for `transactional.id.expiration.ms`."""
        expired = self.ids.expired(self._clock())
        await _wait([self._append(transactional_id, None) for transactional_id in expired])

    async def check_ages(self) -> None:
        """Both of these, and return when what they began is over."""
        await self.abort_timed_out()
        for transactional_id in [*self._appended, *self._completions]:
            await self._free(transactional_id)
        await self.remove_expired()

    def _every(self, interval_ms: int, step: Callable[[], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        slot = len(self._timers)

        def due() -> None:
            if not self._is_closed:
                task = loop.create_task(run())
                task.add_done_callback(lambda _: None)

        async def run() -> None:
            await step()
            self._timers[slot] = loop.call_later(interval_ms / 1000, due)

        self._timers.append(loop.call_later(interval_ms / 1000, due))

    # Durability

    async def _store(self, transactional_id: str, value: Transaction) -> int:
        """Make a state durable: an error code."""
        appended = self._append(transactional_id, value)
        if isinstance(appended, int):
            return appended
        try:
            await appended
        except NoRoomError:
            return NO_ROOM
        except StorageError:
            return codes.KAFKA_STORAGE_ERROR
        return codes.NONE

    def _append(self, transactional_id: str, value: Transaction | None) -> Round | int:
        """Append a state, or a tombstone; it is served once it is durable. An error code when it cannot be."""
        data = None if value is None else encode_transaction(value, self._record_version(value))
        records = encode_records([(encode_transaction_key(transactional_id), data)], self._clock())

        def done(failure: StorageError | None, _base_offset: int) -> None:
            del self._appended[transactional_id]
            if isinstance(failure, NoRoomError):
                self.ids.not_stored(transactional_id)
                return
            if failure is not None:
                self._has_failed = True  # the id stays as it was, and busy: nothing is decided before a restart
                return
            self.ids.stored(transactional_id)
            if value is not None and value.state in PREPARED:
                self._begin_completion(transactional_id, value)

        try:
            durable = self._journal.append(TRANSACTION_STATE, records, done)
        except BatchTooLargeError as error:
            logger.warning("transactional id %s has too many partitions: %s", transactional_id, error)
            return codes.UNKNOWN_SERVER_ERROR
        except StorageError:
            self._has_failed = True
            return codes.KAFKA_STORAGE_ERROR
        self.ids.begin(transactional_id, value)
        self._appended[transactional_id] = durable
        return durable

    def _record_version(self, value: Transaction) -> int:
        """Of what nobody but clients of classic transactions wrote, at the classic level, the one that they have."""
        level = max(self._ports.transaction_version(), value.client_version)
        return FLEXIBLE_VERSION if level >= TAGGED_RECORDS else 0

    # Markers

    def _begin_completion(self, transactional_id: str, value: Transaction) -> None:
        task = asyncio.get_running_loop().create_task(self._complete(transactional_id, value))
        self._completions[transactional_id] = task
        task.add_done_callback(lambda _: self._completions.pop(transactional_id))

    async def _complete(self, transactional_id: str, value: Transaction) -> None:
        """Write the markers of a prepared transaction, and then that it is complete; again while there is no room."""
        try:
            unmarked = set(value.partitions)
            while not await self._try_to_complete(transactional_id, value, unmarked):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), NO_ROOM_PAUSE_S)
                    return
        except StorageError as error:
            logger.critical("transactional id %s stays in %s: %s", transactional_id, value.state.title, error)

    async def _try_to_complete(self, transactional_id: str, value: Transaction, unmarked: set[TopicPartition]) -> bool:
        """Whether there was room for all of it; markers that were written are taken from `unmarked`. Raises
        `StorageError`."""
        partitions = sorted(unmarked)
        for start in range(0, len(partitions), MARKERS_AT_ONCE):
            for one, durable in [(one, self._mark(value, *one)) for one in partitions[start : start + MARKERS_AT_ONCE]]:
                if durable is None or await _has_room(durable):
                    unmarked.remove(one)
            await asyncio.sleep(0)
        if unmarked:
            return False
        appended = self._append(transactional_id, completed(value, self._clock()))
        return isinstance(appended, int) or await _has_room(appended)

    async def write_marker(self, producer: Producer, partition: TopicPartition, *, committed: bool) -> int:
        """End a producer's transaction in one partition, whatever is known of it here; returns an error code."""
        topic, index = partition
        try:
            if topic == OFFSETS_TOPIC:
                durable = self._offsets.end_transaction(index, producer, committed=committed)
            else:
                log = self._ports.log_of(topic, index)
                if log is None or log.is_closed:
                    return codes.UNKNOWN_TOPIC_OR_PARTITION
                durable = log.end_transaction(*producer, committed=committed, now_ms=self._clock())
            if durable is not None:
                await durable
        except ProducerEpochError:
            return codes.INVALID_PRODUCER_EPOCH
        except StorageError:  # logged where it was found
            return codes.KAFKA_STORAGE_ERROR
        return codes.NONE

    def _mark(self, value: Transaction, topic: str, partition: int) -> Round | None:
        """Append the marker of one partition. Raises `StorageError`."""
        committed = value.state is State.PREPARE_COMMIT
        if topic == OFFSETS_TOPIC:
            return self._offsets.end_transaction(partition, value.producer, committed=committed)
        log = self._ports.log_of(topic, partition)
        if log is None or log.is_closed:
            return None  # deleted, and the transaction's records with it
        try:
            return log.end_transaction(value.producer_id, value.epoch, committed=committed, now_ms=self._clock())
        except ProducerEpochError as error:
            logger.warning("%s: %s; no marker is written", log.folder, error)
            return None


def _check_open(
    transactions: Iterable[Transaction], known: Iterable[tuple[TopicPartition, ProducerDescription]]
) -> None:
    """Raise `DataFolderError` for a transaction that is open in a log and unknown to the journal, which knew of it
    first: nobody could end it, and readers of committed records would wait for ever."""
    open_in = {(value.producer_id, partition) for value in transactions for partition in value.partitions}
    for (topic, partition), producer in known:
        if producer.transaction_start >= 0 and (producer.producer_id, (topic, partition)) not in open_in:
            raise DataFolderError(
                f"{topic}-{partition} has an open transaction of producer id {producer.producer_id} from offset "
                f"{producer.transaction_start} on, which the coordinator's journal does not know: the journal is older "
                "than the log; restore both from copies of one time"
            )


def _not_below(value: Transaction, epoch: int, transactional_id: str) -> Transaction:
    """A transactional id in no older epoch than a log knows of its producer: an epoch that is given twice would have
    its first batches taken for ones that the log has. What is prepared ends first, in the epoch that it was."""
    if epoch <= value.epoch or value.state in PREPARED:
        return value
    logger.warning(
        "transactional id %s: the journal has epoch %d of producer id %d, and a log has epoch %d: the journal is older "
        "than the log; epochs go on from %d",
        transactional_id,
        value.epoch,
        value.producer_id,
        epoch,
        epoch + 1,
    )
    return value._replace(epoch=epoch)


async def _wait(appended: Iterable[Round | int]) -> None:
    """Return when all is durable, or never will be (the journal has said so)."""
    for one in appended:
        if not isinstance(one, int):
            with contextlib.suppress(StorageError):
                await one


async def _has_room(durable: Round) -> bool:
    """Whether it was written. Raises `StorageError` when it never will be."""
    try:
        await durable
    except NoRoomError:
        return False
    return True


async def _no_producer_id() -> int:
    raise StorageError("there are no producer ids: this coordinator serves offsets alone")


NO_PORTS = Ports(lambda _topic, _partition: None, _no_producer_id)
"""Of a coordinator that serves offsets alone."""
