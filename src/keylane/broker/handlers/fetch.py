"""Fetch (1), versions 4-12: record batches from an offset on, waiting until enough of them are there.

v5: log start offset; v7: sessions (KIP-227), which this broker does not keep: it answers every full fetch with session
id 0, so clients go on sending full ones; v9: leader epochs; v12: flexible. Compressed batches pass through as they are.
Without transactions, both isolation levels read the same.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from keylane.broker import codes
from keylane.errors import PeerError
from keylane.storage.log import LEADER_EPOCH, PartitionLog
from keylane.wire.encoders import FetchedPartition, encode_fetch

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 1
MIN_VERSION = 4
MAX_VERSION = 12
MAY_POLL = True
LACKS = "fetch sessions (every fetch is a full one); rack awareness; aborted transactions (there are none)"

logger = logging.getLogger("keylane.broker")

_SESSION_VERSION = 7


class _Read:
    """One partition of the request, and what is known about it."""

    __slots__ = ("code", "index", "log", "max_bytes", "offset", "position")

    def __init__(self, log: PartitionLog | None, wanted: Any) -> None:
        self.log = log
        self.index: int = wanted.partition
        self.offset: int = wanted.fetch_offset
        self.max_bytes: int = wanted.partition_max_bytes
        self.position = 0
        self.code = codes.NONE

    async def locate(self, current_leader_epoch: int) -> None:
        """Find the offset in the log, or what is wrong."""
        log = self.log
        if log is None or log.is_closed:
            self.code = codes.UNKNOWN_TOPIC_OR_PARTITION
            return
        self.code = codes.leader_epoch_error(current_leader_epoch, LEADER_EPOCH)
        if self.code != codes.NONE:
            return
        if not log.log_start_offset <= self.offset <= log.next_offset:
            self.code = codes.OFFSET_OUT_OF_RANGE
            return
        try:
            if not log.is_prepared(self.offset):
                await log.prepare(self.offset)
            self.position = log.locate(self.offset)
        except (OSError, PeerError) as error:
            self._fail(error)

    @property
    def available(self) -> int:
        """The bytes that are there for it now."""
        if self.log is None or self.code != codes.NONE:
            return 0
        return min(self.log.synced_position - self.position, self.max_bytes)

    def read(self, budget: int, *, at_least_one: bool) -> FetchedPartition:
        """The answer, with at most `budget` bytes of records."""
        log = self.log
        if self.code == codes.NONE and log is not None and log.is_closed:
            self.code = codes.UNKNOWN_TOPIC_OR_PARTITION  # deleted while the fetch waited
        if log is None or self.code == codes.UNKNOWN_TOPIC_OR_PARTITION:
            return FetchedPartition(self.index, self.code)
        records = b""
        if self.code == codes.NONE:
            try:
                records = log.read(self.position, min(self.max_bytes, budget), at_least_one=at_least_one)
            except (OSError, PeerError) as error:
                self._fail(error)
        return FetchedPartition(self.index, self.code, log.high_watermark, log.log_start_offset, records)

    def _fail(self, error: Exception) -> None:
        assert self.log is not None
        logger.error("%s: %s", self.log.folder, error)
        self.code = codes.KAFKA_STORAGE_ERROR


class _Arrival:
    """Counts the bytes that become visible, and wakes the fetch when they suffice or a log is closed."""

    def __init__(self, needed: int) -> None:
        self.is_enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._needed = needed

    def __call__(self, new_bytes: int) -> None:
        self._needed -= new_bytes
        if (self._needed <= 0 or new_bytes == 0) and not self.is_enough.done():
            self.is_enough.set_result(None)


async def handle(request: Any, header: RequestHeader, node: Node) -> list[bytes]:
    version = header.api_version
    if version >= _SESSION_VERSION and request.session_id != 0 and request.session_epoch > 0:
        return encode_fetch(version, (), error_code=codes.FETCH_SESSION_ID_NOT_FOUND)
    max_bytes = min(request.max_bytes, node.config.fetch_max_bytes)
    topics = []
    every: list[_Read] = []
    for topic in request.topics:
        reads = []
        for wanted in topic.partitions:
            read = _Read(node.topics.log(topic.topic, wanted.partition), wanted)
            await read.locate(getattr(wanted, "current_leader_epoch", -1))
            reads.append(read)
        topics.append((topic.topic, reads))
        every += reads
    wait_s = request.max_wait.total_seconds()
    missing = min(request.min_bytes, max_bytes) - sum(read.available for read in every)
    if missing > 0 and wait_s > 0 and all(read.code == codes.NONE for read in every):
        await _wait([read.log for read in every if read.log is not None], missing, wait_s)
    return encode_fetch(version, _read_all(topics, max_bytes))


def _read_all(topics: list[tuple[str, list[_Read]]], max_bytes: int) -> list[tuple[str, list[FetchedPartition]]]:
    """Records of all partitions, in the order of the request, until `max_bytes`; at least one batch of the first."""
    answers = []
    budget = max_bytes
    at_least_one = True
    for name, reads in topics:
        partitions = []
        for read in reads:
            partition = read.read(budget, at_least_one=at_least_one)
            budget = max(budget - len(partition.records), 0)
            at_least_one = at_least_one and not partition.records
            partitions.append(partition)
        answers.append((name, partitions))
    return answers


async def _wait(logs: list[PartitionLog], missing: int, wait_s: float) -> None:
    arrival = _Arrival(missing)
    timeout = asyncio.get_running_loop().call_later(wait_s, arrival, missing)
    for log in logs:
        log.listeners.add(arrival)
    try:
        await arrival.is_enough
    finally:
        timeout.cancel()
        for log in logs:
            log.listeners.discard(arrival)
