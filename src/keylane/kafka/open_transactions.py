"""`TransactionsClient`: transactions that other processes began, and one topic's newest committed record.

The idea: every call is one question of Kafka's protocol, answered with Kafka's error code; what has no answer is
NETWORK_EXCEPTION, and whoever asks decides about asking again. Connections are kept by broker, and what is known of
the cluster is forgotten when a question fails.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from keylane.errors import PeerError
from keylane.kafka.link import Link, addresses_of
from keylane.kafka.login import login_of
from keylane.wire import codes
from keylane.wire import transactions as api
from keylane.wire.batches import TRANSACTIONAL_MASK, NewRecord, batches, decode_records, encode_batch
from keylane.wire.primitives import EMPTY_TAGS, FieldError, FieldReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

TIMEOUT_S = 10.0
"""How long one answer is waited for."""
ANY_S = 3.0
"""The same of what any broker knows: one that is frozen is passed over, and asked last from then on."""

TAIL_OFFSETS = 64
"""Where the newest record is looked for first: so far before the end."""
TAIL_GROWTH = 16
FETCH_BYTES = 4_000_000

ABORT_MARKER = 0

T = TypeVar("T")
Address = tuple[str, int]
NO_ANSWER = codes.NETWORK_EXCEPTION


class Held(NamedTuple):
    """Who a transactional id belongs to now, and whether a transaction of it is open."""

    producer_id: int
    epoch: int
    is_open: bool
    started_ms: int
    """Milliseconds since the epoch, by the broker's clock; -1 when none has begun."""
    timeout_ms: int


