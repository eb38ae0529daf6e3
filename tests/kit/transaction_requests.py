"""Transactions by single requests, version by version, and what readers see of them: for tests on both brokers."""

from __future__ import annotations

import datetime
import itertools
import time
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.wire.batches import NewRecord, batches, decode_records, encode_batch
from keylane.wire.control import is_commit
from keylane.wire.versions import request_type
from kit.protocol import ask, decode_answer, part, until

if TYPE_CHECKING:
    from kit.protocol import ProtocolClient

MINUTE = datetime.timedelta(minutes=1)
NOT_YET = {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.unknown_topic_or_partition,
}
"""What a client tries again."""
NUMBERS = itertools.count()
NOW_MS = time.time_ns() // 1_000_000
"""Of every record: Apache Kafka begins a new segment, and a fetch reads one, where times are far apart."""


def create_topic(client: ProtocolClient) -> str:
    """A topic of two partitions."""
    name = f"topic-{next(NUMBERS)}"
    wanted = part(
        "create_topics",
        7,
        "CreatableTopic",
        name=name,
        num_partitions=2,
        replication_factor=1,
        assignments=(),
        configs=(),
    )
    answer = client.ask("create_topics", 7, topics=(wanted,), timeout=MINUTE, validate_only=False)
    assert answer.topics[0].error_code == ErrorCode.none
    until(lambda: client_list_offsets(client, name, 0, 0)[0], lambda code: code == ErrorCode.none)
    return name


