"""What stands in `__transaction_state` after the same requests: here and in Apache Kafka, record by record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from keylane.coordinator.formats import TRANSACTION_STATE
from keylane.coordinator.journal.segments import SEGMENT_SUFFIX, SegmentReader
from keylane.coordinator.transactions.records import (
    FLEXIBLE_VERSION,
    decode_transaction,
    encode_transaction,
    encode_transaction_key,
)
from keylane.wire.batches import batches, decode_records
from kit.either_broker import either_broker
from kit.protocol import ProtocolClient, until
from kit.transaction_requests import NOT_YET, Tx, create_topic, fetch, find_group

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kio.schema.errors import ErrorCode

PARTITIONS = 4


class Row(NamedTuple):
    """A record, without the names and the times of its run."""

    version: int
    state: str
    epoch: int
    is_first_id: bool
    previous_is_own: bool
    next_id: int
    client_version: int
    partitions: int
    has_start: bool
    timeout_ms: int


def records(kind: str, client: ProtocolClient, folder: Path) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values, in order."""
    if kind == "keylane":
        for path in sorted((folder / "data" / "coordinator").glob(f"*{SEGMENT_SUFFIX}")):
            reader = SegmentReader(
                path.read_bytes(), str(path), number=int(path.stem), partitions=PARTITIONS, may_be_torn=True
            )
            for _, partition, _, _, batch in reader:
                if partition == TRANSACTION_STATE:
                    yield from ((record.key or b"", record.value) for record in decode_records(batch))
        return
    for partition in range(PARTITIONS):
        data = fetch(client, "__transaction_state", partition, level=0).records or b""
        for at, _ in batches(data):
            yield from ((record.key or b"", record.value) for record in decode_records(data, at))


def rows(kind: str, client: ProtocolClient, folder: Path, tx: Tx, first_id: int) -> list[Row]:
    found = []
    for key, value in records(kind, client, folder):
        if key != encode_transaction_key(tx.name) or value is None:
            continue
        one = decode_transaction(value)
        version = int.from_bytes(value[:2], "big")
        assert len(encode_transaction(one, version)) == len(value), "no field is there that is not known"
        if len({topic for topic, _ in one.partitions}) < 2:
            assert encode_transaction(one, version) == value
        found.append(
            Row(
                version,
                one.state.title,
                one.epoch,
                one.producer_id == first_id,
                one.previous_producer_id == one.producer_id,
                one.next_producer_id,
                one.client_version,
                len(one.partitions),
                one.started_ms > 0,
                one.timeout_ms,
            )
        )
    return found


def new_transactions(tx: Tx, topic: str) -> None:
    """A commit with offsets, an abort, an abort of nothing, and one that another producer fences."""
    until(lambda: tx.produce(topic, 0, b"a", 12), is_over)
    until(lambda: tx.commit_offset(topic, 0, 1, version=5), is_over)
    tx.go_on()
    until(lambda: tx.produce(topic, 0, b"b", 12), is_over)
    tx.go_on(committed=False)
    tx.go_on(committed=False)
    until(lambda: tx.produce(topic, 0, b"c", 12), is_over)
    tx.start()


def classic_transactions(tx: Tx, topic: str) -> None:
    tx.begin(topic, 0)
    tx.produce(topic, 0, b"a")
    until(tx.add_offsets, is_over)
    tx.finish()
    tx.begin(topic, 0)
    tx.finish(committed=False)
    tx.begin(topic, 0)
    tx.start()


def is_over(code: ErrorCode) -> bool:
    return code not in NOT_YET


NEW = FLEXIBLE_VERSION, 2
CLASSIC = FLEXIBLE_VERSION, 0


def row(kind: tuple[int, int], state: str, epoch: int, partitions: int = 0) -> Row:
    version, client_version = kind
    has_start = state != "Empty"
    return Row(version, state, epoch, True, True, -1, client_version, partitions, has_start, 60_000)


WANTED: dict[Any, list[Row]] = {
    new_transactions: [
        row(CLASSIC, "Empty", 0),
        row(NEW, "Ongoing", 0, 1),
        row(NEW, "Ongoing", 0, 2),
        row(NEW, "PrepareCommit", 1, 2),
        row(NEW, "CompleteCommit", 1),
        row(NEW, "Ongoing", 1, 1),
        row(NEW, "PrepareAbort", 2, 1),
        row(NEW, "CompleteAbort", 2),
        row(NEW, "PrepareAbort", 3),
        row(NEW, "CompleteAbort", 3),
        row(NEW, "Ongoing", 3, 1),
        row(NEW, "PrepareAbort", 4, 1),
        row(NEW, "CompleteAbort", 4),
        row(NEW, "Empty", 5),
    ],
    classic_transactions: [
        row(CLASSIC, "Empty", 0),
        row(CLASSIC, "Ongoing", 0, 1),
        row(CLASSIC, "Ongoing", 0, 2),
        row(CLASSIC, "PrepareCommit", 0, 2),
        row(CLASSIC, "CompleteCommit", 0),
        row(CLASSIC, "Ongoing", 0, 1),
        row(CLASSIC, "PrepareAbort", 0, 1),
        row(CLASSIC, "CompleteAbort", 0),
        row(CLASSIC, "Ongoing", 0, 1),
        row(NEW, "PrepareAbort", 1, 1),
        row(NEW, "CompleteAbort", 1),
        row(NEW, "Empty", 2),
    ],
}


@pytest.mark.parametrize("transactions", WANTED)
@pytest.mark.parametrize("kind", ["keylane", pytest.param("apache", marks=pytest.mark.soak)])
def test_the_records_are_those_of_apache_kafka(tmp_path: Path, kind: str, transactions: Any) -> None:
    settings = {"offsets.topic.num.partitions": str(PARTITIONS)}
    with either_broker(kind, tmp_path, settings) as broker, ProtocolClient(broker.bootstrap) as client:
        topic = create_topic(client)
        tx = Tx(client).start()
        find_group(client, tx.group)
        first_id = tx.id
        transactions(tx, topic)
        wanted = WANTED[transactions]
        found = until(lambda: rows(kind, client, tmp_path, tx, first_id), lambda found: len(found) >= len(wanted))
        assert found == wanted
