"""`FencedLog`: one partition of a topic as a log of our own, whose writers fence each other by Kafka's producer epochs.

The idea: a writer gets the next epoch of a transactional id, and appends idempotent batches with it that belong to no
transaction. So brokers refuse what an older epoch appends, and take a batch once that is sent again. librdkafka has no
such producer: with a transactional id it produces in transactions only.

Up to five batches are in flight on one connection. When it breaks, or the leader has moved, all that have no answer go
out again in their order, with the sequences that they have. What no broker took for `give_up_s` is refused, and so is
all behind it: whoever writes on needs a new epoch.

Two threads a partition: one for appends, one for the questions. Answers are handed to `call`.

Sources: KIP-98, KIP-360.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from keylane.coordinator.replicated.journal import Fetched, Refused
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.errors import PeerError
from keylane.kafka.link import Link
from keylane.kafka.login import LoginError, login_of
from keylane.kafka.open_transactions import TransactionsClient
from keylane.wire import codes
from keylane.wire import partition_log as log_api
from keylane.wire import transactions as api
from keylane.wire.primitives import FieldError, FieldReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GIVE_UP_S = 30.0
"""A cluster takes nine seconds to see that a node is dead; far less than brokers remember a producer."""
AGAIN_S = 0.1
"""Pause before a question is asked again."""
ANSWER_S = 10.0
"""A connection without the answer that is due for so long is given up; a broker answers after `PRODUCE_MS` at last."""
LATE_S = 1.0
"""An append without an answer for so long is asked about: another broker may lead, and a frozen one does not say so."""
PRODUCE_MS = 5_000
FETCH_WAIT_MS = 100
FETCH_BYTES = 1_000_000
IN_FLIGHT = 5
"""Batches without an answer: a broker remembers five of a producer."""
TRANSACTION_MS = 60_000
"""The timeout of a transactional id that never begins a transaction; brokers want one."""

NOT_NOW = frozenset(
    {
        codes.UNKNOWN_TOPIC_OR_PARTITION,
        codes.LEADER_NOT_AVAILABLE,
        codes.NOT_LEADER_OR_FOLLOWER,
        codes.REQUEST_TIMED_OUT,
        codes.BROKER_NOT_AVAILABLE,
        codes.REPLICA_NOT_AVAILABLE,
        codes.NETWORK_EXCEPTION,
        codes.COORDINATOR_LOAD_IN_PROGRESS,
        codes.COORDINATOR_NOT_AVAILABLE,
        codes.NOT_COORDINATOR,
        codes.NOT_ENOUGH_REPLICAS,
        codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        codes.CONCURRENT_TRANSACTIONS,
        codes.KAFKA_STORAGE_ERROR,
        codes.FENCED_LEADER_EPOCH,
        codes.UNKNOWN_LEADER_EPOCH,
        codes.OFFSET_NOT_AVAILABLE,
    }
)
"""Worth asking again: another broker leads, or will."""

NAMES = {value: name for name, value in vars(codes).items() if name.isupper() and isinstance(value, int)}

T = TypeVar("T")
Address = tuple[str, int]


def steady_s() -> float:
    """Seconds that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LogClient(TransactionsClient):
    """Asks the leader of any partition. Thread safety: one thread at a time."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        super().__init__(settings)
        self._read_from: dict[tuple[str, int], Address] = {}
        """The leaders that fetches have found; each until it refuses one, or gives no answer."""

    def leader(self, topic: str, partition: int) -> Address | int:
        """Host and port, or an error code."""
        brokers = self._brokers(topic)
        if isinstance(brokers, int):
            return brokers
        if brokers.error != codes.NONE:
            return brokers.error
        address = brokers.addresses.get(brokers.leaders.get(partition, -1))
        return codes.LEADER_NOT_AVAILABLE if address is None else address

    def fetch(self, topic: str, partition: int, offset: int) -> api.Fetched | int:
        """From an offset on, or from where the log begins; or an error code."""
        address = self._read_from.pop((topic, partition), None) or self.leader(topic, partition)
        if isinstance(address, int):
            return address
        body = log_api.fetch(topic, partition, offset, FETCH_WAIT_MS, FETCH_BYTES)
        found = self._ask(address, log_api.FETCH, body, api.read_fetched)
        if not isinstance(found, int) and found.error == codes.NONE:
            self._read_from[topic, partition] = address
        if isinstance(found, int) or found.error != codes.OFFSET_OUT_OF_RANGE:
            return found
        body = log_api.list_offset(topic, partition, api.EARLIEST)
        first = self._ask(address, log_api.LIST_OFFSETS, body, api.read_offset)
        if isinstance(first, int):
            return first
        if first[0] != codes.NONE or first[1] <= offset:
            return first[0] or codes.OFFSET_OUT_OF_RANGE
        return self.fetch(topic, partition, first[1])


class _Unanswered(NamedTuple):
    batch: bytes
    told: Callable[[int | Refused], None]
    since_s: float


class FencedLog:
    """Starts its threads when it is made; they end after `close`. Raises `UsageError`.

    Thread safety: any thread may ask; answers of one kind come in the order of the questions.
    """

    def __init__(
        self,
        settings: Mapping[str, object],
        topic: str,
        partition: int,
        transactional_id: str,
        call: Callable[[Callable[[], None]], object],
        *,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        """`settings` are librdkafka's, of which addresses, TLS and SASL are used; `call` runs a callback where its
        owner wants it, as an event loop's `call_soon_threadsafe` does."""
        self._topic = topic
        self._partition = partition
        self._id = transactional_id
        self._call = call
        self._give_up_s = give_up_s
        self._client = LogClient(settings)
        self._is_closed = threading.Event()
        self._questions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._asker = threading.Thread(target=self._answer_questions, name=f"keylane-log-{partition}", daemon=True)
        self._writer = _Writer(settings, topic, partition, call, give_up_s)
        self._asker.start()
        self._writer.start()

    def init(self, expected: Producer | None, told: Callable[[Producer | Refused], None]) -> None:
        """The id's next epoch; with `expected`, only if that is its producer now (KIP-360)."""

        def ask() -> tuple[int, Producer]:
            known = (-1, -1) if expected is None else (expected.producer_id, expected.epoch)
            error, *producer = self._client.init(self._id, TRANSACTION_MS, known)
            return error, Producer(*producer)

        self._questions.put(lambda: self._ask(f"initialise {self._id}", ask, told))

    def append(self, batch: bytes, told: Callable[[int | Refused], None]) -> None:
        """Its base offset, once it is on all replicas in sync."""
        self._writer.append(batch, told)

    def read(self, offset: int, told: Callable[[Fetched | Refused], None]) -> None:
        """What is there from this offset on, and where all replicas in sync end. Waits a moment for it at the end."""

        def ask() -> tuple[int, Fetched]:
            found = self._client.fetch(self._topic, self._partition, offset)
            if isinstance(found, int):
                return found, Fetched(b"", -1)
            return found.error, Fetched(found.records, found.high_watermark)

        self._questions.put(lambda: self._ask(f"read {self._topic}-{self._partition}", ask, told))

    def close(self) -> None:
        """What is under way has no answer any more."""
        self._is_closed.set()
        self._questions.put(None)
        self._writer.close()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads to end; whether they have."""
        for thread in (self._asker, self._writer):
            thread.join(timeout_s)
        return not (self._asker.is_alive() or self._writer.is_alive())

    def _answer_questions(self) -> None:
        with self._client:
            while (question := self._questions.get()) is not None and not self._is_closed.is_set():
                question()

    def _ask(self, what: str, ask: Callable[[], tuple[int, T]], told: Callable[[T | Refused], None]) -> None:
        """Ask again until there is an answer, or a refusal, or it takes too long."""
        give_up_at = steady_s() + self._give_up_s
        answer: T | Refused
        while True:
            try:
                error, answer = ask()
            except PeerError as wrong:
                answer = Refused(f"cannot {what}: {wrong}")
                break
            if error == codes.NONE:
                break
            answer = Refused(f"cannot {what}: {NAMES.get(error, error)}", is_passing=error in NOT_NOW)
            if error not in NOT_NOW or steady_s() > give_up_at or self._is_closed.wait(AGAIN_S):
                break
        if not self._is_closed.is_set():
            self._call(lambda: told(answer))


class _Writer(threading.Thread):
    """Appends, in order."""

    def __init__(
        self,
        settings: Mapping[str, object],
        topic: str,
        partition: int,
        call: Callable[[Callable[[], None]], object],
        give_up_s: float,
    ) -> None:
        super().__init__(name=f"keylane-log-append-{partition}", daemon=True)
        self._topic = topic
        self._partition = partition
        self._call = call
        self._give_up_s = give_up_s
        self._login = login_of(settings)
        self._client = LogClient(settings)
        self._lock = threading.Lock()
        self._unanswered: deque[_Unanswered] = deque()
        """Written by any thread, under the lock."""
        self._sent = 0
        """How many of them went out on this connection."""
        self._heard_s = 0.0
        self._link: Link | None = None
        self._address: Address | None = None
        """Of the broker behind it."""
        self._looked_s = 0.0
        """When it was last asked whether that one still leads."""
        self._refusal: Refused | None = None
        self._problem = ""
        """What went wrong with the last connection."""
        self._is_closed = False
        self._bell, self._ring = socket.socketpair()
        self._ring.setblocking(False)

    def append(self, batch: bytes, told: Callable[[int | Refused], None]) -> None:
        with self._lock:
            refusal = self._refusal
            if refusal is None:
                self._unanswered.append(_Unanswered(batch, told, steady_s()))
        if refusal is not None:
            self._call(lambda: told(refusal))
        self._wake()

    def close(self) -> None:
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # it is ringing already, or nobody listens any more
            self._ring.send(b"\0")

    def run(self) -> None:
        try:
            while not self._is_closed:
                try:
                    self._turn()
                except LoginError as error:
                    self._refuse(str(error))
                except (OSError, PeerError) as error:
                    self._problem = f" ({error})"
                    self._drop()
                    self._wait(AGAIN_S)
        finally:
            self._drop()
            self._client.close()
            self._bell.close()
            self._ring.close()

    def _turn(self) -> None:
        """Send what there is, and take one answer; or wait. Raises `OSError` for a connection that is gone, and
        `PeerError`."""
        with self._lock:
            waiting = list(self._unanswered)
        if not waiting:
            self._wait(None)
            return
        if steady_s() - waiting[0].since_s > self._give_up_s:
            text = f"no broker took a batch within {self._give_up_s:g} s{self._problem}"
            self._refuse(text, is_passing=True)
            return
        link = self._link or self._connect()
        if link is None:
            self._wait(AGAIN_S)
            return
        while self._sent < min(len(waiting), IN_FLIGHT):
            body = log_api.produce(self._topic, self._partition, waiting[self._sent].batch, PRODUCE_MS)
            link.send(*log_api.PRODUCE, body)
            if not self._sent:
                self._heard_s = steady_s()
            self._sent += 1
        if link.has_answer(AGAIN_S * 10, self._bell):
            self._heard_s = steady_s()
            self._take(link.receive())
            return
        self._empty_bell()
        if steady_s() - self._heard_s > ANSWER_S:
            raise ConnectionError(f"no answer within {ANSWER_S:g} s")
        if steady_s() - self._heard_s > LATE_S and self._has_moved():
            raise ConnectionError("another broker leads now")

    def _connect(self) -> Link | None:
        """To the leader; None while nobody knows it. Raises `OSError`."""
        address = self._client.leader(self._topic, self._partition)
        if isinstance(address, int):
            if address not in NOT_NOW:
                self._refuse(f"the leader of {self._topic}-{self._partition}: {NAMES.get(address, address)}")
            return None
        self._link, self._address = Link(address, self._login, ANSWER_S), address
        return self._link

    def _has_moved(self) -> bool:
        """Whether somebody knows another leader than the one that was sent to; asked once in `LATE_S`."""
        if steady_s() - self._looked_s < LATE_S:
            return False
        address = self._client.leader(self._topic, self._partition)
        self._looked_s = steady_s()
        return not isinstance(address, int) and address != self._address

    def _take(self, answer: bytes) -> None:
        """The answer to the oldest. Raises `PeerError` when it is none, and `OSError` when all is to be sent again."""
        try:
            error, base_offset = log_api.read_produced(FieldReader(answer))
        except FieldError as wrong:
            raise PeerError(f"the broker answered something else: {wrong}") from wrong
        if error in NOT_NOW:
            self._drop()
            self._wait(AGAIN_S)
            return
        if error != codes.NONE:
            self._refuse(f"the log refuses a batch: {NAMES.get(error, error)}")
            return
        with self._lock:
            one = self._unanswered.popleft()
        self._sent -= 1
        self._call(lambda: one.told(base_offset))

    def _refuse(self, reason: str, *, is_passing: bool = False) -> None:
        """For good: what is behind it would have a gap before it."""
        refusal = Refused(reason, is_passing)
        with self._lock:
            self._refusal = refusal
            left = list(self._unanswered)
            self._unanswered.clear()
        self._drop()
        for one in left:
            self._call(partial(one.told, refusal))

    def _drop(self) -> None:
        self._sent = 0
        if self._link is not None:
            self._link.close()
            self._link = None

    def _wait(self, timeout_s: float | None) -> None:
        """Until something is appended, or so long."""
        self._bell.settimeout(timeout_s)
        with suppress(TimeoutError):
            self._bell.recv(4_096)

    def _empty_bell(self) -> None:
        self._bell.setblocking(False)
        with suppress(BlockingIOError):
            self._bell.recv(4_096)
