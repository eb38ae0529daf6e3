"""What a broker answers to transactional requests, version by version: the same asserts on ours and on Apache Kafka."""

from __future__ import annotations

import datetime
import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.coordinator.formats import partition_for
from keylane.wire.batches import NewRecord, batches, decode_records, encode_batch
from keylane.wire.control import is_commit
from kit.protocol import ask, part, until

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


@pytest.fixture
def topic(client: ProtocolClient) -> str:
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

    def produce(self, topic: str, partition: int, value: bytes, **changes: Any) -> ErrorCode:
        who: dict[str, Any] = {
            "id": self.name,
            "pid": self.id,
            "epoch": self.epoch,
            "attributes": 0x10,
            "sequence": self.sequence,
        } | changes
        records = encode_batch(
            [NewRecord(None, value)], timestamp_ms=NOW_MS, producer_id=who["pid"],
            producer_epoch=who["epoch"], base_sequence=who["sequence"], attributes=who["attributes"],
        )  # fmt: skip
        code = produce(self.client, topic, partition, records, who["id"])
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
        rows = (part("txn_offset_commit", version, "TxnOffsetCommitRequestTopic", name=topic, partitions=(row,)),)
        values = {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch} | changes
        values = {"generation_id": -1, "member_id": "", "group_instance_id": None, "group_id": self.group} | values
        answer = ask(self.client, "txn_offset_commit", version, **values, topics=rows)
        code: ErrorCode = answer.topics[0].partitions[0].error_code
        return code


def produce(client: ProtocolClient, topic: str, partition: int, records: bytes, name: str | None = None) -> ErrorCode:
    data = part("produce", 9, "PartitionProduceData", index=partition, records=records)
    topics = (part("produce", 9, "TopicProduceData", name=topic, partition_data=(data,)),)
    answer = client.ask("produce", 9, transactional_id=name, acks=-1, timeout=MINUTE, topic_data=topics)
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


def test_epochs(client: ProtocolClient) -> None:
    tx = Tx(client).start()
    assert tx.epoch == 0
    assert (tx.init().producer_id, tx.init().producer_epoch) == (tx.id, 2)
    third = tx.init(known=(tx.id, 2))
    assert (third.error_code, third.producer_id, third.producer_epoch) == (ErrorCode.none, tx.id, 3)
    again = tx.init(known=(tx.id, 2))
    assert (again.error_code, again.producer_epoch) == (ErrorCode.none, 3), "the answer was lost"
    for known in ((tx.id, 1), (tx.id, 4), (tx.id + 1_000_000, 3)):
        assert tx.init(known=known).error_code == ErrorCode.producer_fenced
        assert tx.init(version=3, known=known).error_code == ErrorCode.invalid_producer_epoch
    assert tx.init(version=0).producer_epoch == 4


def test_what_no_transactional_id_may_be(client: ProtocolClient) -> None:
    assert Tx(client).init(timeout=datetime.timedelta(0)).error_code == ErrorCode.invalid_transaction_timeout
    assert Tx(client).init(timeout=datetime.timedelta(minutes=16)).error_code == ErrorCode.invalid_transaction_timeout
    tx = Tx(client)
    tx.name = ""
    assert tx.init().error_code == ErrorCode.invalid_request
    for known in ((5, -1), (-1, 5)):
        assert Tx(client).init(known=known).error_code == ErrorCode.invalid_request


def test_who_may_add_partitions(client: ProtocolClient, topic: str) -> None:
    tx = Tx(client).start()
    assert tx.add(topic, 0, id="nobody") == ErrorCode.invalid_producer_id_mapping
    assert tx.add(topic, 0, pid=tx.id + 1_000_000) == ErrorCode.invalid_producer_id_mapping
    assert tx.add(topic, 0, epoch=tx.epoch + 1) == ErrorCode.producer_fenced
    assert tx.add(topic, 0, epoch=tx.epoch + 1, version=1) == ErrorCode.invalid_producer_epoch
    unknown = {0: ErrorCode.operation_not_attempted, 7: ErrorCode.unknown_topic_or_partition}
    assert tx.add(topic, 0, 7) == unknown
    assert tx.end() == ErrorCode.invalid_txn_state, "nothing was added"
    for version in range(4):
        assert tx.add(topic, 0, 1, version=version) == {0: ErrorCode.none, 1: ErrorCode.none}
        assert tx.add_offsets(version=version) == ErrorCode.none
    assert tx.add_offsets(producer_epoch=tx.epoch + 1) == ErrorCode.producer_fenced
    assert tx.add_offsets(producer_id=tx.id + 1_000_000) == ErrorCode.invalid_producer_id_mapping
    tx.finish()


def test_ends(client: ProtocolClient, topic: str) -> None:
    tx = Tx(client).start()
    assert tx.end() == ErrorCode.invalid_txn_state
    assert tx.end(transactional_id="nobody") == ErrorCode.invalid_producer_id_mapping
    for version, commits in itertools.product(range(4), (True, False)):
        tx.begin(topic, 0)
        assert tx.end(producer_epoch=tx.epoch + 1) == ErrorCode.producer_fenced
        assert tx.end(producer_epoch=tx.epoch + 1, version=1) == ErrorCode.invalid_producer_epoch
        assert tx.end(committed=commits, version=version) == ErrorCode.none
        assert tx.ended(committed=commits) == ErrorCode.none, "the answer was lost"
        assert tx.end(committed=not commits) == ErrorCode.invalid_txn_state