class Tx:
    """A transactional producer, request by request. Methods give the error code of the answer."""

    def __init__(self, client: ProtocolClient, name: str | None = None) -> None:
        self.client = client
        self.name = name or f"tx-{next(NUMBERS)}"
        self.group = f"group-of-{self.name}"
        self.id = -1
        self.epoch = -1
        self.sequence = 0

    def init(self, version: int = 4, *, known: tuple[int, int] = (-1, -1), timeout: datetime.timedelta = MINUTE) -> Any:
        return ask(
            self.client, "init_producer_id", version, transactional_id=self.name, transaction_timeout=timeout,
            producer_id=known[0], producer_epoch=known[1],
        )  # fmt: skip

    def start(self) -> Tx:
        until(
            lambda: self.client.ask("find_coordinator", 2, key=self.name, key_type=1).error_code,
            lambda code: code == ErrorCode.none,
        )
        answer = until(self.init, lambda answer: answer.error_code not in NOT_YET)
        assert answer.error_code == ErrorCode.none
        self.id, self.epoch = answer.producer_id, answer.producer_epoch
        return self

    def add(self, topic: str, *partitions: int, version: int = 3, **changes: Any) -> Any:
        wanted = part("add_partitions_to_txn", version, "AddPartitionsToTxnTopic", name=topic, partitions=partitions)
        who: dict[str, Any] = {"id": self.name, "pid": self.id, "epoch": self.epoch} | changes
        answer = ask(
            self.client, "add_partitions_to_txn", version, v3_and_below_topics=(wanted,),
            v3_and_below_transactional_id=who["id"], v3_and_below_producer_id=who["pid"],
            v3_and_below_producer_epoch=who["epoch"],
        )  # fmt: skip
        rows = answer.results_by_topic_v3_and_below[0].results_by_partition
        codes = {row.partition_index: row.partition_error_code for row in rows}
        return codes if len(codes) > 1 else codes[partitions[0]]

    def begin(self, topic: str, *partitions: int) -> None:
        for partition in partitions:
            self._begin_one(topic, partition)

    def _begin_one(self, topic: str, partition: int) -> None:
        code = until(lambda: self.add(topic, partition), lambda code: code not in NOT_YET)
        assert code == ErrorCode.none

    def add_offsets(self, version: int = 3, **changes: Any) -> ErrorCode:
        values = {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch} | changes
        code: ErrorCode = ask(self.client, "add_offsets_to_txn", version, **values, group_id=self.group).error_code
        return code

    def end(self, *, committed: bool = True, version: int = 3, **changes: Any) -> ErrorCode:
        values = {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch} | changes
        code: ErrorCode = ask(self.client, "end_txn", version, **values, committed=committed).error_code
        return code

    def finish(self, *, committed: bool = True) -> None:
        """End the transaction, and wait until it is complete."""
        assert self.end(committed=committed) == ErrorCode.none
        assert self.ended(committed=committed) == ErrorCode.none

    def ended(self, *, committed: bool) -> ErrorCode:
        """The answer to EndTxn once nothing is under way."""
        code: ErrorCode = until(lambda: self.end(committed=committed), lambda code: code not in NOT_YET)
        return code

    def end_to_next(self, *, committed: bool = True, **changes: Any) -> tuple[ErrorCode, int, int]:
        """Error, producer id and epoch of EndTxn 5."""
        values = {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch} | changes
        answer = self.client.ask("end_txn", 5, **values, committed=committed)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    def ended_to_next(self, *, committed: bool = True, **changes: Any) -> tuple[ErrorCode, int, int]:
        """The same once nothing is under way."""
        answer: tuple[ErrorCode, int, int] = until(
            lambda: self.end_to_next(committed=committed, **changes), lambda answer: answer[0] not in NOT_YET
        )
        return answer

    def go_on(self, *, committed: bool = True) -> None:
        """End the transaction, and take the epoch that is given for the next one once this is complete."""
        assert self.ended_to_next(committed=committed)[0] == ErrorCode.none
        error, producer_id, epoch = self.ended_to_next(committed=committed)
        assert error == ErrorCode.none
        self.id, self.epoch, self.sequence = producer_id, epoch, 0

    def state(self) -> str:
        """The same for an id that has begun no transaction, which kio cannot read a description of."""
        answer = self.client.ask("list_transactions", 0, state_filters=(), producer_id_filters=(self.id,))
        (found,) = (one.transaction_state for one in answer.transaction_states if one.transactional_id == self.name)
        return str(found)

    def described(self) -> tuple[ErrorCode, str, int, int, list[tuple[str, tuple[int, ...]]]]:
        """Error, state, producer id, epoch and partitions."""
        (found,) = self.client.ask("describe_transactions", 0, transactional_ids=(self.name,)).transaction_states
        rows = [(row.topic, tuple(sorted(row.partitions))) for row in found.topics]
        return found.error_code, found.transaction_state, found.producer_id, found.producer_epoch, rows

    def batch(self, value: bytes, **changes: Any) -> bytes:
        who = {"pid": self.id, "epoch": self.epoch, "attributes": 0x10, "sequence": self.sequence} | changes
        return encode_batch(
            [NewRecord(None, value)], timestamp_ms=NOW_MS, producer_id=who["pid"],
            producer_epoch=who["epoch"], base_sequence=who["sequence"], attributes=who["attributes"],
        )  # fmt: skip

    def produce(self, topic: str, partition: int, value: bytes, version: int = 9, **changes: Any) -> ErrorCode:
        records = self.batch(value, **changes)
        code = produce(self.client, topic, partition, records, changes.get("id", self.name), version)
        if code == ErrorCode.none and "sequence" not in changes:
            self.sequence += 1
        return code

    def commit_offset(
        self, topic: str, partition: int, offset: int, metadata: str | None = "", *, version: int = 3, **changes: Any
    ) -> ErrorCode:
        row = part(
            "txn_offset_commit", version, "TxnOffsetCommitRequestPartition", partition_index=partition,
            committed_offset=offset, committed_leader_epoch=-1, committed_metadata=metadata,
        )  # fmt: skip
        topic_id = changes.pop("topic_id", None)
        named = {"name": topic, "topic_id": topic_id, "partitions": (row,)}
        rows = (part("txn_offset_commit", version, "TxnOffsetCommitRequestTopic", **named),)
        values = {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch} | changes
        values = {"generation_id": -1, "member_id": "", "group_instance_id": None, "group_id": self.group} | values
        answer = ask(self.client, "txn_offset_commit", version, **values, topics=rows)
        code: ErrorCode = answer.topics[0].partitions[0].error_code
        return code


def produce(
    client: ProtocolClient, topic: str, partition: int, records: bytes, name: str | None = None, version: int = 9
) -> ErrorCode:
    client.send("produce", produce_request(topic, partition, records, name, version))
    return produced(client, version)


