"""The broker over a plain socket: every version that is offered, limits, order, and what is refused."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.broker.process import BrokerProcess
from keylane.wire.batches import NewRecord, batches, decode_records, encode_batch
from keylane.wire.versions import entity, request_type
from kit.protocol import ProtocolClient, decode_answer, encode_request, leader_epoch, part

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NO_TIME = datetime.timedelta(0)
SOON = datetime.timedelta(seconds=10)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"socket.request.max.bytes": "2000000", "message.max.bytes": "1000000", "log.segment.bytes": "20000"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=settings) as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[ProtocolClient]:
    with ProtocolClient(broker.bootstrap) as connection:
        yield connection


@pytest.fixture
def topic(client: ProtocolClient, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    answer = create(client, name, 2)
    assert answer.error_code == ErrorCode.none
    return name


def create(client: ProtocolClient, name: str, partitions: int, version: int = 7, **options: Any) -> Any:
    configs = options.pop("configs", {})
    wanted = part(
        "create_topics",
        version,
        "CreatableTopic",
        name=name,
        num_partitions=partitions,
        replication_factor=options.pop("replication_factor", 1),
        assignments=options.pop("assignments", ()),
        configs=tuple(
            part("create_topics", version, "CreatableTopicConfig", name=key, value=value)
            for key, value in configs.items()
        ),
    )
    options.setdefault("validate_only", False)
    answer = client.ask("create_topics", version, topics=(wanted,), timeout=SOON, **options)
    return answer.topics[0]


def produce_request(topic: str, records: bytes | None, version: int = 9, partition: int = 0, acks: int = -1) -> Any:
    data = part("produce", version, "PartitionProduceData", index=partition, records=records)
    topics = (part("produce", version, "TopicProduceData", name=topic, partition_data=(data,)),)
    return request_type("produce", version)(transactional_id=None, acks=acks, timeout=SOON, topic_data=topics)


def produce(client: ProtocolClient, topic: str, records: bytes | None, version: int = 9, **options: Any) -> Any:
    client.send("produce", produce_request(topic, records, version, **options))
    _, answer = decode_answer("produce", version, client.receive())
    return answer.responses[0].partition_responses[0]


def fetch_request(topics: dict[str, dict[int, int]], version: int = 12, **options: Any) -> Any:
    """`topics`: name -> partition -> offset."""
    wanted = tuple(
        part(
            "fetch",
            version,
            "FetchTopic",
            topic=name,
            partitions=tuple(
                part(
                    "fetch",
                    version,
                    "FetchPartition",
                    partition=partition,
                    fetch_offset=offset,
                    partition_max_bytes=options.get("partition_max_bytes", 1_000_000),
                    current_leader_epoch=options.get("leader_epoch", -1),
                )
                for partition, offset in offsets.items()
            ),
        )
        for name, offsets in topics.items()
    )
    return entity(
        request_type("fetch", version),
        max_wait=options.get("max_wait", NO_TIME),
        min_bytes=options.get("min_bytes", 1),
        max_bytes=options.get("max_bytes", 10_000_000),
        isolation_level=options.get("isolation_level", 0),
        session_id=options.get("session_id", 0),
        session_epoch=options.get("session_epoch", -1),
        topics=wanted,
        forgotten_topics_data=(),
    )


def fetch(client: ProtocolClient, topic: str, offset: int, version: int = 12, **options: Any) -> Any:
    client.send("fetch", fetch_request({topic: {options.pop("partition", 0): offset}}, version, **options))
    _, answer = decode_answer("fetch", version, client.receive())
    return answer.responses[0].partitions[0] if answer.responses else answer


def batch(*values: bytes, timestamp_ms: int = 1_000, **fields: Any) -> bytes:
    return encode_batch([NewRecord(None, value) for value in values], timestamp_ms=timestamp_ms, **fields)


def values_of(records: bytes) -> list[bytes | None]:
    return [record.value for at, _ in batches(records) for record in decode_records(records, at)]


# What is offered, in every version


@pytest.mark.parametrize("version", range(6))
def test_api_versions(client: ProtocolClient, version: int) -> None:
    fields = {"client_software_name": "test", "client_software_version": "1.0"} if version >= 3 else {}
    answer = client.ask("api_versions", version, **fields)
    assert answer.error_code == ErrorCode.none
    offered = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert offered[0] == (0, 13), "from 3 on it is served; older librdkafkas look for 0 before they compress"
    assert offered[1] == (4, 18)
    assert offered[18] == (0, 5)
    assert (offered[68], offered[69]) == ((0, 1), (0, 1))
    assert not offered.keys() & {71, 72}


def test_api_versions_of_the_future_is_answered_in_version_0(client: ProtocolClient) -> None:
    request = request_type("api_versions", 4)(client_software_name="test", client_software_version="1.0")
    frame = bytearray(encode_request("api_versions", request, 5))
    frame[6:8] = (99).to_bytes(2, "big")
    client.send_bytes(bytes(frame))
    correlation_id, answer = decode_answer("api_versions", 0, client.receive())
    assert correlation_id == 5
    assert answer.error_code == ErrorCode.unsupported_version
    assert [(api.api_key, api.max_version) for api in answer.api_keys] == [(18, 5)]
    assert client.ask("api_versions", 0).error_code == ErrorCode.none, "the client may ask again"


def test_a_client_with_a_strange_name_is_told(client: ProtocolClient) -> None:
    answer = client.ask("api_versions", 3, client_software_name="-no-", client_software_version="1")
    assert answer.error_code == ErrorCode.invalid_request


@pytest.mark.parametrize("version", range(14))
def test_metadata(client: ProtocolClient, broker: BrokerProcess, topic: str, version: int) -> None:
    options = {"allow_auto_topic_creation": False} if version >= 4 else {}
    if version >= 8:
        options["include_topic_authorized_operations"] = False
    if 8 <= version <= 10:
        options["include_cluster_authorized_operations"] = False
    wanted = part("metadata", version, "MetadataRequestTopic", name=topic, topic_id=None)
    answer = client.ask("metadata", version, topics=(wanted,), **options)
    assert [(node.host, node.port) for node in answer.brokers] == [("127.0.0.1", broker.port)]
    (found,) = answer.topics
    assert found.name == topic
    assert [(p.partition_index, p.leader_id, p.isr_nodes) for p in found.partitions] == [(0, 1, (1,)), (1, 1, (1,))]
    everything = client.ask("metadata", version, topics=() if version == 0 else None, **options)
    assert topic in [t.name for t in everything.topics]
    if version >= 1:
        assert client.ask("metadata", version, topics=(), **options).topics == ()
    if version >= 4:
        unknown = part("metadata", version, "MetadataRequestTopic", name="nobody", topic_id=None)
        (answer,) = client.ask("metadata", version, topics=(unknown,), **options).topics
        assert answer.error_code == ErrorCode.unknown_topic_or_partition
    if version >= 10:
        by_id = part("metadata", version, "MetadataRequestTopic", name=None, topic_id=found.topic_id)
        (answer,) = client.ask("metadata", version, topics=(by_id,), **options).topics
        assert (answer.name, answer.error_code) == (
            (topic, ErrorCode.none) if version >= 12 else ("", ErrorCode.invalid_request)
        )


def test_metadata_makes_topics_unless_the_client_forbids_it(client: ProtocolClient) -> None:
    def ask(name: str) -> Any:
        wanted = part("metadata", 4, "MetadataRequestTopic", name=name)
        return client.ask("metadata", 4, topics=(wanted,), allow_auto_topic_creation=True).topics[0]

    assert len(ask("made-by-asking").partitions) == 1
    assert ask("not/a/name").error_code == ErrorCode.invalid_topic_exception
    assert ask("made.by_asking").partitions
    assert ask("made_by.asking").error_code == ErrorCode.invalid_topic_exception


@pytest.mark.parametrize("version", range(2, 8))
def test_create_and_delete(client: ProtocolClient, version: int) -> None:
    name = f"created-{version}"
    made = create(client, name, 3, version, configs={"segment.bytes": "4096"}, validate_only=False)
    assert (made.error_code, made.name) == (ErrorCode.none, name)
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (3, 1)
        assert {config.name: config.value for config in made.configs}["segment.bytes"] == "4096"
    again = create(client, name, 3, version)
    assert again.error_code == ErrorCode.topic_already_exists
    deleting = version - 1
    fields: dict[str, Any] = {"topic_names": (name,)}
    if deleting >= 6:
        state = part("delete_topics", 6, "DeleteTopicState", name=None, topic_id=made.topic_id)
        fields = {"topics": (state,)}
    for expected in (ErrorCode.none, ErrorCode.unknown_topic_id if deleting >= 6 else 3):
        (deleted,) = client.ask("delete_topics", deleting, timeout=SOON, **fields).responses
        assert deleted.error_code == expected
    assert create(client, name, 1, version).error_code == ErrorCode.none, "the name is free again"


def test_a_topic_that_was_deleted_and_made_again_is_empty_and_another(client: ProtocolClient, topic: str) -> None:
    assert produce(client, topic, batch(b"old")).error_code == ErrorCode.none
    client.ask("delete_topics", 1, topic_names=(topic,), timeout=SOON)
    assert produce(client, topic, batch(b"lost")).error_code == ErrorCode.unknown_topic_or_partition
    assert fetch(client, topic, 0).error_code == ErrorCode.unknown_topic_or_partition
    create(client, topic, 1)
    assert fetch(client, topic, 0).high_watermark == 0
    assert produce(client, topic, batch(b"new")).base_offset == 0


def test_of_two_names_that_metrics_cannot_tell_apart_one_is_made(client: ProtocolClient) -> None:
    options = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    wanted = [part("create_topics", 7, "CreatableTopic", name=name, **options) for name in ("told.apart", "told_apart")]
    for expected in (ErrorCode.none, ErrorCode.topic_already_exists):
        answers = client.ask("create_topics", 7, topics=tuple(wanted), timeout=SOON, validate_only=False).topics
        assert [one.error_code for one in answers] == [expected, ErrorCode.invalid_topic_exception]
    client.ask("delete_topics", 1, topic_names=("told.apart",), timeout=SOON)
    answers = client.ask("create_topics", 7, topics=tuple(wanted[1:]), timeout=SOON, validate_only=False).topics
    assert answers[0].error_code == ErrorCode.none


def test_create_refuses_what_this_broker_cannot_do(client: ProtocolClient, topic: str) -> None:
    def refused(name: str, partitions: int = 1, **options: Any) -> tuple[ErrorCode, str]:
        answer = create(client, name, partitions, **options)
        return answer.error_code, answer.error_message

    code, message = refused("r", replication_factor=3)
    assert code == ErrorCode.invalid_replication_factor
    assert "3" in message
    assert refused("r", 0)[0] == ErrorCode.invalid_partitions
    assert refused("r", 10_001)[0] == ErrorCode.invalid_partitions
    assert refused("a b")[0] == ErrorCode.invalid_topic_exception
    assert refused("__consumer_offsets")[0] == ErrorCode.invalid_topic_exception
    code, message = refused("r", configs={"cleanup.policy": "archive"})
    assert code == ErrorCode.invalid_config
    assert "Invalid value archive for configuration cleanup.policy" in message
    code, message = refused("r", configs={"flush.second": "5"})
    assert code == ErrorCode.invalid_config
    assert "Unknown topic config name: flush.second" in message
    wrong = part("create_topics", 7, "CreatableReplicaAssignment", partition_index=0, broker_ids=(2,))
    assert refused("r", -1, replication_factor=-1, assignments=(wrong,))[0] == ErrorCode.invalid_replica_assignment
    assert create(client, "only-checked", 1, validate_only=True).error_code == ErrorCode.none
    right = part("create_topics", 7, "CreatableReplicaAssignment", partition_index=0, broker_ids=(1,))
    made = create(client, "only-checked", -1, replication_factor=-1, assignments=(right,))
    assert (made.error_code, made.num_partitions) == (ErrorCode.none, 1)
    defaulted = create(client, "defaulted", -1, replication_factor=-1)
    assert (defaulted.error_code, defaulted.num_partitions) == (ErrorCode.none, 1)
    twice = part(
        "create_topics",
        7,
        "CreatableTopic",
        name="r",
        num_partitions=1,
        replication_factor=1,
        assignments=(),
        configs=(),
    )
    answer = client.ask("create_topics", 7, topics=(twice, twice), timeout=SOON)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.invalid_request]


@pytest.mark.parametrize("version", range(3, 12))
def test_produce_and_fetch(client: ProtocolClient, topic: str, version: int) -> None:
    first = produce(client, topic, batch(b"a", b"b"), version)
    assert (first.error_code, first.base_offset) == (ErrorCode.none, 0)
    assert produce(client, topic, batch(b"c"), version, acks=1).base_offset == 2
    fetching = version + 1
    for isolation in (0, 1):
        found = fetch(client, topic, 0, fetching, isolation_level=isolation)
        assert (found.error_code, found.high_watermark, found.last_stable_offset) == (ErrorCode.none, 3, 3)
        assert values_of(found.records) == [b"a", b"b", b"c"]
    assert values_of(fetch(client, topic, 2, fetching).records) == [b"c"]
    assert values_of(fetch(client, topic, 1, fetching).records) == [b"a", b"b", b"c"], "the whole batch"
    assert fetch(client, topic, 3, fetching).records == b""


@pytest.mark.parametrize("version", range(1, 9))
def test_list_offsets(client: ProtocolClient, topic: str, version: int) -> None:
    for number in range(4):
        produce(client, topic, batch(b"x", b"y", timestamp_ms=1_000 + 100 * number))

    def ask(timestamp: int, **options: Any) -> Any:
        wanted = part(
            "list_offsets",
            version,
            "ListOffsetsPartition",
            partition_index=options.pop("partition", 0),
            timestamp=timestamp,
            **options,
        )
        topics = (part("list_offsets", version, "ListOffsetsTopic", name=topic, partitions=(wanted,)),)
        fields: dict[str, Any] = {"isolation_level": 0} if version >= 2 else {}
        return client.ask("list_offsets", version, replica_id=-1, topics=topics, **fields).topics[0].partitions[0]

    assert ask(-1).offset == 8
    assert ask(-2).offset == 0
    assert (ask(1_100).offset, ask(1_100).timestamp) == (2, 1_100)
    assert (ask(1_001).offset, ask(1_001).timestamp) == (2, 1_100)
    assert (ask(1_301).offset, ask(1_301).timestamp) == (-1, -1)
    assert ask(-1, partition=9).error_code == ErrorCode.unknown_topic_or_partition
    expected = (6, 1_300) if version >= 7 else (-1, -1)
    assert (ask(-3).offset, ask(-3).timestamp) == expected
    assert ask(-4).offset == (0 if version >= 8 else -1)
    if version >= 4:
        epoch = leader_epoch(client, topic)
        assert ask(-1, current_leader_epoch=epoch).error_code == ErrorCode.none
        assert ask(-1, current_leader_epoch=epoch + 1).error_code == ErrorCode.unknown_leader_epoch


@pytest.mark.parametrize("version", range(5))
def test_init_producer_id(client: ProtocolClient, version: int) -> None:
    def ask(transactional_id: str | None) -> Any:
        return client.ask("init_producer_id", version, transactional_id=transactional_id, transaction_timeout=SOON)

    first, second = ask(None), ask(None)
    assert first.error_code == ErrorCode.none
    assert first.producer_epoch == 0
    assert second.producer_id == first.producer_id + 1
    name = f"init-{version}"
    transactional, again = ask(name), ask(name)
    assert (transactional.error_code, transactional.producer_epoch) == (ErrorCode.none, 0)
    assert (again.error_code, again.producer_epoch) == (ErrorCode.none, 1)
    assert again.producer_id == transactional.producer_id == second.producer_id + 1


# Produce


def test_idempotent_batches_are_taken_once_and_in_order(client: ProtocolClient, topic: str) -> None:
    producer: dict[str, Any] = {"producer_id": 77, "producer_epoch": 3}
    assert produce(client, topic, batch(b"a", b"b", base_sequence=0, **producer)).base_offset == 0
    assert produce(client, topic, batch(b"c", base_sequence=2, **producer)).base_offset == 2
    again = produce(client, topic, batch(b"a", b"b", base_sequence=0, **producer))
    assert (again.error_code, again.base_offset) == (ErrorCode.none, 0)
    gap = produce(client, topic, batch(b"e", base_sequence=4, **producer))
    assert gap.error_code == ErrorCode.out_of_order_sequence_number
    assert "sequence 4, where 3 follows" in gap.error_message
    old = produce(client, topic, batch(b"x", base_sequence=0, producer_id=77, producer_epoch=2))
    assert old.error_code == ErrorCode.invalid_producer_epoch
    assert values_of(fetch(client, topic, 0).records) == [b"a", b"b", b"c"]


def test_produce_refuses_what_is_wrong(client: ProtocolClient, topic: str) -> None:
    broken = bytearray(batch(b"a"))
    broken[-1] ^= 1
    assert produce(client, topic, bytes(broken)).error_code == ErrorCode.corrupt_message
    assert produce(client, topic, None).error_code == ErrorCode.invalid_record
    assert produce(client, topic, batch(b"a") + batch(b"b")).error_code == ErrorCode.invalid_record
    large = produce(client, topic, batch(bytes(1_000_000)))
    assert large.error_code == ErrorCode.message_too_large
    assert "message.max.bytes" in large.error_message
    assert produce(client, topic, batch(b"a"), acks=2).error_code == ErrorCode.invalid_required_acks
    assert produce(client, topic, batch(b"a"), partition=2).error_code == ErrorCode.unknown_topic_or_partition
    assert produce(client, "nobody", batch(b"a")).error_code == ErrorCode.unknown_topic_or_partition
    internal = produce(client, "__consumer_offsets", batch(b"a"))
    assert internal.error_code == ErrorCode.invalid_topic_exception
    assert fetch(client, topic, 0).high_watermark == 0


def test_acks_0_gets_no_answer_and_an_error_closes_the_connection(broker: BrokerProcess, topic: str) -> None:
    with ProtocolClient(broker.bootstrap) as client:
        client.send("produce", produce_request(topic, batch(b"a"), acks=0))
        assert values_of(fetch(client, topic, 0, min_bytes=1, max_wait=SOON).records) == [b"a"]
        client.send("produce", produce_request("nobody", batch(b"a"), acks=0))
        assert client.is_closed_by_peer()
    assert "produce with acks=0 to nobody-0 failed" in broker.log.read_text()


def test_pipelined_requests_are_answered_in_order(client: ProtocolClient, topic: str) -> None:
    sent = []
    for number in range(200):
        sent.append(("produce", 9, client.send("produce", produce_request(topic, batch(b"%d" % number)))))
        if number % 50 == 25:
            sent.append(("fetch", 12, client.send("fetch", fetch_request({topic: {0: 0}}))))
    offsets = []
    for api, version, expected in sent:
        correlation_id, answer = decode_answer(api, version, client.receive())
        assert correlation_id == expected
        if api == "produce":
            offsets.append(answer.responses[0].partition_responses[0].base_offset)
    assert offsets == list(range(200))


# Fetch


def test_a_fetch_waits_for_what_comes(broker: BrokerProcess, client: ProtocolClient, topic: str) -> None:
    size = len(batch(b"a"))
    start = time.monotonic()
    client.send("fetch", fetch_request({topic: {0: 0, 1: 0}}, min_bytes=2 * size, max_wait=SOON))
    with ProtocolClient(broker.bootstrap) as other:
        produce(other, topic, batch(b"a"))
        produce(other, topic, batch(b"b"), partition=1)
    _, answer = decode_answer("fetch", 12, client.receive())
    assert time.monotonic() - start < SOON.total_seconds() / 2
    assert [values_of(partition.records) for partition in answer.responses[0].partitions] == [[b"a"], [b"b"]]


def test_a_fetch_waits_no_longer_than_it_may(client: ProtocolClient, topic: str) -> None:
    start = time.monotonic()
    found = fetch(client, topic, 0, max_wait=datetime.timedelta(milliseconds=300))
    assert 0.29 < time.monotonic() - start < 5
    assert (found.error_code, found.records) == (ErrorCode.none, b"")


def test_a_fetch_that_waits_holds_up_no_other_connection(broker: BrokerProcess, topic: str) -> None:
    with ProtocolClient(broker.bootstrap) as waiting, ProtocolClient(broker.bootstrap) as other:
        waiting.send("fetch", fetch_request({topic: {0: 0}}, max_wait=SOON))
        start = time.monotonic()
        assert other.ask("api_versions", 0).error_code == ErrorCode.none
        assert time.monotonic() - start < SOON.total_seconds() / 2


def test_deleting_a_topic_wakes_its_fetches(broker: BrokerProcess, client: ProtocolClient, topic: str) -> None:
    start = time.monotonic()
    client.send("fetch", fetch_request({topic: {0: 0}}, max_wait=SOON))
    with ProtocolClient(broker.bootstrap) as other:
        other.ask("delete_topics", 1, topic_names=(topic,), timeout=SOON)
    _, answer = decode_answer("fetch", 12, client.receive())
    assert time.monotonic() - start < SOON.total_seconds() / 2
    assert answer.responses[0].partitions[0].error_code == ErrorCode.unknown_topic_or_partition


def test_fetch_limits(client: ProtocolClient, topic: str) -> None:
    data = batch(bytes(500))
    for partition in (0, 1):
        for _ in range(5):
            produce(client, topic, data, partition=partition)

    def sizes(**limits: Any) -> list[int]:
        client.send("fetch", fetch_request({topic: {0: 0, 1: 0}}, **limits))
        _, answer = decode_answer("fetch", 12, client.receive())
        return [len(partition.records) for partition in answer.responses[0].partitions]

    size = len(data)
    assert sizes() == [5 * size, 5 * size]
    assert sizes(partition_max_bytes=2 * size) == [2 * size, 2 * size]
    assert sizes(max_bytes=1) == [size, 0], "at least one batch, of the first partition only"
    assert sizes(partition_max_bytes=1) == [size, 0], "no part of a batch, of the others"
    assert sizes(max_bytes=6 * size) == [5 * size, size]
    assert sizes(max_bytes=5 * size) == [5 * size, 0]
    assert sizes(max_bytes=6 * size - 1) == [5 * size, 0]


def test_fetch_reads_through_all_segments(client: ProtocolClient, topic: str) -> None:
    expected = [b"%04d" % number * 250 for number in range(60)]
    for value in expected:
        produce(client, topic, batch(value))
    found: list[bytes | None] = []
    while len(found) < len(expected):
        answer = fetch(client, topic, len(found))
        assert answer.error_code == ErrorCode.none
        values = values_of(answer.records)
        assert values
        found += values
    assert found == expected


def test_fetch_errors_come_at_once(client: ProtocolClient, topic: str) -> None:
    produce(client, topic, batch(b"a"))
    start = time.monotonic()
    assert fetch(client, topic, 2, max_wait=SOON).error_code == ErrorCode.offset_out_of_range
    assert fetch(client, topic, -1, max_wait=SOON).error_code == ErrorCode.offset_out_of_range
    assert fetch(client, topic, 0, partition=2, max_wait=SOON).error_code == ErrorCode.unknown_topic_or_partition
    assert fetch(client, "nobody", 0, max_wait=SOON).error_code == ErrorCode.unknown_topic_or_partition
    assert fetch(client, topic, 1, leader_epoch=2**31 - 1, max_wait=SOON).error_code == ErrorCode.unknown_leader_epoch
    assert fetch(client, topic, 1, leader_epoch=0, max_wait=SOON).error_code == ErrorCode.fenced_leader_epoch
    assert time.monotonic() - start < SOON.total_seconds() / 2


def test_a_session_waits_for_what_comes_and_tells_of_that_alone(
    broker: BrokerProcess, client: ProtocolClient, topic: str
) -> None:
    """Two fetches of it; the other one's partition stays quiet."""
    client.send("fetch", fetch_request({topic: {0: 0, 1: 0}}, session_epoch=0))
    _, opened = decode_answer("fetch", 12, client.receive())
    assert [partition.partition_index for partition in opened.responses[0].partitions] == [0, 1]
    for epoch, value in ((1, b"a"), (2, b"b")):
        start = time.monotonic()
        changed = {topic: {1: epoch - 1}} if epoch > 1 else {}
        session = {"session_id": opened.session_id, "session_epoch": epoch}
        client.send("fetch", fetch_request(changed, max_wait=SOON, **session))
        with ProtocolClient(broker.bootstrap) as other:
            produce(other, topic, batch(value), partition=1)
        _, answer = decode_answer("fetch", 12, client.receive())
        assert time.monotonic() - start < SOON.total_seconds() / 2
        assert answer.session_id == opened.session_id
        (told,) = answer.responses[0].partitions
        assert (told.partition_index, told.high_watermark, values_of(told.records)) == (1, epoch, [value])