def test_what_a_partition_takes(client: ProtocolClient, topic: str) -> None:
    tx = Tx(client).start()
    assert tx.produce(topic, 0, b"early") == ErrorCode.invalid_txn_state
    tx.begin(topic, 0)
    assert tx.produce(topic, 0, b"a") == ErrorCode.none
    assert tx.produce(topic, 0, b"a", sequence=0) == ErrorCode.none, "repeated: taken once"
    assert tx.produce(topic, 0, b"gap", sequence=5) == ErrorCode.out_of_order_sequence_number
    assert tx.produce(topic, 0, b"plain", attributes=0) == ErrorCode.invalid_txn_state
    assert tx.produce(topic, 1, b"not added", sequence=0) == ErrorCode.invalid_txn_state
    assert tx.produce(topic, 1, b"nobody", sequence=0, id=None) == ErrorCode.transactional_id_authorization_failed
    assert tx.produce(topic, 0, b"control", attributes=0x30) == ErrorCode.invalid_record
    tx.finish()
    assert tx.produce(topic, 0, b"late") == ErrorCode.invalid_txn_state
    tx.begin(topic, 0)
    assert tx.produce(topic, 0, b"b") == ErrorCode.none
    tx.finish(committed=False)
    assert content(fetch(client, topic, 0, level=0)) == [(0, b"a"), (1, True), (2, b"b"), (3, False)]
    assert tx.produce(topic, 0, b"b", sequence=1) == ErrorCode.invalid_txn_state, "repeated, and too late"


@pytest.mark.parametrize("version", [4, 5, 7, 11, 12])  # where the format of the answer changes
def test_what_readers_see(client: ProtocolClient, topic: str, version: int) -> None:
    one, two = Tx(client).start(), Tx(client).start()
    plain(client, topic, 0, b"0")
    one.begin(topic, 0)
    two.begin(topic, 0)
    assert one.produce(topic, 0, b"one") == ErrorCode.none
    assert two.produce(topic, 0, b"two") == ErrorCode.none
    plain(client, topic, 0, b"3")
    two.finish(committed=False)  # offset 4

    def seen(level: int = 1, offset: int = 0) -> tuple[Any, ...]:
        found = fetch(client, topic, 0, offset, level=level, version=version)
        aborted = found.aborted_transactions
        offsets = [offset for offset, _ in content(found)]
        names = None
        if aborted is not None:  # more of them do no harm, and Apache Kafka gives some
            names = [
                (row.producer_id, row.first_offset) for row in aborted if row.first_offset <= max(offsets, default=0)
            ]
        return offsets, found.last_stable_offset, found.high_watermark, names

    until(lambda: fetch(client, topic, 0, level=0).high_watermark, lambda end: end == 5)
    assert seen() == ([0], 1, 5, [])
    assert seen(level=0) == ([0, 1, 2, 3, 4], 1, 5, None)
    assert seen(offset=3) == ([], 1, 5, [])
    assert client_list_offsets(client, topic, 0, 1) == (ErrorCode.none, 1)
    assert client_list_offsets(client, topic, 0, 0) == (ErrorCode.none, 5)
    assert client_list_offsets(client, topic, 0, 1, when=-2) == (ErrorCode.none, 0)
    one.finish()  # offset 5
    until(lambda: fetch(client, topic, 0, level=0).last_stable_offset, lambda end: end == 6)
    assert seen() == ([0, 1, 2, 3, 4, 5], 6, 6, [(two.id, 2)])
    assert seen(offset=5) == ([5], 6, 6, [])
    assert seen(offset=4) == ([4, 5], 6, 6, [(two.id, 2)])
    assert client_list_offsets(client, topic, 0, 1) == (ErrorCode.none, 6)


def test_a_second_producer_fences_the_first(client: ProtocolClient, topic: str) -> None:
    first = Tx(client).start()
    first.begin(topic, 0)
    assert first.produce(topic, 0, b"zombie") == ErrorCode.none
    assert first.init().error_code == ErrorCode.concurrent_transactions, "its transaction is aborted first"
    second = Tx(client, first.name).start()
    assert (second.id, second.epoch) == (first.id, first.epoch + 2)
    assert first.add(topic, 0) == ErrorCode.producer_fenced
    assert first.end() == ErrorCode.producer_fenced
    assert first.produce(topic, 0, b"zombie") == ErrorCode.invalid_producer_epoch
    find_group(client, first.group)
    assert first.commit_offset(topic, 0, 1) == ErrorCode.invalid_producer_epoch
    second.begin(topic, 0)
    assert second.produce(topic, 0, b"successor") == ErrorCode.none
    second.finish()
    found = fetch(client, topic, 0)
    assert content(found) == [(0, b"zombie"), (1, False), (2, b"successor"), (3, True)]
    assert [(row.producer_id, row.first_offset) for row in found.aborted_transactions] == [(first.id, 0)]


