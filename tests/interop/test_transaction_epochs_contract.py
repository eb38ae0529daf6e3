"""Transactions V2 (KIP-890) and the feature they come with: the same asserts on ours and on Apache Kafka."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.coordinator.transactions.transactional_ids import LAST_USED_EPOCH
from keylane.wire.versions import request_type
from kit.either_broker import either_broker
from kit.protocol import ProtocolClient, ask, decode_answer, part, until
from kit.transaction_requests import (
    NOT_YET,
    Tx,
    committed,
    content,
    create_topic,
    fetch,
    find_group,
    plain,
    produce_request,
    produced,
)

if TYPE_CHECKING:
    from pathlib import Path

NONE = ErrorCode.none
NOBODY = (-1, -1)
"""Producer id and epoch beside an error."""
NEW = 12
"""The version of Produce that makes partitions part of the transaction."""
SECOND = datetime.timedelta(seconds=1)


@pytest.fixture
def topic(client: ProtocolClient) -> str:
    return create_topic(client)


def written(tx: Tx, topic: str, partition: int, value: bytes, **changes: Any) -> ErrorCode:
    """The answer to records once no marker is being written."""
    code: ErrorCode = until(
        lambda: tx.produce(topic, partition, value, NEW, **changes), lambda code: code not in NOT_YET
    )
    return code


def producers(client: ProtocolClient, topic: str, partition: int) -> list[tuple[int, int, int, int]]:
    """Id, epoch, last sequence, and the first offset of the open transaction of each; -1 for none."""
    wanted = part("describe_producers", 0, "TopicRequest", name=topic, partition_indexes=(partition,))
    answer = client.ask("describe_producers", 0, topics=(wanted,))
    return [
        (one.producer_id, one.producer_epoch, one.last_sequence, one.current_txn_start_offset)
        for one in answer.topics[0].partitions[0].active_producers
    ]


def test_each_transaction_has_an_epoch_of_its_own(client: ProtocolClient, topic: str) -> None:
    tx = Tx(client).start()
    first = tx.id, tx.epoch
    assert written(tx, topic, 0, b"a") == NONE
    assert tx.produce(topic, 0, b"b", NEW) == NONE
    assert written(tx, topic, 1, b"c", sequence=0) == NONE
    assert tx.described() == (NONE, "Ongoing", *first, [(topic, (0, 1))])
    assert producers(client, topic, 0) == [(*first, 1, 0)]
    assert tx.end_to_next() == (NONE, tx.id, tx.epoch + 1)
    assert tx.ended_to_next() == (NONE, tx.id, tx.epoch + 1), "the answer was lost"
    assert tx.described() == (NONE, "CompleteCommit", tx.id, tx.epoch + 1, [])
    assert producers(client, topic, 0) == [(tx.id, tx.epoch + 1, -1, -1)]
    assert tx.produce(topic, 0, b"late", NEW) == ErrorCode.invalid_producer_epoch
    assert tx.produce(topic, 1, b"late", NEW, sequence=1) == ErrorCode.invalid_producer_epoch
    tx.epoch, tx.sequence = tx.epoch + 1, 0
    assert written(tx, topic, 0, b"d") == NONE
    tx.go_on(committed=False)
    assert (tx.id, tx.epoch) == (first[0], first[1] + 2)
    found = content(fetch(client, topic, 0, level=0))
    assert found == [(0, b"a"), (1, b"b"), (2, True), (3, b"d"), (4, False)]
    assert content(fetch(client, topic, 1, level=0)) == [(0, b"c"), (1, True)]


def test_records_that_are_sent_at_once_are_appended_in_order(client: ProtocolClient, topic: str) -> None:
    """The first adds the partition; those behind it do not overtake it."""
    tx = Tx(client).start()
    for value in (b"a", b"b"):
        for sequence in range(5):
            client.send("produce", produce_request(topic, 0, tx.batch(value, sequence=sequence), tx.name, NEW))
        assert [produced(client, NEW) for _ in range(5)] == [NONE] * 5
        tx.go_on()
    assert [value for _, value in content(fetch(client, topic, 0))] == [*[b"a"] * 5, True, *[b"b"] * 5, True]


@pytest.mark.parametrize("commits", [True, False])
def test_ends_of_no_transaction(client: ProtocolClient, topic: str, commits: bool) -> None:
    tx = Tx(client).start()
    assert tx.end_to_next(committed=True) == (ErrorCode.invalid_txn_state, *NOBODY)
    strangers: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"producer_epoch": tx.epoch + 1}, ErrorCode.producer_fenced),
        ({"producer_epoch": tx.epoch - 1}, ErrorCode.producer_fenced),
        ({"producer_id": tx.id + 1_000_000}, ErrorCode.invalid_producer_id_mapping),
        ({"transactional_id": "nobody"}, ErrorCode.invalid_producer_id_mapping),
    ]
    for stranger, told in strangers:
        assert tx.end_to_next(committed=commits, **stranger) == (told, *NOBODY)
    assert tx.end_to_next(committed=commits, transactional_id="") == (ErrorCode.invalid_request, *NOBODY)
    assert written(tx, topic, 0, b"a") == NONE
    for epoch in (tx.epoch - 1, tx.epoch + 1):
        assert tx.end_to_next(committed=commits, producer_epoch=epoch) == (ErrorCode.producer_fenced, *NOBODY)
    before = tx.epoch
    tx.go_on(committed=commits)
    repeated = {"producer_epoch": before}
    assert tx.end_to_next(committed=commits, **repeated) == (NONE, tx.id, tx.epoch)
    assert tx.end_to_next(committed=not commits, **repeated) == (ErrorCode.invalid_txn_state, *NOBODY)
    assert tx.end_to_next(committed=True) == (ErrorCode.invalid_txn_state, *NOBODY)
    assert tx.end_to_next(producer_epoch=before - 1) == (ErrorCode.producer_fenced, *NOBODY)
    assert tx.end_to_next(producer_epoch=tx.epoch + 1) == (ErrorCode.producer_fenced, *NOBODY)


def test_an_abort_of_nothing_raises_the_epoch(client: ProtocolClient) -> None:
    tx = Tx(client).start()
    for epoch in range(1, 4):
        tx.go_on(committed=False)
        assert tx.described() == (NONE, "CompleteAbort", tx.id, epoch, [])
    assert tx.epoch == 3


def test_what_producers_of_each_version_are_told(client: ProtocolClient, topic: str) -> None:
    tx = Tx(client).start()
    for version, wanted in ((9, "invalid_txn_state"), (10, "invalid_txn_state"), (11, "transaction_abortable")):
        assert tx.produce(topic, 0, b"not added", version) == ErrorCode[wanted]
    for version in (11, NEW):
        assert tx.produce(topic, 0, b"x", version, pid=tx.id + 1_000_000) == ErrorCode.invalid_producer_id_mapping
        for epoch in (tx.epoch - 1, tx.epoch + 1):
            told = ErrorCode.invalid_record if epoch < 0 else ErrorCode.invalid_producer_epoch
            if epoch >= 0:
                assert tx.produce(topic, 0, b"x", version, epoch=epoch) == told
    assert tx.produce(topic, 9, b"nowhere", NEW) == ErrorCode.unknown_topic_or_partition
    assert tx.state() == "Empty", "nothing has begun"
    assert written(tx, topic, 0, b"a") == NONE
    assert tx.produce(topic, 1, b"not added", 11, sequence=0) == ErrorCode.transaction_abortable
    assert tx.produce(topic, 0, b"plain", NEW, attributes=0) == ErrorCode.invalid_txn_state
    assert tx.produce(topic, 0, b"gap", NEW, sequence=7) == ErrorCode.out_of_order_sequence_number
    assert tx.produce(topic, 1, b"gap", NEW, sequence=7) == ErrorCode.out_of_order_sequence_number
    assert tx.described()[4] == [(topic, (0, 1))], "a partition is added before its records are looked at"
    tx.go_on()
    assert tx.produce(topic, 0, b"late", 11, epoch=tx.epoch - 1) == ErrorCode.invalid_producer_epoch


def test_a_classic_end_keeps_the_epoch(client: ProtocolClient, topic: str) -> None:
    tx = Tx(client).start()
    assert written(tx, topic, 0, b"a") == NONE
    tx.finish()
    assert tx.described() == (NONE, "CompleteCommit", tx.id, tx.epoch, [])
    tx.begin(topic, 0)
    assert tx.produce(topic, 0, b"b") == NONE
    tx.go_on()
    assert tx.epoch == 1
    assert [value for _, value in content(fetch(client, topic, 0))] == [b"a", True, b"b", True]


@pytest.mark.parametrize("version", [4, 5])
def test_offsets_in_transactions(client: ProtocolClient, topic: str, version: int) -> None:
    tx = Tx(client).start()
    find_group(client, tx.group)
    if version == 4:
        assert tx.commit_offset(topic, 0, 5, version=4) == ErrorCode.transaction_abortable, "the group was not added"
        assert tx.state() == "Empty"
        assert tx.add_offsets(version=4) == NONE
    strangers: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"producer_id": tx.id + 1_000_000}, ErrorCode.invalid_producer_id_mapping),
        ({"producer_epoch": tx.epoch + 1}, ErrorCode.invalid_producer_epoch),
    ]
    for changes, told in strangers:
        assert tx.commit_offset(topic, 0, 5, version=version, **changes) == told
    assert tx.commit_offset(topic, 0, 5, "map", version=version) == NONE
    ((name, partitions),) = tx.described()[4]
    assert (name, len(partitions)) == ("__consumer_offsets", 1)
    assert committed(client, tx.group, topic, 0, stable=True) == (-1, "", ErrorCode.unstable_offset_commit)
    tx.go_on()
    wanted = (5, "map", NONE)
    until(lambda: committed(client, tx.group, topic, 0, stable=True), lambda found: found == wanted)
    late: dict[str, Any] = {"producer_epoch": tx.epoch - 1}
    assert tx.commit_offset(topic, 0, 6, version=version, **late) == ErrorCode.invalid_producer_epoch
    if version == 5:
        code = until(lambda: tx.commit_offset(topic, 0, 7, version=5), lambda code: code not in NOT_YET)
        assert code == NONE
        tx.go_on(committed=False)
        until(lambda: committed(client, tx.group, topic, 0, stable=True), lambda found: found == wanted)


@pytest.mark.parametrize("version", [4, 5])
def test_partitions_of_many_transactions(client: ProtocolClient, topic: str, version: int) -> None:
    one, other = Tx(client).start(), Tx(client).start()

    def add(*wanted: tuple[Tx, int, bool], **changes: int) -> Any:
        """Error codes by partition of each."""
        parts = tuple(
            part(
                "add_partitions_to_txn", version, "AddPartitionsToTxnTransaction", transactional_id=tx.name,
                producer_id=tx.id, verify_only=is_only_asked, **({"producer_epoch": tx.epoch} | changes),
                topics=(
                    part("add_partitions_to_txn", version, "AddPartitionsToTxnTopic", name=topic, partitions=(index,)),
                ),
            )
            for tx, index, is_only_asked in wanted
        )  # fmt: skip
        answer = client.ask("add_partitions_to_txn", version, transactions=parts)
        assert answer.error_code == NONE
        found = {row.transactional_id: row.topic_results for row in answer.results_by_transaction}
        return [found[tx.name][0].results_by_partition[0].partition_error_code for tx, *_ in wanted]

    assert add((one, 0, True)) == [ErrorCode.transaction_abortable]
    assert one.state() == "Empty", "it was only asked after"
    assert add((one, 0, False), (other, 1, False)) == [NONE, NONE]
    assert add((one, 0, True), (other, 0, True)) == [NONE, ErrorCode.transaction_abortable]
    assert add((one, 9, False)) == [ErrorCode.unknown_topic_or_partition]
    for is_only_asked in (True, False):
        assert add((one, 0, is_only_asked), producer_epoch=7) == [ErrorCode.producer_fenced]
    assert one.described() == (NONE, "Ongoing", one.id, 0, [(topic, (0,))])
    assert other.described() == (NONE, "Ongoing", other.id, 0, [(topic, (1,))])
    for tx in (one, other):
        tx.go_on(committed=False)


def test_a_second_producer_fences_the_first(client: ProtocolClient, topic: str) -> None:
    first = Tx(client).start()
    assert written(first, topic, 0, b"zombie") == NONE
    assert first.init(version=5).error_code == ErrorCode.concurrent_transactions, "its transaction is aborted first"
    second = Tx(client, first.name).start()
    assert (second.id, second.epoch) == (first.id, first.epoch + 2)
    assert first.produce(topic, 0, b"zombie", NEW) == ErrorCode.invalid_producer_epoch
    for commits in (True, False):
        assert first.end_to_next(committed=commits) == (ErrorCode.producer_fenced, *NOBODY)
    assert written(second, topic, 0, b"successor") == NONE
    second.go_on()
    assert [value for _, value in content(fetch(client, topic, 0))] == [b"zombie", False, b"successor", True]


def test_a_producer_whose_transaction_took_too_long_aborts_and_goes_on(tmp_path: Path, kind: str) -> None:
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    with either_broker(kind, tmp_path, often) as broker, ProtocolClient(broker.bootstrap) as client:
        topic = create_topic(client)
        tx = Tx(client).start()
        tx.epoch = tx.init(timeout=SECOND).producer_epoch
        assert written(tx, topic, 0, b"slow") == NONE
        until(lambda: tx.described()[1], lambda state: state == "CompleteAbort")
        assert tx.described()[2:4] == (tx.id, tx.epoch + 1)
        assert tx.produce(topic, 0, b"late", NEW) == ErrorCode.invalid_producer_epoch
        assert tx.end_to_next(committed=True) == (ErrorCode.invalid_txn_state, *NOBODY)
        assert tx.end_to_next(committed=False) == (NONE, tx.id, tx.epoch + 1)


@pytest.fixture(params=["keylane", pytest.param("apache", marks=pytest.mark.soak)])
def kind(request: pytest.FixtureRequest) -> str:
    which: str = request.param
    return which


def test_states_and_answers_after_restarts(tmp_path: Path, kind: str) -> None:
    with either_broker(kind, tmp_path) as broker:
        with ProtocolClient(broker.bootstrap) as client:
            topic = create_topic(client)
            ended, opened = Tx(client).start(), Tx(client).start()
            assert written(ended, topic, 0, b"a") == NONE
            before = ended.epoch
            ended.go_on()
            assert written(opened, topic, 1, b"b") == NONE
            known = [ended.described(), opened.described()]
        broker.kill()
        broker.start()
        with ProtocolClient(broker.bootstrap) as client:
            for tx, wanted in zip((ended, opened), known, strict=True):
                tx.client = client
                until(tx.described, lambda found: found[0] not in NOT_YET)
                assert tx.described() == wanted
            assert ended.end_to_next(producer_epoch=before) == (NONE, ended.id, ended.epoch), "the answer was lost"
            assert ended.end_to_next(producer_epoch=before, committed=False)[0] == ErrorCode.invalid_txn_state
            assert written(opened, topic, 1, b"c") == NONE
            opened.go_on()
            assert [value for _, value in content(fetch(client, topic, 1))] == [b"b", b"c", True]


def use_epochs_up(tx: Tx) -> None:
    """All that an id has, a few requests at once."""
    request = request_type("init_producer_id", 4)(
        transactional_id=tx.name, transaction_timeout=60 * SECOND, producer_id=-1, producer_epoch=-1
    )
    while tx.epoch < LAST_USED_EPOCH:
        count = min(10, LAST_USED_EPOCH - tx.epoch)
        for _ in range(count):
            tx.client.send("init_producer_id", request)
        answers = [decode_answer("init_producer_id", 4, tx.client.receive())[1] for _ in range(count)]
        tx.epoch = max(tx.epoch, *(one.producer_epoch for one in answers))


@pytest.mark.soak
def test_epochs_run_out_and_another_producer_id_follows(client: ProtocolClient, topic: str) -> None:
    tx = Tx(client).start()
    use_epochs_up(tx)
    first = tx.id
    assert written(tx, topic, 0, b"last") == NONE
    error, following, epoch = tx.end_to_next()
    assert (error, epoch) == (NONE, 0)
    assert following != first
    assert tx.ended_to_next() == (NONE, following, 0), "the answer was lost"
    assert tx.described() == (NONE, "CompleteCommit", following, 0, [])
    assert tx.produce(topic, 0, b"late", NEW) == ErrorCode.invalid_producer_epoch, "it may abort, and go on"
    assert tx.produce(topic, 1, b"late", NEW, sequence=0) == ErrorCode.invalid_producer_id_mapping
    tx.id, tx.epoch, tx.sequence = following, 0, 0
    assert written(tx, topic, 0, b"next") == NONE
    tx.go_on(committed=False)
    assert (tx.id, tx.epoch) == (following, 1)
    plain(client, topic, 0, b"end")
    assert [value for _, value in content(fetch(client, topic, 0))] == [b"last", True, b"next", False, b"end"]


# --- the feature ---


def features(client: ProtocolClient, version: int = 4) -> tuple[tuple[int, int] | None, int, int]:
    """Of transaction.version: the levels that there are, the one it is at (0: none), and how often any was changed."""
    answer = client.ask("api_versions", version, client_software_name="test", client_software_version="1")
    there = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
    levels = {one.name: one.max_version_level for one in answer.finalized_features}
    return there.get("transaction.version"), levels.get("transaction.version", 0), answer.finalized_features_epoch


def change(
    client: ProtocolClient, level: int, kind: int = 1, *, version: int = 2, checks_only: bool = False
) -> ErrorCode:
    """1: an upgrade; 2 and 3: downgrades."""
    how = {"allow_downgrade": kind != 1} if version == 0 else {"upgrade_type": kind}
    one = part(
        "update_features", version, "FeatureUpdateKey", feature="transaction.version", max_version_level=level, **how
    )
    answer = ask(
        client, "update_features", version, timeout=60 * SECOND, feature_updates=(one,), validate_only=checks_only
    )
    code: ErrorCode = answer.error_code
    if code != NONE:
        assert answer.error_message
    return code


def at(client: ProtocolClient, level: int) -> None:
    """Return when clients are told of this level."""
    until(lambda: features(client)[1], lambda found: found == level)


def test_the_level_of_transactions_is_changed_and_kept(tmp_path: Path, kind: str) -> None:
    invalid = ErrorCode.invalid_update_version
    with either_broker(kind, tmp_path) as broker:
        with ProtocolClient(broker.bootstrap) as client:
            there, level, epoch = features(client)
            assert (there, level) == ((0, 2), 2)
            assert features(client, 3)[:2] == (None, 2), "clients of version 3 cannot read a level 0"
            assert [change(client, level) for level in (3, -1)] == [invalid, invalid]
            assert change(client, 1) == invalid, "a downgrade has to be asked for"
            assert change(client, 1, 9) == invalid
            assert change(client, 1, version=0) == invalid
            assert change(client, 1, 2, checks_only=True) == NONE
            assert features(client)[1] == 2
            assert change(client, 1, 2) == NONE
            at(client, 1)
            assert features(client)[2] > epoch
            assert change(client, 2, 2) == invalid, "an upgrade has to be asked for"
            topic = create_topic(client)
            tx = Tx(client).start()
            tx.begin(topic, 0)
            assert tx.produce(topic, 0, b"a") == NONE
            assert tx.init().error_code == ErrorCode.concurrent_transactions
            until(lambda: tx.described()[1], lambda state: state == "CompleteAbort")
            assert tx.described()[3] == tx.epoch + 1
            known = tx.init(known=(tx.id, tx.epoch)).error_code
            assert known == ErrorCode.producer_fenced, "the classic fence"
        broker.kill()
        broker.start()
        with ProtocolClient(broker.bootstrap) as client:
            at(client, 1)
            assert change(client, 0, 3, version=1) == NONE
            at(client, 0)
            assert change(client, 2, version=0) == NONE
            at(client, 2)
