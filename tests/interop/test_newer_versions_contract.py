"""What Apache Kafka 4.4 added: ApiVersions 5 (KIP-1242), TxnOffsetCommit 6 (KIP-1319) and DeleteGroups 3, on both
brokers; and all APIs that it offers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from interop.test_topic_id_contract import NOBODY, committed, create, delete
from kit.kafka_apis import NOT_ITS_OLDEST, NOT_OFFERED, OF_KAFKA, OWN
from kit.protocol import ProtocolClient, part, until
from kit.transaction_requests import NOT_YET, Tx, find_group
from kit.transaction_requests import commit as commit_plainly

if TYPE_CHECKING:
    import uuid

NONE = ErrorCode.none


def offered(client: ProtocolClient) -> dict[int, tuple[int, int]]:
    """By key: oldest and newest version."""
    told = client.ask("api_versions", 4, client_software_name="test", client_software_version="1").api_keys
    return {one.api_key: (one.min_version, one.max_version) for one in told}


@pytest.fixture(autouse=True)
def is_offered(client: ProtocolClient) -> None:
    """Apache Kafka 4.3 has none of these."""
    if offered(client)[18][1] < 5:
        pytest.skip("this broker is older than Apache Kafka 4.4")


def test_the_list_of_apis_is_that_of_apache_kafka(client: ProtocolClient) -> None:
    found = offered(client)
    if OWN in found:
        del found[OWN]
        found |= {key: OF_KAFKA[key] for key in (*NOT_OFFERED, *NOT_ITS_OLDEST)}
    assert found == OF_KAFKA


def test_an_api_that_is_not_offered_closes_the_connection(client: ProtocolClient, bootstrap: str) -> None:
    unknown = next(key for key in range(60, 100) if key not in offered(client))
    with ProtocolClient(bootstrap) as other:
        other.send_bytes(struct.pack(">ihhih", 10, unknown, 0, 1, -1))
        assert other.is_closed_by_peer()


def test_groups_are_deleted_with_a_message(client: ProtocolClient) -> None:
    topic = create(client)
    find_group(client, "deleted")
    commit_plainly(client, "deleted", topic.name, 0, 1)
    answer = client.ask("delete_groups", 3, groups_names=("deleted", "nobody"))
    assert {one.group_id: (one.error_code, one.error_message) for one in answer.results} == {
        "deleted": (NONE, None),
        "nobody": (ErrorCode.group_id_not_found, None),
    }


def version(client: ProtocolClient, cluster: str | None, node: int) -> tuple[ErrorCode, bool]:
    """The answer's error, and whether it says what is offered."""
    who = {"client_software_name": "test", "client_software_version": "1", "cluster_id": cluster, "node_id": node}
    answer = client.ask("api_versions", 5, **who)
    return answer.error_code, bool(answer.api_keys)


def test_a_client_that_was_led_to_another_node_is_told(client: ProtocolClient) -> None:
    here = client.ask("describe_cluster", 0, include_cluster_authorized_operations=False)
    cluster, node = here.cluster_id, here.brokers[0].broker_id
    assert version(client, None, -1) == (NONE, True)
    assert version(client, cluster, node) == (NONE, True)
    for another in (("another", node), (cluster, node + 7), ("", node)):
        assert version(client, *another) == (ErrorCode.rebootstrap_required, False)
    for half in ((cluster, -1), (None, node)):
        assert version(client, *half) == (ErrorCode.invalid_request, False)
    assert version(client, cluster, node) == (NONE, True), "the connection goes on"


def wait_for_offset(client: ProtocolClient, tx: Tx, topic_id: uuid.UUID, offset: int) -> None:
    """The end of the transaction is answered before its offsets are the group's."""
    until(lambda: committed(client, tx.group, (topic_id, 0))[topic_id, 0][0], lambda found: found == offset)


def began(client: ProtocolClient, topic: str) -> Tx:
    tx = Tx(client, topic).start()
    find_group(client, tx.group)
    return tx


def commit(tx: Tx, topic_id: uuid.UUID | None, offset: int, **changes: Any) -> ErrorCode:
    code: ErrorCode = until(
        lambda: tx.commit_offset("", 0, offset, version=6, topic_id=topic_id, **changes),
        lambda code: code not in NOT_YET,
    )
    return code


def test_offsets_by_topic_id(client: ProtocolClient) -> None:
    topic = create(client)
    tx = began(client, topic.name)
    assert commit(tx, NOBODY, 3) == ErrorCode.unknown_topic_id
    assert commit(tx, topic.id, 5) == NONE
    assert commit(tx, NOBODY, 3) == ErrorCode.unknown_topic_id
    code, _, tx.epoch = tx.ended_to_next(committed=True)
    assert code == NONE
    wait_for_offset(client, tx, topic.id, 5)
    assert commit(tx, topic.id, 6, producer_id=tx.id + 1_000_000) == ErrorCode.invalid_producer_id_mapping


def test_a_topic_that_nobody_knows_is_refused_alone(client: ProtocolClient) -> None:
    topic = create(client)
    tx = began(client, topic.name)
    rows = tuple(
        part("txn_offset_commit", 6, "TxnOffsetCommitRequestTopic", topic_id=topic_id, partitions=(
            part(
                "txn_offset_commit", 6, "TxnOffsetCommitRequestPartition", partition_index=0, committed_offset=8,
                committed_metadata="",
            ),
        ))
        for topic_id in (NOBODY, topic.id)
    )  # fmt: skip

    def codes() -> dict[uuid.UUID, ErrorCode]:
        answer = client.ask(
            "txn_offset_commit", 6, transactional_id=tx.name, group_id=tx.group, producer_id=tx.id,
            producer_epoch=tx.epoch, topics=rows,
        )  # fmt: skip
        return {one.topic_id: one.partitions[0].error_code for one in answer.topics}

    found = until(codes, lambda codes: not NOT_YET & set(codes.values()))
    assert found == {NOBODY: ErrorCode.unknown_topic_id, topic.id: NONE}
    assert tx.ended_to_next(committed=True)[0] == NONE
    wait_for_offset(client, tx, topic.id, 8)


def test_offsets_of_a_topic_that_was_made_anew_are_refused(client: ProtocolClient) -> None:
    old = create(client)
    tx = began(client, old.name)
    delete(client, old.name)
    new = create(client, old.name)
    assert commit(tx, old.id, 5) == ErrorCode.unknown_topic_id
    assert commit(tx, new.id, 1) == NONE