def test_a_session_whose_client_is_gone_goes_on(broker: BrokerProcess, client: ProtocolClient, topic: str) -> None:
    """Its fetch that waited counts: the next epoch is the one after it."""
    client.send("fetch", fetch_request({topic: {0: 0}}, session_epoch=0))
    session_id = decode_answer("fetch", 12, client.receive())[1].session_id
    with ProtocolClient(broker.bootstrap) as waiting:
        waiting.send("fetch", fetch_request({}, max_wait=SOON, session_id=session_id, session_epoch=1))
        deadline = time.monotonic() + SOON.total_seconds() / 2
        while (answer := in_session(client, session_id, 2)).error_code != ErrorCode.none:  # it has not come yet
            assert answer.error_code == ErrorCode.invalid_fetch_session_epoch
            assert time.monotonic() < deadline
    produce(client, topic, batch(b"a"))
    answer = in_session(client, session_id, 3)
    assert values_of(answer.responses[0].partitions[0].records) == [b"a"]


def in_session(client: ProtocolClient, session_id: int, epoch: int) -> Any:
    client.send("fetch", fetch_request({}, session_id=session_id, session_epoch=epoch))
    return decode_answer("fetch", 12, client.receive())[1]


def test_no_slot_is_no_session(topic: str, tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", settings={"max.incremental.fetch.session.cache.slots": "0"}) as broker,
        ProtocolClient(broker.bootstrap) as client,
    ):
        create(client, topic, 1)
        produce(client, topic, batch(b"a"))
        client.send("fetch", fetch_request({topic: {0: 0}}, session_epoch=0))
        _, answer = decode_answer("fetch", 12, client.receive())
        assert (answer.error_code, answer.session_id) == (ErrorCode.none, 0)
        assert values_of(answer.responses[0].partitions[0].records) == [b"a"]


