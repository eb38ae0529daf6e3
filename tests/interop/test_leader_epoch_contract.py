"""Leader epochs over restarts (KIP-101, KIP-320): the same asserts on ours and on Apache Kafka."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import peers
import pytest
from kio.schema.errors import ErrorCode

from keylane.broker.process import BrokerProcess
from keylane.wire.batches import NewRecord, batches, encode_batch
from keylane.wire.versions import request_type
from kit.protocol import ProtocolClient, decode_answer, leader_epoch, part, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    Broker = BrokerProcess | peers.ApacheKafka

MINUTE = datetime.timedelta(minutes=1)
NOW = datetime.timedelta(0)


@pytest.fixture(scope="module", params=["keylane", pytest.param("apache", marks=pytest.mark.soak)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if request.param == "keylane":
        with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
            yield process
        return
    if what := peers.missing():
        pytest.skip(what)
    with peers.ApacheKafka() as kafka:
        yield kafka


@pytest.fixture(scope="module")
def epochs(broker: Broker) -> list[int]:
    """Of three starts; three records of `t` were written in each of the first two, and one of `u` in the first."""
    found = []
    for number in range(3):
        if number:
            broker.kill()
            broker.start()
        with ProtocolClient(broker.bootstrap) as client:
            if not number:
                create(client, "t")
                create(client, "u")
                append(client, "u", 1)
            until(lambda: ended(client, "t", 0), lambda found: found[0] == ErrorCode.none)
            found.append(leader_epoch(client, "t"))
            if number < 2:
                append(client, "t", 3)
    return found


@pytest.fixture
def client(broker: Broker, epochs: list[int]) -> Iterator[ProtocolClient]:
    with ProtocolClient(broker.bootstrap) as connection:
        yield connection


def create(client: ProtocolClient, name: str) -> None:
    topic = part(
        "create_topics", 7, "CreatableTopic", name=name, num_partitions=1, replication_factor=1, assignments=(),
        configs=(),
    )  # fmt: skip
    client.ask("create_topics", 7, topics=(topic,), timeout=MINUTE, validate_only=False)


def append(client: ProtocolClient, topic: str, count: int) -> None:
    records = encode_batch([NewRecord(None, b"v")] * count, timestamp_ms=1_700_000_000_000)
    piece = part("produce", 9, "PartitionProduceData", index=0, records=records)
    topics = (part("produce", 9, "TopicProduceData", name=topic, partition_data=(piece,)),)

    def sent() -> Any:
        answer = client.ask("produce", 9, transactional_id=None, acks=-1, timeout=MINUTE, topic_data=topics)
        return answer.responses[0].partition_responses[0].error_code

    until(sent, lambda code: code == ErrorCode.none)


def ended(client: ProtocolClient, topic: str, epoch: int, current: int = -1) -> tuple[ErrorCode, int, int]:
    row = part(
        "offset_for_leader_epoch", 4, "OffsetForLeaderPartition", partition=0, current_leader_epoch=current,
        leader_epoch=epoch,
    )  # fmt: skip
    topics = (part("offset_for_leader_epoch", 4, "OffsetForLeaderTopic", topic=topic, partitions=(row,)),)
    found = client.ask("offset_for_leader_epoch", 4, replica_id=-1, topics=topics).topics[0].partitions[0]
    return found.error_code, found.leader_epoch, found.end_offset


def fetched(client: ProtocolClient, topic: str, offset: int, current: int, last: int = -1) -> Any:
    wanted = part(
        "fetch", 12, "FetchPartition", partition=0, current_leader_epoch=current, fetch_offset=offset,
        last_fetched_epoch=last, log_start_offset=-1, partition_max_bytes=1_000_000,
    )  # fmt: skip
    request = request_type("fetch", 12)(
        max_wait=NOW, min_bytes=0, isolation_level=0, session_id=0, session_epoch=-1, forgotten_topics_data=(),
        topics=(part("fetch", 12, "FetchTopic", topic=topic, partitions=(wanted,)),), rack_id="",
    )  # fmt: skip
    client.send("fetch", request)
    return decode_answer("fetch", 12, client.receive())[1].responses[0].partitions[0]


def listed(client: ProtocolClient, timestamp: int, current: int = -1) -> tuple[ErrorCode, int, int]:
    row = part(
        "list_offsets", 7, "ListOffsetsPartition", partition_index=0, current_leader_epoch=current, timestamp=timestamp
    )
    topics = (part("list_offsets", 7, "ListOffsetsTopic", name="t", partitions=(row,)),)
    found = client.ask("list_offsets", 7, replica_id=-1, isolation_level=0, topics=topics).topics[0].partitions[0]
    return found.error_code, found.offset, found.leader_epoch


def test_each_start_is_an_epoch(epochs: list[int]) -> None:
    assert epochs == sorted(set(epochs))


def test_batches_carry_the_epoch_that_they_were_written_in(client: ProtocolClient, epochs: list[int]) -> None:
    records = fetched(client, "t", 0, epochs[2]).records
    assert [header.leader_epoch for _, header in batches(records)] == epochs[:2]


def test_an_epoch_ends_where_the_next_one_began(client: ProtocolClient, epochs: list[int]) -> None:
    first, second, third = epochs
    assert ended(client, "t", first) == (ErrorCode.none, first, 3)
    assert ended(client, "t", second) == (ErrorCode.none, second, 6)
    assert ended(client, "t", third) == (ErrorCode.none, third, 6)
    assert ended(client, "t", third + 1) == (ErrorCode.none, -1, -1)


def test_an_epoch_without_records_is_as_if_it_had_not_been(client: ProtocolClient, epochs: list[int]) -> None:
    present = leader_epoch(client, "u")
    (_, header) = next(iter(batches(fetched(client, "u", 0, present).records)))
    assert ended(client, "u", max(header.leader_epoch, present - 1)) == (
        ErrorCode.none, header.leader_epoch, 1
    )  # fmt: skip


def test_who_believes_in_another_epoch_is_told(client: ProtocolClient, epochs: list[int]) -> None:
    _, second, third = epochs
    fenced, unknown = ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch
    for current, code in ((third, ErrorCode.none), (second, fenced), (third + 1, unknown)):
        assert fetched(client, "t", 0, current).error_code == code
        assert listed(client, -1, current)[0] == code
        assert ended(client, "t", second, current)[0] == code


def test_a_fetch_behind_another_history_is_told_where_they_part(client: ProtocolClient, epochs: list[int]) -> None:
    first, _, third = epochs
    assert fetched(client, "t", 3, third, last=first).records
    answer = fetched(client, "t", 5, third, last=first)
    assert (answer.error_code, answer.records or b"") == (ErrorCode.none, b"")
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (first, 3)
    assert fetched(client, "t", 3, third, last=third + 1).error_code == ErrorCode.offset_out_of_range


def test_offsets_are_listed_with_their_epochs(client: ProtocolClient, epochs: list[int]) -> None:
    first, _, third = epochs
    assert listed(client, -2) == (ErrorCode.none, 0, first)
    assert listed(client, 1_700_000_000_000) == (ErrorCode.none, 0, first)
    assert listed(client, -3) == (ErrorCode.none, 0, first)
    assert listed(client, -1) == (ErrorCode.none, 6, third)
