"""What a broker answers about topics, version by version: the same asserts on ours and on Apache Kafka."""

from __future__ import annotations

import datetime
import itertools
import operator
import time
from functools import partial
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.broker.topic_settings import HONOURED
from keylane.broker.topic_settings import KEPT as KEEPS
from keylane.broker.topic_settings import OWN as OF_TOPICS_ALONE
from keylane.wire.batches import NewRecord, batches, decode_records, encode_batch, read_header, recompressed
from keylane.wire.versions import request_type
from kit.protocol import ProtocolClient, ask, decode_answer, part, until
from kit.transaction_requests import commit, find_group

MINUTE = datetime.timedelta(minutes=1)
NUMBERS = itertools.count()
TOPIC, BROKER = 2, 4
OWN, OF_BROKER, OF_ALL, DEFAULT = 1, 2, 3, 5
SET, DELETE, APPEND, SUBTRACT = range(4)
SINCE_4_4 = {
    "errors.deadletterqueue.group.enable",
    "max.decompressed.message.bytes",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
}
"""Configs of topics that Apache Kafka 4.3.1 does not know."""
MEGABYTE = 1_048_576
"""Of a segment: Apache Kafka takes nothing smaller."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def create(client: ProtocolClient, configs: dict[str, str], name: str | None = None) -> tuple[str, Any]:
    name = name or f"topic-{next(NUMBERS)}"
    rows = tuple(part("create_topics", 7, "CreatableTopicConfig", name=key, value=configs[key]) for key in configs)
    wanted = part(
        "create_topics", 7, "CreatableTopic", name=name, num_partitions=1, replication_factor=1, assignments=(),
        configs=rows,
    )  # fmt: skip
    answer = client.ask("create_topics", 7, topics=(wanted,), timeout=MINUTE, validate_only=False).topics[0]
    return name, answer


def topic_with(client: ProtocolClient, **configs: str) -> str:
    name, answer = create(client, {key.replace("_", "."): value for key, value in configs.items()})
    assert answer.error_code == ErrorCode.none, answer.error_message
    until(lambda: starts_at(client, name), lambda start: start == 0)
    return name


def describe(client: ProtocolClient, topic: str, *names: str, version: int = 4, kind: int = TOPIC) -> Any:
    wanted = part(
        "describe_configs", version, "DescribeConfigsResource", resource_type=kind, resource_name=topic,
        configuration_keys=names or None,
    )  # fmt: skip
    return ask(
        client, "describe_configs", version, resources=(wanted,), include_synonyms=True, include_documentation=True
    ).results[0]


def value_of(client: ProtocolClient, topic: str, name: str, kind: int = TOPIC) -> tuple[str, int]:
    """The value, and where it comes from."""
    (config,) = describe(client, topic, name, kind=kind).configs
    return config.value, config.config_source


def change(
    client: ProtocolClient, topic: str, *changes: tuple[str, int, str | None], version: int = 1, kind: int = TOPIC
) -> Any:
    configs = tuple(
        part("incremental_alter_configs", version, "AlterableConfig", name=name, config_operation=how, value=value)
        for name, how, value in changes
    )
    wanted = part(
        "incremental_alter_configs", version, "AlterConfigsResource", resource_type=kind, resource_name=topic,
        configs=configs,
    )  # fmt: skip
    return client.ask("incremental_alter_configs", version, resources=(wanted,), validate_only=False).responses[0]


def replace(client: ProtocolClient, topic: str, configs: dict[str, str], version: int = 2) -> Any:
    rows = tuple(part("alter_configs", version, "AlterableConfig", name=key, value=configs[key]) for key in configs)
    wanted = part(
        "alter_configs", version, "AlterConfigsResource", resource_type=TOPIC, resource_name=topic, configs=rows,
    )  # fmt: skip
    return client.ask("alter_configs", version, resources=(wanted,), validate_only=False).responses[0]


def send(client: ProtocolClient, topic: str, data: bytes, version: int = 9) -> Any:
    piece = part("produce", version, "PartitionProduceData", index=0, records=data)
    topics = (part("produce", version, "TopicProduceData", name=topic, partition_data=(piece,)),)
    client.send(
        "produce", request_type("produce", version)(transactional_id=None, acks=-1, timeout=MINUTE, topic_data=topics)
    )
    return decode_answer("produce", version, client.receive())[1].responses[0].partition_responses[0]


def fetch(client: ProtocolClient, topic: str, offset: int, version: int = 12) -> Any:
    wanted = part("fetch", version, "FetchPartition", partition=0, fetch_offset=offset, partition_max_bytes=10_000_000)
    answer = ask(
        client, "fetch", version, max_wait=datetime.timedelta(0), min_bytes=0, max_bytes=10_000_000, isolation_level=0,
        session_id=0, session_epoch=-1, forgotten_topics_data=(),
        topics=(part("fetch", version, "FetchTopic", topic=topic, partitions=(wanted,)),),
    )  # fmt: skip
    return answer.responses[0].partitions[0]


def offset_at(client: ProtocolClient, topic: str, timestamp: int) -> tuple[ErrorCode, int]:
    wanted = part("list_offsets", 7, "ListOffsetsPartition", partition_index=0, timestamp=timestamp)
    topics = (part("list_offsets", 7, "ListOffsetsTopic", name=topic, partitions=(wanted,)),)
    answer = ask(client, "list_offsets", 7, replica_id=-1, isolation_level=0, topics=topics).topics[0].partitions[0]
    return answer.error_code, answer.offset


def starts_at(client: ProtocolClient, topic: str) -> int:
    return offset_at(client, topic, -2)[1]


def delete_before(client: ProtocolClient, topic: str, offset: int, version: int = 2, partition: int = 0) -> Any:
    wanted = part("delete_records", version, "DeleteRecordsPartition", partition_index=partition, offset=offset)
    topics = (part("delete_records", version, "DeleteRecordsTopic", name=topic, partitions=(wanted,)),)
    answer = client.ask("delete_records", version, topics=topics, timeout=MINUTE).topics[0].partitions[0]
    return answer.error_code, answer.low_watermark


def batch(*records: tuple[bytes, bytes | None], timestamp_ms: int | None = None) -> bytes:
    rows = [NewRecord(key, value) for key, value in records]
    return encode_batch(rows, timestamp_ms=now_ms() if timestamp_ms is None else timestamp_ms)


def test_a_topics_configs_and_where_they_come_from(client: ProtocolClient) -> None:
    topic = topic_with(client, retention_ms="123456", cleanup_policy="compact,delete")
    for version in (1, 2, 3, 4):
        answer = describe(client, topic, "retention.ms", "segment.ms", "no.such", version=version)
        assert answer.error_code == ErrorCode.none
        found = {config.name: config for config in answer.configs}
        assert set(found) == {"retention.ms", "segment.ms"}
        own, default = found["retention.ms"], found["segment.ms"]
        assert (own.value, own.config_source, own.read_only) == ("123456", OWN, False)
        assert (default.value, default.config_source) == ("604800000", DEFAULT)
        assert own.synonyms[0].name == "retention.ms"
        assert (own.synonyms[0].value, own.synonyms[0].source) == ("123456", OWN)
        if version >= 3:
            assert own.config_type == 5
            assert own.documentation
    everything = {config.name for config in describe(client, topic).configs}
    assert {"retention.bytes", "cleanup.policy", "max.message.bytes", "compression.type"} <= everything
    assert value_of(client, topic, "cleanup.policy") == ("compact,delete", OWN)


def test_whose_configs_there_are_not(client: ProtocolClient) -> None:
    assert describe(client, "nobody").error_code == ErrorCode.unknown_topic_or_partition
    assert describe(client, "77", kind=BROKER).error_code == ErrorCode.invalid_request
    assert describe(client, "1", kind=99).error_code == ErrorCode.invalid_request


def test_the_brokers_configs(client: ProtocolClient) -> None:
    answer = describe(client, "1", "log.segment.bytes", "log.retention.check.interval.ms", kind=BROKER)
    found = {config.name: config for config in answer.configs}
    assert (found["log.segment.bytes"].value, found["log.segment.bytes"].config_source) == ("1073741824", DEFAULT)
    interval = found["log.retention.check.interval.ms"]
    assert (interval.value, interval.config_source, interval.read_only) == ("100", 4, True)
    assert [(one.value, one.source) for one in interval.synonyms] == [("100", 4), ("300000", DEFAULT)]


def test_single_configs_are_changed(client: ProtocolClient) -> None:
    topic = topic_with(client, retention_ms="1000000")
    for version in (0, 1):
        answer = change(client, topic, ("retention.ms", SET, "2000000"), ("segment.ms", SET, "99"), version=version)
        assert answer.error_code == ErrorCode.none
        until(lambda: value_of(client, topic, "segment.ms"), lambda found: found == ("99", OWN))
        assert value_of(client, topic, "retention.ms") == ("2000000", OWN)
        change(client, topic, ("cleanup.policy", APPEND, "compact"), ("segment.ms", DELETE, None), version=version)
        until(lambda: value_of(client, topic, "segment.ms"), lambda found: found == ("604800000", DEFAULT))
        assert value_of(client, topic, "cleanup.policy") == ("delete,compact", OWN)
        change(client, topic, ("cleanup.policy", SUBTRACT, "compact"), version=version)
        until(lambda: value_of(client, topic, "cleanup.policy"), lambda found: found == ("delete", OWN))


def test_all_configs_are_replaced(client: ProtocolClient) -> None:
    topic = topic_with(client, retention_ms="1000000")
    for version in (0, 1, 2):
        assert replace(client, topic, {"segment.ms": "77"}, version).error_code == ErrorCode.none
        until(lambda: value_of(client, topic, "segment.ms"), lambda found: found == ("77", OWN))
        assert value_of(client, topic, "retention.ms") == ("604800000", DEFAULT)
        assert replace(client, topic, {"retention.ms": "5000000"}, version).error_code == ErrorCode.none
        until(lambda: value_of(client, topic, "retention.ms"), lambda found: found == ("5000000", OWN))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("no.such", SET, "1")], ErrorCode.invalid_config),
        ([("retention.ms", SET, "soon")], ErrorCode.invalid_config),
        ([("retention.ms", SET, "-2")], ErrorCode.invalid_config),
        ([("cleanup.policy", SET, "archive")], ErrorCode.invalid_config),
        ([("retention.ms", APPEND, "5")], ErrorCode.invalid_config),
        ([("retention.ms", SET, None)], ErrorCode.invalid_request),
        ([("retention.ms", SET, "5"), ("retention.ms", SET, "6")], ErrorCode.invalid_request),
        ([("segment.ms", SET, "5"), ("no.such", SET, "1")], ErrorCode.invalid_config),
    ],
)
def test_what_is_wrong_changes_nothing(client: ProtocolClient, changes: Any, code: ErrorCode) -> None:
    topic = topic_with(client)
    answer = change(client, topic, *changes)
    assert answer.error_code == code
    assert answer.error_message
    assert value_of(client, topic, "segment.ms") == ("604800000", DEFAULT)
    assert value_of(client, topic, "retention.ms") == ("604800000", DEFAULT)


def test_to_delete_what_is_not_set_is_no_error(client: ProtocolClient) -> None:
    topic = topic_with(client)
    for name in ("no.such", "min.compaction.lag.ms", "min.insync.replicas", "retention.ms"):
        assert change(client, topic, (name, DELETE, None)).error_code == ErrorCode.none, name
    answer = change(client, topic, ("follower.replication.throttled.replicas", DELETE, None), ("segment.ms", SET, "99"))
    assert answer.error_code == ErrorCode.none, answer.error_message
    until(lambda: value_of(client, topic, "segment.ms"), lambda found: found == ("99", OWN))


KEPT = {
    "file.delete.delay.ms": "5000",
    "flush.messages": "7",
    "flush.ms": "1000",
    "follower.replication.throttled.replicas": "0:1",
    "leader.replication.throttled.replicas": "*",
    "local.retention.bytes": "-1",
    "local.retention.ms": "-1",
    "min.insync.replicas": "2",
    "preallocate": "true",
    "remote.storage.enable": "false",
    "segment.index.bytes": "4096",
    "segment.jitter.ms": "5",
    "unclean.leader.election.enable": "true",
}
"""Configs that need more than one node, remote storage, or files of another kind."""


def test_what_has_no_effect_here_is_kept_and_shown(client: ProtocolClient) -> None:
    topic = topic_with(client, **{name.replace(".", "_"): KEPT[name] for name in sorted(KEPT)[:6]})
    answer = change(client, topic, *((name, SET, KEPT[name]) for name in sorted(KEPT)[6:]), ("segment.ms", SET, "99"))
    assert answer.error_code == ErrorCode.none, answer.error_message
    until(lambda: value_of(client, topic, "segment.ms"), lambda found: found == ("99", OWN))
    found = {one.name: (one.value, one.config_source) for one in describe(client, topic, *KEPT).configs}
    assert found == {name: (value, OWN) for name, value in KEPT.items()}
    changes = [(name, DELETE, None) for name in KEPT]
    assert change(client, topic, *changes).error_code == ErrorCode.none
    until(lambda: value_of(client, topic, "flush.ms")[1], lambda source: source == DEFAULT)
    found = {one.name: (one.value, one.config_source) for one in describe(client, topic, *KEPT).configs}
    assert found.pop("min.insync.replicas")[0] == "1"  # Apache Kafka sets it for the cluster
    assert found == {
        "file.delete.delay.ms": ("60000", DEFAULT),
        "flush.messages": ("9223372036854775807", DEFAULT),
        "flush.ms": ("9223372036854775807", DEFAULT),
        "follower.replication.throttled.replicas": ("", DEFAULT),
        "leader.replication.throttled.replicas": ("", DEFAULT),
        "local.retention.bytes": ("-2", DEFAULT),
        "local.retention.ms": ("-2", DEFAULT),
        "preallocate": ("false", DEFAULT),
        "remote.storage.enable": ("false", DEFAULT),
        "segment.index.bytes": ("10485760", DEFAULT),
        "segment.jitter.ms": ("0", DEFAULT),
        "unclean.leader.election.enable": ("false", DEFAULT),
    }


def test_every_topic_config_is_known(client: ProtocolClient) -> None:
    """The names of Apache Kafka 4.4.0, no more and no fewer; 4.3.1 has some of them not."""
    topic = topic_with(client)
    found, known = {one.name for one in describe(client, topic).configs}, {*HONOURED, *OF_TOPICS_ALONE, *KEEPS}
    assert found | SINCE_4_4 == known


@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"])
def test_a_topic_has_a_compression_of_its_own(client: ProtocolClient, name: str) -> None:
    topic = topic_with(client, compression_type=name)
    codecs = ["uncompressed", "gzip", "snappy", "lz4", "zstd"]
    for sent in range(5):
        plain = batch((b"k", b"v" * 70_000), (b"l", None))
        data, _ = recompressed(plain, read_header(plain), sent, None)
        assert send(client, topic, data).error_code == ErrorCode.none
    stored = fetch(client, topic, 0).records
    found = [(header.codec, decode_records(stored, at)) for at, header in batches(stored)]
    assert [codec for codec, _ in found] == ([*range(5)] if name == "producer" else [codecs.index(name)] * 5)
    assert {tuple(one.value for one in records) for _, records in found} == {(b"v" * 70_000, None)}
    assert [one.offset for _, records in found for one in records] == list(range(10))


def test_times_out_of_bounds(client: ProtocolClient) -> None:
    topic = topic_with(client, message_timestamp_after_max_ms="60000", message_timestamp_before_max_ms="120000")
    for far in (-200_000, 100_000):
        answer = send(client, topic, batch((b"k", b"v"), timestamp_ms=now_ms() + far))
        assert answer.error_code == ErrorCode.invalid_timestamp
        assert "invalid timestamp" in answer.error_message
        assert [one.batch_index for one in answer.record_errors] == [0]
    for near in (-100_000, 30_000):
        assert send(client, topic, batch((b"k", b"v"), timestamp_ms=now_ms() + near)).error_code == ErrorCode.none
    late = topic_with(client)
    assert send(client, late, batch((b"k", b"v"), timestamp_ms=now_ms() + 7_200_000)).error_code == (
        ErrorCode.invalid_timestamp
    ), "an hour, by default"
    own = topic_with(client, message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="5")
    assert send(client, own, batch((b"k", b"v"), timestamp_ms=5)).error_code == ErrorCode.none


def test_the_defaults_of_topics_change_while_the_broker_runs(client: ProtocolClient) -> None:
    """Of one broker, or of all: a topic's own config wins, then the broker's, then that of all."""
    topic, own = topic_with(client), topic_with(client, max_message_bytes="900")
    large = batch((b"k", bytes(1_500)))
    try:
        assert change(client, "", ("message.max.bytes", SET, "1000"), kind=BROKER).error_code == ErrorCode.none
        until(lambda: value_of(client, topic, "max.message.bytes"), lambda found: found == ("1000", OF_ALL))
        assert send(client, topic, large).error_code == ErrorCode.message_too_large
        assert value_of(client, "", "message.max.bytes", BROKER) == ("1000", OF_ALL)
        assert value_of(client, own, "max.message.bytes") == ("900", OWN)

        assert change(client, "1", ("message.max.bytes", SET, "2000"), kind=BROKER).error_code == ErrorCode.none
        until(lambda: value_of(client, topic, "max.message.bytes"), lambda found: found == ("2000", OF_BROKER))
        assert send(client, topic, large).error_code == ErrorCode.none
        (config,) = describe(client, "1", "message.max.bytes", kind=BROKER).configs
        assert not config.read_only
        assert [(one.value, one.source) for one in config.synonyms] == [
            ("2000", OF_BROKER), ("1000", OF_ALL), ("1048588", DEFAULT)
        ]  # fmt: skip
    finally:
        for broker in ("", "1"):
            answer = change(client, broker, ("message.max.bytes", DELETE, None), kind=BROKER)
            assert answer.error_code == ErrorCode.none
    until(lambda: value_of(client, topic, "max.message.bytes"), lambda found: found == ("1048588", DEFAULT))


def test_the_brokers_list_is_appended_to(client: ProtocolClient) -> None:
    name = "log.cleanup.policy"
    try:
        for operation, policy, expected in (
            (APPEND, "compact", "delete,compact"),
            (SET, "delete", "delete"),
            (APPEND, "compact", "delete,compact"),
            (SUBTRACT, "delete", "compact"),
        ):
            assert change(client, "1", (name, operation, policy), kind=BROKER).error_code == ErrorCode.none
            assert until(lambda: value_of(client, "1", name, BROKER)[0], partial(operator.eq, expected)) == expected
    finally:
        assert change(client, "1", (name, DELETE, None), kind=BROKER).error_code == ErrorCode.none


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.cleaner.backoff.ms", "20000"),
        ("max.connections", "500"),
        ("max.connections.per.ip", "400"),
        ("max.connections.per.ip.overrides", "127.0.0.9:5"),
        ("producer.id.expiration.ms", "90000000"),
    ],
)
def test_options_of_the_broker_alone_change_while_it_runs(client: ProtocolClient, name: str, value: str) -> None:
    (before,) = describe(client, "1", name, kind=BROKER).configs
    assert not before.read_only
    try:
        assert change(client, "1", (name, SET, value), kind=BROKER).error_code == ErrorCode.none
        until(lambda: value_of(client, "1", name, BROKER), partial(operator.eq, (value, OF_BROKER)))
        (after,) = describe(client, "1", name, kind=BROKER).configs
        assert [(one.value, one.source) for one in after.synonyms][:2] == [
            (value, OF_BROKER), (before.value, before.config_source)
        ]  # fmt: skip
    finally:
        assert change(client, "1", (name, DELETE, None), kind=BROKER).error_code == ErrorCode.none
    until(lambda: value_of(client, "1", name, BROKER), partial(operator.eq, (before.value, before.config_source)))


@pytest.mark.parametrize(
    ("name", "operation", "value", "code"),
    [
        ("max.connections", SET, "0", ErrorCode.invalid_request),
        ("max.connections.per.ip.overrides", SET, "127.0.0.9", ErrorCode.invalid_request),
        ("message.max.bytes", SET, "soon", ErrorCode.invalid_request),
        ("log.retention.ms", APPEND, "5", ErrorCode.invalid_config),
        ("log.retention.ms", SET, None, ErrorCode.invalid_request),
        ("broker.id", SET, "5", ErrorCode.invalid_request),
    ],
)
def test_what_is_wrong_for_a_broker_changes_nothing(
    client: ProtocolClient, name: str, operation: int, value: str | None, code: ErrorCode
) -> None:
    answer = change(client, "1", (name, operation, value), kind=BROKER)
    assert answer.error_code == code
    assert answer.error_message
    assert value_of(client, "1", "message.max.bytes", BROKER) == ("1048588", DEFAULT)


def test_what_one_topic_is_refused_leaves_the_others(client: ProtocolClient) -> None:
    first, second = topic_with(client), topic_with(client)
    assert change(client, first, ("segment.ms", SET, "5"), ("no.such", SET, "1")).error_code
    api, wanted = "incremental_alter_configs", []
    for topic, name in ((first, "no.such"), (second, "segment.ms")):
        config = part(api, 1, "AlterableConfig", name=name, config_operation=SET, value="7")
        resource = {"resource_type": TOPIC, "resource_name": topic, "configs": (config,)}
        wanted.append(part(api, 1, "AlterConfigsResource", **resource))
    answers = client.ask(api, 1, resources=tuple(wanted), validate_only=False).responses
    assert {one.resource_name: one.error_code for one in answers} == {
        first: ErrorCode.invalid_config,
        second: ErrorCode.none,
    }
    until(lambda: value_of(client, second, "segment.ms"), lambda found: found == ("7", OWN))


def test_the_offsets_topic_is_described_as_others_are(client: ProtocolClient) -> None:
    find_group(client, "somebody")
    commit(client, "somebody", topic_with(client), 0, 0)
    found = {one.name: one.value for one in describe(client, "__consumer_offsets").configs}
    assert {"cleanup.policy": "compact", "compression.type": "producer"}.items() <= found.items()
    assert found.keys() >= {"segment.bytes", "retention.ms"}


def test_configs_of_nobody_are_not_changed(client: ProtocolClient) -> None:
    assert change(client, "nobody", ("retention.ms", SET, "5")).error_code == ErrorCode.unknown_topic_or_partition
    assert replace(client, "nobody", {"retention.ms": "5"}).error_code == ErrorCode.unknown_topic_or_partition


def test_a_topic_with_a_wrong_config_is_not_made(client: ProtocolClient) -> None:
    for wrong in ({"no.such": "1"}, {"retention.ms": "soon"}, {"cleanup.policy": "archive"}):
        name, answer = create(client, wrong)
        assert answer.error_code == ErrorCode.invalid_config, wrong
        assert describe(client, name).error_code == ErrorCode.unknown_topic_or_partition


def test_of_many_topics_in_one_request_those_that_can_be_are_made(client: ProtocolClient) -> None:
    there, word = topic_with(client), f"many-{next(NUMBERS)}"
    names = [f"{word}.a", there, f"{word}-twice", f"{word}-twice", f"{word}-b", "no name", f"{word}-c"]
    wanted = []
    for number, name in enumerate(names):
        partitions = {"num_partitions": number + 1, "replication_factor": 1, "assignments": (), "configs": ()}
        wanted.append(part("create_topics", 7, "CreatableTopic", name=name, **partitions))
    answers = client.ask("create_topics", 7, topics=tuple(wanted), timeout=MINUTE, validate_only=False).topics
    assert {one.name: one.error_code for one in answers} == {
        f"{word}.a": ErrorCode.none,
        there: ErrorCode.topic_already_exists,
        f"{word}-twice": ErrorCode.invalid_request,
        f"{word}-b": ErrorCode.none,
        "no name": ErrorCode.invalid_topic_exception,
        f"{word}-c": ErrorCode.none,
    }
    counts = {one.name: one.num_partitions for one in answers if one.error_code == ErrorCode.none}
    assert counts == {f"{word}.a": 1, f"{word}-b": 5, f"{word}-c": 7}
    until(lambda: describe(client, f"{word}-c").error_code, lambda code: code == ErrorCode.none)
    assert describe(client, f"{word}-twice").error_code == ErrorCode.unknown_topic_or_partition


def test_records_are_deleted_up_to_an_offset(client: ProtocolClient) -> None:
    topic = topic_with(client)
    started = now_ms()
    for number in range(5):
        send(client, topic, batch((b"k", b"%d" % number), (b"k", b"x"), timestamp_ms=started + number))
    for version, offset in ((0, 3), (1, 4), (2, 5)):
        assert delete_before(client, topic, offset, version) == (ErrorCode.none, offset)
        assert starts_at(client, topic) == offset
        assert fetch(client, topic, offset - 1).error_code == ErrorCode.offset_out_of_range
        found = fetch(client, topic, offset)
        assert (found.error_code, found.log_start_offset, found.high_watermark) == (ErrorCode.none, offset, 10)
        assert offset_at(client, topic, started) == (ErrorCode.none, offset)
    assert delete_before(client, topic, 2) == (ErrorCode.none, 5)
    assert delete_before(client, topic, 11) == (ErrorCode.offset_out_of_range, -1)
    assert delete_before(client, topic, -2)[0] == ErrorCode.offset_out_of_range
    assert delete_before(client, topic, -1) == (ErrorCode.none, 10)
    assert (starts_at(client, topic), offset_at(client, topic, -1)[1]) == (10, 10)
    assert offset_at(client, topic, started) == (ErrorCode.none, -1)
    assert send(client, topic, batch((b"k", b"v"))).base_offset == 10
    assert fetch(client, topic, 10).records
    assert delete_before(client, topic, 0, partition=7)[0] == ErrorCode.unknown_topic_or_partition
    assert delete_before(client, "nobody", 0)[0] == ErrorCode.unknown_topic_or_partition


SPECIAL = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11, -7: 99}
"""Of the times that are none, the version of ListOffsets from which on each is known."""


@pytest.mark.parametrize("version", [1, 6, 7, 8, 9, 11])
def test_special_times_where_records_are_deleted(client: ProtocolClient, version: int) -> None:
    """The record with the latest time (-3) is told of after it was deleted, as long as its segment is there."""
    topic, started = topic_with(client), now_ms()
    for later in (1, 3, 3, 2, 0):
        send(client, topic, batch((b"k", b"v"), (b"k", b"x"), timestamp_ms=started + later))

    def found(when: int) -> tuple[ErrorCode, int, int, bool]:
        wanted = part(
            "list_offsets", version, "ListOffsetsPartition", partition_index=0, timestamp=when, current_leader_epoch=-1
        )
        topics = (part("list_offsets", version, "ListOffsetsTopic", name=topic, partitions=(wanted,)),)
        values = {"replica_id": -1, "isolation_level": 0, "timeout": MINUTE}
        answer = ask(client, "list_offsets", version, **values, topics=topics).topics[0].partitions[0]
        return answer.error_code, answer.timestamp, answer.offset, getattr(answer, "leader_epoch", 0) >= 0

    none = ErrorCode.none
    no_epoch = version < 4  # told of nothing, so that it is not held against this
    for start in (0, 1, 3, 6, 9, 10):
        assert delete_before(client, topic, start) == (none, start)
        known = {
            -1: (none, -1, 10, True),
            -2: (none, -1, start, True),
            -3: (none, started + 3, 2, True),
            -4: (none, -1, start, True),
            -5: (none, -1, -1, no_epoch),
            -6: (none, -1, -1, no_epoch),
        }
        for when, since in SPECIAL.items():
            unknown = (ErrorCode.unsupported_version, -1, -1, no_epoch)
            assert found(when) == (known[when] if version >= since else unknown), (start, when)


def test_records_of_a_compacted_topic_are_not_deleted(client: ProtocolClient) -> None:
    topic = topic_with(client, cleanup_policy="compact")
    send(client, topic, batch((b"k", b"v")))
    assert delete_before(client, topic, 1) == (ErrorCode.policy_violation, -1)


def test_segments_beyond_the_size_go(client: ProtocolClient) -> None:
    topic = topic_with(client, segment_bytes=str(MEGABYTE), retention_bytes=str(2 * MEGABYTE))
    for _ in range(8):
        send(client, topic, batch((b"k", bytes(600_000))))
    start = until(lambda: starts_at(client, topic), lambda start: start > 0)
    assert 3 <= until(lambda: starts_at(client, topic), lambda now: now >= 4) <= 5, start
    assert fetch(client, topic, 0).error_code == ErrorCode.offset_out_of_range
    assert offset_at(client, topic, -1)[1] == 8


def test_old_segments_go_and_the_offsets_go_on(client: ProtocolClient) -> None:
    topic = topic_with(client, retention_ms="60000")
    send(client, topic, batch((b"k", b"old"), timestamp_ms=now_ms() - 120_000))
    until(lambda: starts_at(client, topic), lambda start: start == 1)
    assert send(client, topic, batch((b"k", b"new"))).base_offset == 1
    assert fetch(client, topic, 1).records
    change(client, topic, ("retention.ms", SET, "-1"))
    until(lambda: value_of(client, topic, "retention.ms"), lambda found: found[0] == "-1")
    assert starts_at(client, topic) == 1


def test_a_segment_is_begun_after_its_time(client: ProtocolClient) -> None:
    topic = topic_with(client, segment_ms="60000")
    for age in (7_200_000, 7_190_000, 7_000_000, 1_000):
        send(client, topic, batch((b"k", b"v"), timestamp_ms=now_ms() - age))
    change(client, topic, ("retention.ms", SET, "3600000"))  # a part of them would be over before the rest is there
    assert until(lambda: starts_at(client, topic), lambda start: start > 0) in (2, 3)
    until(lambda: starts_at(client, topic), lambda start: start == 3)
    assert fetch(client, topic, 3).records


def test_the_brokers_time(client: ProtocolClient) -> None:
    topic = topic_with(client, message_timestamp_type="LogAppendTime")
    before = now_ms()
    for version in (3, 7, 9):
        sent = send(client, topic, batch((b"k", b"a"), (b"k", b"b"), timestamp_ms=before - 500_000), version)
        assert before <= sent.log_append_time.timestamp() * 1_000 <= now_ms() + 1
        stored = fetch(client, topic, sent.base_offset).records
        assert [record.timestamp_ms for record in decode_records(stored)] == 2 * [
            round(sent.log_append_time.timestamp() * 1_000)
        ]
        assert next(batches(stored))[1].attributes & 0x08
    assert offset_at(client, topic, before)[1] == 0
    change(client, topic, ("message.timestamp.type", SET, "CreateTime"))
    until(lambda: value_of(client, topic, "message.timestamp.type")[0], lambda found: found == "CreateTime")
    sent = send(client, topic, batch((b"k", b"c"), timestamp_ms=before))
    stored = fetch(client, topic, sent.base_offset).records
    assert decode_records(stored)[0].timestamp_ms == before


def test_a_topics_own_limit_of_a_batch(client: ProtocolClient) -> None:
    topic = topic_with(client, max_message_bytes="1000")
    assert send(client, topic, batch((b"k", bytes(2_000)))).error_code == ErrorCode.message_too_large
    change(client, topic, ("max.message.bytes", SET, "5000"))
    until(lambda: send(client, topic, batch((b"k", bytes(2_000)))).error_code, lambda code: code == ErrorCode.none)


def everything(client: ProtocolClient, topic: str) -> dict[int, tuple[bytes | None, bytes | None]]:
    """All records, as a client reads them: from batch to batch."""
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    offset, end = starts_at(client, topic), offset_at(client, topic, -1)[1]
    while offset < end:
        records = fetch(client, topic, offset).records
        for at, header in batches(records):
            found |= {record.offset: (record.key, record.value) for record in decode_records(records, at)}
            offset = header.next_offset
    return found


def test_compaction_keeps_the_last_record_of_every_key(client: ProtocolClient) -> None:
    topic = topic_with(
        client, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", segment_ms="100", delete_retention_ms="0"
    )
    assert send(client, topic, batch((b"k", b"v"), (b"", b"v"))).error_code == ErrorCode.none
    without_key = encode_batch([NewRecord(None, b"v")], timestamp_ms=now_ms())
    assert send(client, topic, without_key).error_code == ErrorCode.invalid_record
    some = encode_batch([NewRecord(b"k", b"v"), NewRecord(None, b"v"), NewRecord(b"k", b"v")], timestamp_ms=now_ms())
    refused = send(client, topic, some)
    assert refused.error_code == ErrorCode.invalid_record
    assert [error.batch_index for error in refused.record_errors] == [1]
    assert refused.record_errors[0].batch_index_error_message
    sent = now_ms()
    rows = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None), (b"c", b"1"), (b"a", b"3"), (b"k", b"w")]
    for number, row in enumerate(rows):
        send(client, topic, batch(row, timestamp_ms=sent + 200 * number))
    end = send(client, topic, batch((b"end", b"1"), timestamp_ms=sent + 10_000)).base_offset
    expected = {1: (b"", b"v"), 6: (b"c", b"1"), 7: (b"a", b"3"), 8: (b"k", b"w"), end: (b"end", b"1")}

    def seen() -> dict[int, tuple[bytes | None, bytes | None]]:
        # A tombstone stays until a later compaction, which needs something to compact.
        send(client, topic, batch((b"end", b"1"), timestamp_ms=now_ms() + 1_800_000 + 1_000 * next(NUMBERS)))
        found = everything(client, topic)
        return {offset: row for offset, row in found.items() if row[0] != b"end"}

    until(seen, lambda found: found == {offset: row for offset, row in expected.items() if row[0] != b"end"})
    assert starts_at(client, topic) == 0