@pytest.mark.parametrize("version", range(4))
def test_offsets_in_transactions(client: ProtocolClient, topic: str, version: int) -> None:
    tx = Tx(client).start()
    find_group(client, tx.group)
    assert tx.commit_offset(topic, 0, 5, version=version) == ErrorCode.invalid_txn_state, "the group was not added"
    assert tx.add_offsets() == ErrorCode.none
    assert tx.commit_offset(topic, 0, 5, "map", version=version) == ErrorCode.none
    assert tx.commit_offset(topic, 1, 6, None, version=version) == ErrorCode.none
    assert tx.commit_offset(topic, 0, 5, "x" * 4_097, version=version) == ErrorCode.offset_metadata_too_large
    assert tx.commit_offset(topic, 0, 9, producer_id=tx.id + 1_000_000) == ErrorCode.invalid_producer_id_mapping
    assert committed(client, tx.group, topic, 0) == (-1, "", ErrorCode.none)
    assert committed(client, tx.group, topic, 0, stable=True) == (-1, "", ErrorCode.unstable_offset_commit)
    tx.finish()
    wanted = (5, "map", ErrorCode.none)
    until(lambda: committed(client, tx.group, topic, 0, stable=True), lambda found: found == wanted)
    assert committed(client, tx.group, topic, 0) == wanted
    assert committed(client, tx.group, topic, 1) == (6, "", ErrorCode.none)
    until(tx.add_offsets, lambda code: code == ErrorCode.none)
    assert tx.commit_offset(topic, 0, 50, version=version) == ErrorCode.none
    tx.finish(committed=False)
    until(lambda: committed(client, tx.group, topic, 0, stable=True), lambda found: found == wanted)


def test_the_later_record_wins_against_plain_commits(client: ProtocolClient, topic: str) -> None:
    tx = Tx(client).start()
    find_group(client, tx.group)
    commit(client, tx.group, topic, 0, 1)
    assert tx.add_offsets() == ErrorCode.none
    for partition in (0, 1):
        assert tx.commit_offset(topic, partition, 5) == ErrorCode.none
    commit(client, tx.group, topic, 1, 9)
    assert committed(client, tx.group, topic, 1, stable=True)[2] == ErrorCode.unstable_offset_commit
    tx.finish()
    until(lambda: committed(client, tx.group, topic, 0, stable=True)[0], lambda offset: offset == 5)
    assert committed(client, tx.group, topic, 1)[0] == 9


def are_apart(one: str, other: str, partitions: int) -> bool:
    """Whether two groups are in different partitions of `__consumer_offsets`."""
    return partition_for(one, partitions) != partition_for(other, partitions)


def test_members_of_another_generation_are_refused(client: ProtocolClient, topic: str) -> None:
    tx = Tx(client).start()
    find_group(client, tx.group)
    assert tx.add_offsets() == ErrorCode.none
    assert tx.commit_offset(topic, 0, 5, generation_id=3, member_id="m") == ErrorCode.illegal_generation
    assert tx.commit_offset(topic, 0, 5, generation_id=-1, member_id="") == ErrorCode.none
    assert tx.commit_offset(topic, 0, 5, generation_id=3, member_id="m") == ErrorCode.unknown_member_id
    other = next(name for name in map(str, range(99)) if all(are_apart(name, tx.group, count) for count in (4, 50)))
    assert tx.commit_offset(topic, 0, 5, group_id=other) == ErrorCode.invalid_txn_state
    tx.finish()


def test_transactions_are_described_and_listed(client: ProtocolClient, topic: str) -> None:
    tx = Tx(client).start()

    def described() -> tuple[Any, ...]:
        (found,) = client.ask("describe_transactions", 0, transactional_ids=(tx.name,)).transaction_states
        rows = [(row.topic, tuple(sorted(row.partitions))) for row in found.topics]
        return found.error_code, found.transaction_state, found.producer_id, found.producer_epoch, rows

    def listed(*states: str) -> list[str]:
        answer = client.ask("list_transactions", 0, state_filters=states, producer_id_filters=(tx.id,))
        assert answer.error_code == ErrorCode.none
        return [row.transactional_id for row in answer.transaction_states]

    assert listed("Empty") == [tx.name]
    tx.begin(topic, 1, 0)
    assert described() == (ErrorCode.none, "Ongoing", tx.id, 0, [(topic, (0, 1))])
    assert (listed(), listed("Ongoing", "Empty"), listed("Empty")) == ([tx.name], [tx.name], [])
    tx.finish()
    assert described() == (ErrorCode.none, "CompleteCommit", tx.id, 0, [])
    answer = client.ask("list_transactions", 0, state_filters=("Sleeping",), producer_id_filters=())
    assert answer.unknown_state_filters == ("Sleeping",)
    (nobody,) = client.ask("describe_transactions", 0, transactional_ids=("nobody",)).transaction_states
    assert nobody.error_code == ErrorCode.transactional_id_not_found


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