class TransactionsClient:
    """Asks the brokers at `settings["bootstrap.servers"]`, with librdkafka's settings for TLS and SASL.

    Raises `UsageError`. Every call returns Kafka's error code; calls raise `LoginError` when a broker refuses the
    login. Thread safety: one thread at a time.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._servers = addresses_of(settings)
        self._login = login_of(settings)
        self._links: dict[Address, Link] = {}
        self._coordinators: dict[str, Address] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._coordinators.clear()

    # --- a transactional id's coordinator ---

    def init(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] = (-1, -1)
    ) -> tuple[int, int, int]:
        """Error, producer id and epoch: the next epoch of the id. Refused when it has gone on from `expected`."""
        body = api.init_producer_id(transactional_id, timeout_ms, *expected)
        answer = self._of_coordinator(transactional_id, api.INIT_PRODUCER_ID, body, api.read_init_producer_id)
        return (answer, -1, -1) if isinstance(answer, int) else answer

    def add_topic(self, transactional_id: str, producer_id: int, epoch: int, topic: str) -> int:
        """Make partition 0 of a topic a part of the id's transaction."""
        body = api.add_partition(transactional_id, producer_id, epoch, topic)
        return self._of_coordinator(transactional_id, api.ADD_PARTITIONS_TO_TXN, body, api.read_add_partition)

    def end(self, transactional_id: str, producer_id: int, epoch: int, *, committed: bool) -> int:
        """Commit or abort the open transaction of an id, whoever began it, if its producer id and epoch are these."""
        body = api.end_transaction(transactional_id, producer_id, epoch, committed=committed)
        return self._of_coordinator(transactional_id, api.END_TXN, body, api.read_end_transaction)

    def describe(self, ids: Sequence[str]) -> tuple[int, dict[str, Held]]:
        """Error, and what the coordinators know of these ids."""
        found: dict[str, Held] = {}
        groups: dict[Address, list[str]] = {}
        for one in ids:
            error, address = self._coordinator(one)
            if error != codes.NONE:
                return error, {}
            groups.setdefault(address, []).append(one)
        for address, some in groups.items():
            body = api.describe_transactions(some)
            states = self._ask(address, api.DESCRIBE_TRANSACTIONS, body, api.read_described)
            if isinstance(states, int):
                return states, {}
            for state in states:
                if state.error == codes.NONE:
                    is_open = state.state == api.ONGOING
                    found[state.id] = Held(state.producer_id, state.epoch, is_open, state.started_ms, state.timeout_ms)
                elif state.error != codes.TRANSACTIONAL_ID_NOT_FOUND:
                    self._forget(state.error)
                    return state.error, {}
        return codes.NONE, found

    def open_ids(self, prefix: str, topic: str) -> tuple[int, list[str]]:
        """Error, and the ids with this prefix whose transaction is open, on any broker; `topic` is any topic."""
        brokers = self._brokers(topic)
        if isinstance(brokers, int):
            return brokers, []
        ids: list[str] = []
        for address in brokers.addresses.values():
            listed = self._ask(address, api.LIST_TRANSACTIONS, api.list_transactions(api.ONGOING), api.read_listed)
            error, some = (listed, []) if isinstance(listed, int) else listed
            if error == NO_ANSWER:
                continue  # a node that is dead coordinates nothing; what it had is another's, or waits for its timeout
            if error != codes.NONE:
                return error, []
            ids += (one for one in some if one.startswith(prefix))
        return codes.NONE, ids

    # --- a topic of one partition ---

    def partitions(self, topic: str) -> tuple[int, int]:
        """Error, and how many partitions the topic has."""
        brokers = self._brokers(topic)
        return (brokers, 0) if isinstance(brokers, int) else (brokers.error, brokers.partitions)

    def append(
        self, topic: str, key: bytes, value: bytes, *, transactional_id: str, producer: tuple[int, int], sequence: int
    ) -> int:
        """Write a record in the open transaction of an id; NONE, too, when it is there already, by its sequence."""
        batch = encode_batch(
            [NewRecord(key, value)],
            timestamp_ms=int(time.time() * 1000),
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            attributes=TRANSACTIONAL_MASK,
        )
        error = self._of_leader(topic, api.PRODUCE, api.produce(transactional_id, topic, batch), api.read_produced)
        return codes.NONE if error == codes.DUPLICATE_SEQUENCE_NUMBER else error

    def newest(self, topic: str) -> tuple[int, bytes | None]:
        """Error, and the value of the newest committed record; None when there is none.

        OFFSET_NOT_AVAILABLE while a transaction is open in the topic.
        """
        ends = []
        for at in (api.EARLIEST, api.LATEST):
            answer = self._of_leader(topic, api.LIST_OFFSETS, api.list_offset(topic, at), api.read_offset)
            error, offset = (answer, -1) if isinstance(answer, int) else answer
            if error != codes.NONE:
                self._forget(error)
                return error, None
            ends.append(offset)
        first, end = ends
        length = TAIL_OFFSETS
        while True:
            at = max(first, end - length)
            error, value = self._newest_from(topic, at, end)
            if error != codes.NONE or value is not None or at == first:
                return error, value
            length *= TAIL_GROWTH

    def _newest_from(self, topic: str, at: int, end: int) -> tuple[int, bytes | None]:
        newest: bytes | None = None
        while at < end:
            fetched = self._of_leader(topic, api.FETCH, api.fetch(topic, at, FETCH_BYTES), api.read_fetched)
            if isinstance(fetched, int) or fetched.error != codes.NONE:
                error = fetched if isinstance(fetched, int) else fetched.error
                self._forget(error)
                return error, None
            if fetched.last_stable_offset < end:
                return codes.OFFSET_NOT_AVAILABLE, None
            before = at
            aborted = sorted(fetched.aborted, key=lambda one: one[1])
            ignored: set[int] = set()
            for position, header in batches(fetched.records):
                while aborted and aborted[0][1] <= header.last_offset:
                    ignored.add(aborted.pop(0)[0])
                at = max(at, header.next_offset)
                if header.is_control:
                    ignored.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in ignored):
                    records = decode_records(fetched.records, position)
                    newest = records[-1].value if records else newest
            if at == before:  # compaction left nothing there
                break
        return codes.NONE, newest

    # --- who is asked ---

    def _of_coordinator(
        self, transactional_id: str, kind: tuple[int, int], body: bytes, read: Callable[[FieldReader], T]
    ) -> T | int:
        error, address = self._coordinator(transactional_id)
        if error != codes.NONE:
            return error
        answer = self._ask(address, kind, body, read)
        self._forget(answer if isinstance(answer, int) else answer[0] if isinstance(answer, tuple) else 0)
        return answer

    def _coordinator(self, transactional_id: str) -> tuple[int, Address]:
        if transactional_id in self._coordinators:
            return codes.NONE, self._coordinators[transactional_id]
        found = self._of_any(
            api.FIND_COORDINATOR,
            api.find_coordinator(transactional_id),
            lambda reader: api.read_coordinator(reader.data),
        )
        if isinstance(found, int):
            return found, ("", 0)
        if found[0] == codes.NONE:
            self._coordinators[transactional_id] = found[1]
        return found

    def _of_leader(self, topic: str, kind: tuple[int, int], body: bytes, read: Callable[[FieldReader], T]) -> T | int:
        brokers = self._brokers(topic)
        if isinstance(brokers, int):
            return brokers
        if brokers.error != codes.NONE:
            return brokers.error
        address = brokers.addresses.get(brokers.leader)
        return codes.LEADER_NOT_AVAILABLE if address is None else self._ask(address, kind, body, read)

    def _brokers(self, topic: str) -> api.Brokers | int:
        return self._of_any(api.METADATA, api.metadata(topic), api.read_metadata)

    def _of_any(self, kind: tuple[int, int], body: bytes, read: Callable[[FieldReader], T]) -> T | int:
        """The first broker that answers, those with a connection before the others."""
        for address in dict.fromkeys((*self._links, *self._servers)):
            answer = self._ask(address, kind, body, read, ANY_S)
            if answer != NO_ANSWER:
                return answer
            self._servers.sort(key=address.__eq__)
        return NO_ANSWER

    def _ask(
        self,
        address: Address,
        kind: tuple[int, int],
        body: bytes,
        read: Callable[[FieldReader], T],
        within_s: float = TIMEOUT_S,
    ) -> T | int:
        is_flexible = kind in api.FLEXIBLE
        try:
            link = self._links.get(address)
            if link is not None and link.is_closed_by_peer():
                self._drop(address)
                link = None
            if link is None:
                link = self._links[address] = Link(address, self._login, within_s)
            link.wait_at_most(within_s)
            answer = link.ask(*kind, EMPTY_TAGS + body if is_flexible else body)
        except OSError:
            self._drop(address)
            return NO_ANSWER
        reader = FieldReader(answer, is_flexible=is_flexible)
        try:
            reader.skip_tags()  # of the header
            return read(reader)
        except (FieldError, IndexError) as error:
            self._drop(address)
            raise PeerError(
                f"the broker at {address[0]}:{address[1]} answered API {kind[0]} otherwise: {error}"
            ) from error

    def _forget(self, error: int) -> None:
        """What a refusal may have made untrue."""
        if error not in (codes.NONE, codes.CONCURRENT_TRANSACTIONS):
            self._coordinators.clear()

    def _drop(self, address: Address) -> None:
        self._coordinators.clear()
        link = self._links.pop(address, None)
        if link is not None:
            link.close()