def produce_request(topic: str, partition: int, records: bytes, name: str | None, version: int) -> Any:
    data = part("produce", version, "PartitionProduceData", index=partition, records=records)
    topics = (part("produce", version, "TopicProduceData", name=topic, partition_data=(data,)),)
    return request_type("produce", version)(transactional_id=name, acks=-1, timeout=MINUTE, topic_data=topics)


def produced(client: ProtocolClient, version: int) -> ErrorCode:
    """The next answer, to a request that was sent."""
    answer = decode_answer("produce", version, client.receive())[1]
    code: ErrorCode = answer.responses[0].partition_responses[0].error_code
    return code


def plain(client: ProtocolClient, topic: str, partition: int, value: bytes) -> None:
    records = encode_batch([NewRecord(None, value)], timestamp_ms=NOW_MS)
    assert produce(client, topic, partition, records) == ErrorCode.none


def fetch(
    client: ProtocolClient, topic: str, partition: int, offset: int = 0, *, level: int = 1, version: int = 12
) -> Any:
    wanted = part(
        "fetch", version, "FetchPartition", partition=partition, fetch_offset=offset, partition_max_bytes=1_000_000,
        current_leader_epoch=-1, last_fetched_epoch=-1, log_start_offset=-1,
    )  # fmt: skip
    answer = ask(
        client, "fetch", version, replica_id=-1, max_wait=datetime.timedelta(0), min_bytes=0, max_bytes=1_000_000,
        isolation_level=level, session_id=0, session_epoch=-1, forgotten_topics_data=(), rack_id="",
        topics=(part("fetch", version, "FetchTopic", topic=topic, partitions=(wanted,)),),
    )  # fmt: skip
    return answer.responses[0].partitions[0]


def content(fetched: Any) -> list[tuple[int, bytes | bool | None]]:
    """Offset and value of each record; of a marker, whether it commits."""
    rows: list[tuple[int, bytes | bool | None]] = []
    data = fetched.records or b""
    for at, header in batches(data):
        if header.is_control:
            rows.append((header.base_offset, is_commit(data[at : at + header.length])))
        else:
            rows += ((record.offset, record.value) for record in decode_records(data, at))
    return rows


def client_list_offsets(
    client: ProtocolClient, topic: str, partition: int, level: int, when: int = -1
) -> tuple[Any, int]:
    row = part(
        "list_offsets", 5, "ListOffsetsPartition", partition_index=partition, current_leader_epoch=-1, timestamp=when
    )
    topics = (part("list_offsets", 5, "ListOffsetsTopic", name=topic, partitions=(row,)),)
    answer = client.ask("list_offsets", 5, replica_id=-1, isolation_level=level, topics=topics)
    found = answer.topics[0].partitions[0]
    return found.error_code, found.offset


def committed(
    client: ProtocolClient, group: str, topic: str, partition: int, *, stable: bool = False
) -> tuple[Any, ...]:
    """Offset, metadata and error."""
    row = part("offset_fetch", 7, "OffsetFetchRequestTopic", name=topic, partition_indexes=(partition,))
    answer = client.ask("offset_fetch", 7, group_id=group, topics=(row,), require_stable=stable)
    found = answer.topics[0].partitions[0]
    return found.committed_offset, found.metadata, found.error_code


def find_group(client: ProtocolClient, group: str) -> None:
    """Wait until the group's coordinator is there."""
    until(
        lambda: client.ask("find_coordinator", 2, key=group, key_type=0).error_code,
        lambda code: code == ErrorCode.none,
    )
    until(lambda: describe(client, group), lambda code: code not in NOT_YET)


def describe(client: ProtocolClient, group: str) -> ErrorCode:
    code: ErrorCode = client.ask("describe_groups", 0, groups=(group,)).groups[0].error_code
    return code


def commit(client: ProtocolClient, group: str, topic: str, partition: int, offset: int) -> None:
    row = part(
        "offset_commit", 7, "OffsetCommitRequestPartition", partition_index=partition, committed_offset=offset,
        committed_leader_epoch=-1, committed_metadata="",
    )  # fmt: skip
    topics = (part("offset_commit", 7, "OffsetCommitRequestTopic", name=topic, partitions=(row,)),)
    answer = client.ask(
        "offset_commit", 7, group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
        topics=topics,
    )  # fmt: skip
    assert answer.topics[0].partitions[0].error_code == ErrorCode.none