def test_a_fetch_of_nothing_waits_for_nothing(client: ProtocolClient) -> None:
    start = time.monotonic()
    client.send("fetch", fetch_request({}, max_wait=SOON))
    assert decode_answer("fetch", 12, client.receive())[1].responses == ()
    assert time.monotonic() - start < SOON.total_seconds() / 2


# What is refused


def test_a_quota_is_not_taken(client: ProtocolClient) -> None:
    """There is no honest way to take one that is not kept."""
    entities = (part("alter_client_quotas", 1, "EntityData", entity_type="user", entity_name="ann"),)
    ops = (part("alter_client_quotas", 1, "OpData", key="producer_byte_rate", value=1.0, remove=False),)
    entry = part("alter_client_quotas", 1, "EntryData", entity=entities, ops=ops)
    (answer,) = client.ask("alter_client_quotas", 1, entries=(entry,), validate_only=False).entries
    assert answer.error_code == ErrorCode.invalid_request
    assert "producer_byte_rate" in answer.error_message
    assert client.ask("describe_client_quotas", 1, components=(), strict=False).entries == ()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        (2_000_001).to_bytes(4, "big"),
        (-5).to_bytes(4, "big", signed=True),
        (10).to_bytes(4, "big") + (3).to_bytes(2, "big") + (12).to_bytes(2, "big") + bytes(6),
        (10).to_bytes(4, "big") + (17).to_bytes(2, "big") + bytes(8),  # SaslHandshake is not offered
        (10).to_bytes(4, "big") + (3).to_bytes(2, "big") + (14).to_bytes(2, "big") + bytes(6),
    ],
)
def test_a_frame_that_cannot_be_read_closes_its_connection_and_no_other(broker: BrokerProcess, data: bytes) -> None:
    logged = len(broker.log.read_text().splitlines())
    with ProtocolClient(broker.bootstrap) as other, ProtocolClient(broker.bootstrap) as client:
        assert client.ask("api_versions", 0).error_code == ErrorCode.none
        client.send_bytes(data)
        assert client.is_closed_by_peer()
        assert other.ask("api_versions", 0).error_code == ErrorCode.none
    lines = broker.log.read_text().splitlines()[logged:]
    assert len(lines) == 1
    assert "closing the connection" in lines[0]
