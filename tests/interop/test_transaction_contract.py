"""What a broker answers to transactional requests, version by version: the same asserts on ours and on Apache Kafka."""

from __future__ import annotations

import datetime
import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.coordinator.formats import partition_for
from kit.protocol import ask, part, until
from kit.transaction_requests import (
    Tx,
    client_list_offsets,
    commit,
    committed,
    content,
    create_topic,
    fetch,
    find_group,
    plain,
)

if TYPE_CHECKING:
    from kit.protocol import ProtocolClient


ANY_TRANSACTION = {
    "state_filters": (), "producer_id_filters": (), "duration_filter": -1, "transactional_id_pattern": None
}  # fmt: skip


@pytest.fixture
def topic(client: ProtocolClient) -> str:
    return create_topic(client)


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
    for version, commits in itertools.product(range(5), (True, False)):
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


@pytest.mark.parametrize("version", [1, 2])
def test_an_operator_ends_a_transaction_in_one_partition(client: ProtocolClient, topic: str, version: int) -> None:
    """As `kafka-transactions.sh abort` does."""
    tx = Tx(client).start().start()  # of the second epoch
    tx.begin(topic, 0)
    assert tx.produce(topic, 0, b"hangs") == ErrorCode.none
    seen = content(fetch(client, topic, 0))

    def ended(name: str, epoch: int, *partitions: int) -> list[ErrorCode]:
        where = part("write_txn_markers", version, "WritableTxnMarkerTopic", name=name, partition_indexes=partitions)
        marker = part(
            "write_txn_markers", version, "WritableTxnMarker", producer_id=tx.id, producer_epoch=epoch,
            transaction_result=False, topics=(where,), coordinator_epoch=0, transaction_version=0,
        )  # fmt: skip
        answer = client.ask("write_txn_markers", version, markers=(marker,))
        rows = sorted(answer.markers[0].topics[0].partitions, key=lambda row: row.partition_index)
        return [row.error_code for row in rows]

    unknown = ErrorCode.unknown_topic_or_partition
    assert ended("nobody", tx.epoch, 0) == [unknown]
    assert ended(topic, tx.epoch - 1, 0) == [ErrorCode.invalid_producer_epoch]
    assert ended(topic, tx.epoch, 0, 99) == [ErrorCode.none, unknown]
    until(lambda: content(fetch(client, topic, 0))[len(seen) :], lambda rows: rows[-1:] and rows[-1][1] is False)
    plain(client, topic, 0, b"behind it")
    assert content(fetch(client, topic, 0))[-1][1] == b"behind it", "readers of committed records go on"


def test_transactions_are_described_and_listed(client: ProtocolClient, topic: str) -> None:
    tx = Tx(client).start()

    def listed(*states: str) -> list[str]:
        answer = client.ask("list_transactions", 0, state_filters=states, producer_id_filters=(tx.id,))
        assert answer.error_code == ErrorCode.none
        return [row.transactional_id for row in answer.transaction_states]

    assert listed("Empty") == [tx.name]
    tx.begin(topic, 1, 0)
    assert tx.described() == (ErrorCode.none, "Ongoing", tx.id, 0, [(topic, (0, 1))])
    assert (listed(), listed("Ongoing", "Empty"), listed("Empty")) == ([tx.name], [tx.name], [])
    tx.finish()
    assert tx.described() == (ErrorCode.none, "CompleteCommit", tx.id, 0, [])
    for version in range(3):
        answer = ask(client, "list_transactions", version, **ANY_TRANSACTION | {"state_filters": ("Sleeping",)})
        assert (answer.error_code, answer.unknown_state_filters) == (ErrorCode.none, ("Sleeping",))
    (nobody,) = client.ask("describe_transactions", 0, transactional_ids=("nobody",)).transaction_states
    assert nobody.error_code == ErrorCode.transactional_id_not_found


def test_transactions_are_listed_by_age_and_by_expression(client: ProtocolClient, topic: str) -> None:
    begun, idle = Tx(client).start(), Tx(client).start()
    begun.begin(topic, 0)
    both = begun.name, idle.name

    def listed(version: int, **values: Any) -> tuple[ErrorCode, set[str]]:
        """Of these two."""
        answer = ask(client, "list_transactions", version, **ANY_TRANSACTION | values)
        return answer.error_code, {row.transactional_id for row in answer.transaction_states} & {*both}

    for version in (1, 2):
        assert listed(version, duration_filter=-5) == (ErrorCode.none, {*both})
        until(partial(listed, version, duration_filter=1), lambda found: found[1] == {*both})
        assert listed(version, duration_filter=900_000) == (ErrorCode.none, {idle.name}), "which never began"
    for pattern, names in (
        ("", {*both}), (begun.name, {begun.name}), (begun.name[:-1], set()), ("|".join(both), {*both}),
        (f"{idle.name[:-1]}[{idle.name[-1]}]", {idle.name}),
    ):  # fmt: skip
        assert listed(2, transactional_id_pattern=pattern) == (ErrorCode.none, names), pattern
    assert listed(2, transactional_id_pattern="(") == (ErrorCode.invalid_regular_expression, set())
    begun.finish()
