"""Dead letters of share groups (KIP-1191): the same asserts on our broker and on Apache Kafka 4.4."""

from __future__ import annotations

import functools
import itertools
from operator import eq
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from interop.test_share_group_contract import (
    APACHE_SETTINGS,
    DEADLINE_S,
    GAP,
    GROUP_RESOURCE,
    INVALID_CONFIG,
    MS,
    NONE,
    REJECT,
    RELEASE,
    SETTINGS,
    Group,
    Member,
    until,
)
from kit.either_broker import either_broker
from kit.protocol import ProtocolClient, part
from kit.transaction_requests import find_group

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
TOPIC_NAME, COPIES = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.copy.record.enable"
TAKES = "errors.deadletterqueue.group.enable"
AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
PREFIX = "errors.deadletterqueue.topic.name.prefix"
REJECTED, TOO_OFTEN = b"Offset rejected by client.", b"Offset delivery count exceeded the threshold."
NUMBERS = itertools.count()
Settings = tuple[tuple[str, str], ...]
NO_SETTINGS: Settings = ()
LONG = ("share.record.lock.duration.ms", "30000")
"""No record is over by itself while a test runs."""
COPIED: Settings = ((COPIES, "true"),)
TWICE: Settings = (("share.delivery.count.limit", "2"),)


@pytest.fixture(scope="module", params=["keylane", pytest.param("apache", marks=pytest.mark.soak)])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("broker")
    with either_broker(request.param, folder, SETTINGS, of_apache=APACHE_SETTINGS, since="4.4") as broker:
        yield broker.bootstrap


class Letter(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]
    has_create_time: bool


def alter(client: ProtocolClient, kind: int, name: str, config: str, value: str | None) -> tuple[int, str | None]:
    """None takes a config back."""
    change = part(
        "incremental_alter_configs", 1, "AlterableConfig", name=config, value=value,
        config_operation=1 if value is None else 0,
    )  # fmt: skip
    resource = part(
        "incremental_alter_configs",
        1,
        "AlterConfigsResource",
        resource_type=kind,
        resource_name=name,
        configs=(change,),
    )
    answer = client.ask("incremental_alter_configs", 1, resources=(resource,), validate_only=False).responses[0]
    return int(answer.error_code), answer.error_message


def configs(client: ProtocolClient, kind: int, name: str) -> dict[str, Any]:
    resource = part("describe_configs", 4, "DescribeConfigsResource", resource_type=kind, resource_name=name,
                    configuration_keys=None)  # fmt: skip
    answer = client.ask(
        "describe_configs", 4, resources=(resource,), include_synonyms=True, include_documentation=False
    ).results[0]
    assert answer.error_code == NONE, answer
    return {one.name: one for one in answer.configs}


def new_topic(client: ProtocolClient, partitions: int = 1, prefix: str = "dlq.", **settings: str) -> str:
    """One that takes dead letters, or has other settings."""
    name = f"{prefix}topic-{next(NUMBERS)}"
    given = {TAKES: "true"} if not settings else {one.replace("_", "."): value for one, value in settings.items()}
    rows = tuple(
        part("create_topics", 7, "CreatableTopicConfig", name=one, value=value) for one, value in given.items()
    )
    wanted = part("create_topics", 7, "CreatableTopic", name=name, num_partitions=partitions, replication_factor=1,
                  assignments=(), configs=rows)  # fmt: skip
    answer = client.ask("create_topics", 7, topics=(wanted,), timeout=10_000 * MS, validate_only=False)
    assert answer.topics[0].error_code == NONE, answer
    until(lambda: partitions_of(client, name), lambda found: found == partitions)
    return name


def partitions_of(client: ProtocolClient, topic: str) -> int:
    row = part("metadata", 12, "MetadataRequestTopic", topic_id=None, name=topic)
    answer = client.ask(
        "metadata", 12, topics=(row,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    return len(answer.topics[0].partitions)


def read(bootstrap: str, topic: str, partitions: int = 1) -> list[Letter]:
    """All that there are."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "letters", "enable.auto.commit": False})
    places = [TopicPartition(topic, one, 0) for one in range(partitions)]
    try:
        ends = {one.partition: reader.get_watermark_offsets(one)[1] for one in places}
        reader.assign(places)
        found: list[Letter] = []
        while len(found) < sum(ends.values()):
            message = reader.poll(DEADLINE_S)
            assert message is not None, found
            assert message.error() is None, message.error()
            headers: Any = message.headers()
            key: Any = message.key()
            value: Any = message.value()
            partition: Any = message.partition()
            found.append(Letter(partition, key, value, dict(headers), message.timestamp()[0] == 1))
        return found
    finally:
        reader.close()


class Letters:
    """A group with one member, which has the three records of partition 0 of its topic."""

    def __init__(
        self, bootstrap: str, client: ProtocolClient, topic: str, settings: Settings = NO_SETTINGS, size: int = 0
    ) -> None:
        find_group(client, "share-0")
        self.group = Group(bootstrap, client)
        self.topic = topic
        for name, value in [(TOPIC_NAME, topic), LONG, *settings]:
            assert self.group.configure(name, value) == (NONE, None)
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5_000})
        for number in range(3):
            content = b"v%d" % number + bytes(size)
            producer.produce(self.group.topic, content, b"k%d" % number, headers=[("own", b"x")])
        assert producer.flush(DEADLINE_S) == 0
        self.member: Member = self.group.member()
        self.member.take([(0, 2, 1)])

    def headers(self, offset: int, count: int, message: bytes) -> dict[str, bytes]:
        return {
            "__dlq.errors.topic": self.group.topic.encode(),
            "__dlq.errors.partition": b"0",
            "__dlq.errors.offset": b"%d" % offset,
            "__dlq.errors.group": self.group.name.encode(),
            "__dlq.errors.delivery.count": b"%d" % count,
            "__dlq.errors.message": message,
        }

    def wait_until_over(self) -> None:
        """Nothing of the group is left to do, with letters or without."""
        rows = until(lambda: self.group.offsets(self.group.topic).topics[0].partitions, lambda rows: rows[0].lag == 0)
        assert rows[0].error_code == NONE


def test_a_rejected_record_leaves_word_of_itself(bootstrap: str, client: ProtocolClient) -> None:
    letters = Letters(bootstrap, client, new_topic(client, 2))
    assert letters.member.told((0, 0, [1]), (1, 2, [REJECT])) == NONE
    letters.wait_until_over()
    assert read(bootstrap, letters.topic, 2) == [
        Letter(0, None, None, letters.headers(offset, 1, REJECTED), has_create_time=True) for offset in (1, 2)
    ]


def test_a_letter_may_have_the_records_key_and_value(bootstrap: str, client: ProtocolClient) -> None:
    letters = Letters(bootstrap, client, new_topic(client), COPIED)
    assert letters.member.told((0, 1, [REJECT])) == NONE
    assert letters.member.told((2, 2, [REJECT])) == NONE
    letters.wait_until_over()
    assert read(bootstrap, letters.topic) == [
        Letter(0, b"k%d" % one, b"v%d" % one, letters.headers(one, 1, REJECTED), has_create_time=True)
        for one in range(3)
    ]


def test_large_records_are_copied_one_after_the_other(bootstrap: str, client: ProtocolClient) -> None:
    letters = Letters(bootstrap, client, new_topic(client), COPIED, 600_000)
    assert letters.member.told((0, 2, [REJECT])) == NONE
    letters.wait_until_over()
    found = [
        (one.headers["__dlq.errors.offset"], one.key, len(one.value or b"")) for one in read(bootstrap, letters.topic)
    ]
    assert found == [(b"%d" % one, b"k%d" % one, 600_002) for one in range(3)]


def test_a_record_that_was_delivered_too_often_has_a_letter(bootstrap: str, client: ProtocolClient) -> None:
    """Given back, or its member went; one that is rejected at last was rejected."""
    letters = Letters(bootstrap, client, new_topic(client), TWICE)
    assert letters.member.told((0, 2, [RELEASE])) == NONE
    letters.member.take([(0, 2, 2)])
    assert letters.member.told((0, 0, [RELEASE]), (1, 1, [REJECT])) == NONE
    letters.member.client.close()  # with the third
    letters.wait_until_over()
    found = read(bootstrap, letters.topic)
    assert sorted(one.headers["__dlq.errors.offset"] for one in found) == [b"0", b"1", b"2"]
    assert sorted(found, key=lambda one: one.headers["__dlq.errors.offset"]) == [
        Letter(0, None, None, letters.headers(offset, 2, message), has_create_time=True)
        for offset, message in enumerate((TOO_OFTEN, REJECTED, TOO_OFTEN))
    ]


def test_a_gap_leaves_no_letter(bootstrap: str, client: ProtocolClient) -> None:
    letters = Letters(bootstrap, client, new_topic(client))
    assert letters.member.told((0, 2, [GAP])) == NONE
    letters.wait_until_over()
    assert read(bootstrap, letters.topic) == []


def test_a_group_goes_on_where_its_letters_are_refused(bootstrap: str, client: ProtocolClient) -> None:
    plain = new_topic(client, retention_ms="600000")
    elsewhere = new_topic(client, prefix="letters-")
    small = new_topic(client, errors_deadletterqueue_group_enable="true", max_message_bytes="100")
    compacted = new_topic(client, errors_deadletterqueue_group_enable="true", cleanup_policy="compact")
    for topic in (plain, elsewhere, small, compacted):
        letters = Letters(bootstrap, client, topic)
        assert letters.member.told((0, 2, [REJECT])) == NONE
        letters.wait_until_over()
        assert read(bootstrap, topic) == []
    letters = Letters(bootstrap, client, "dlq.nowhere")
    assert letters.member.told((0, 2, [REJECT])) == NONE
    letters.wait_until_over()
    assert partitions_of(client, "dlq.nowhere") == 0


def test_letters_go_in_batches_that_their_topic_takes(bootstrap: str, client: ProtocolClient) -> None:
    topic = new_topic(client, errors_deadletterqueue_group_enable="true", max_message_bytes="350")
    letters = Letters(bootstrap, client, topic)
    assert letters.member.told((0, 2, [REJECT])) == NONE
    letters.wait_until_over()
    assert [one.headers["__dlq.errors.offset"] for one in read(bootstrap, topic)] == [b"0", b"1", b"2"]


def test_a_topic_of_append_time_keeps_it(bootstrap: str, client: ProtocolClient) -> None:
    topic = new_topic(client, errors_deadletterqueue_group_enable="true", message_timestamp_type="LogAppendTime")
    letters = Letters(bootstrap, client, topic)
    assert letters.member.told((0, 2, [REJECT])) == NONE
    letters.wait_until_over()
    assert [one.has_create_time for one in read(bootstrap, topic)] == [False] * 3


def test_what_the_broker_allows_is_changed_while_it_runs(bootstrap: str, client: ProtocolClient) -> None:
    broker = str(client.ask("describe_cluster", 0, include_cluster_authorized_operations=False).brokers[0].broker_id)
    shown = configs(client, BROKER_RESOURCE, broker)
    assert [(shown[one].value, shown[one].read_only) for one in (AUTO_CREATE, PREFIX)] == [
        ("false", False), ("dlq.", False),
    ]  # fmt: skip
    topic = f"made-{next(NUMBERS)}"
    changed = {AUTO_CREATE: "true", PREFIX: "made-"}
    for name, value in changed.items():
        assert alter(client, BROKER_RESOURCE, broker, name, value) == (NONE, None)
    until(
        lambda: configs(client, BROKER_RESOURCE, broker),
        lambda shown: all(shown[one].value == value for one, value in changed.items()),
    )
    try:
        letters = Letters(bootstrap, client, topic)
        assert letters.member.told((0, 2, [REJECT])) == NONE
        letters.wait_until_over()
    finally:
        for name in changed:
            assert alter(client, BROKER_RESOURCE, broker, name, None) == (NONE, None)
    assert len(read(bootstrap, topic)) == 3
    own = {one.name: one.value for one in configs(client, TOPIC_RESOURCE, topic).values() if one.config_source == 1}
    assert own == {TAKES: "true", "message.timestamp.type": "CreateTime"}


def test_configs_of_the_group_and_the_topic(bootstrap: str, client: ProtocolClient) -> None:
    find_group(client, "share-0")
    group = f"configured-{next(NUMBERS)}"
    shown = configs(client, GROUP_RESOURCE, group)
    assert [(shown[one].value, int(shown[one].config_type)) for one in (TOPIC_NAME, COPIES)] == [("", 2), ("false", 1)]
    for value in ("x", "dlq.letters", "no topic's name!", ""):
        assert alter(client, GROUP_RESOURCE, group, TOPIC_NAME, value) == (NONE, None)
        found = until(lambda: configs(client, GROUP_RESOURCE, group)[TOPIC_NAME].value, functools.partial(eq, value))
        assert found == value
    for name, value in ((TOPIC_NAME, "__letters"), (COPIES, "maybe")):
        code, message = alter(client, GROUP_RESOURCE, group, name, value)
        assert code == INVALID_CONFIG
        assert message is not None
        assert name in message
    topic = new_topic(client, retention_ms="600000")
    assert configs(client, TOPIC_RESOURCE, topic)[TAKES].value == "false"


def level(client: ProtocolClient, wanted: int) -> None:
    """Of share.version."""
    update = part("update_features", 1, "FeatureUpdateKey", feature="share.version", max_version_level=wanted,
                  upgrade_type=2 if wanted < 2 else 1)  # fmt: skip
    answer = client.ask("update_features", 1, timeout=10_000 * MS, feature_updates=(update,), validate_only=False)
    assert answer.error_code == NONE, answer

    def present() -> int | None:
        said = client.ask("api_versions", 4, client_software_name="test", client_software_version="1")
        return next((one.max_version_level for one in said.finalized_features if one.name == "share.version"), None)

    until(present, lambda found: found == wanted)


def test_an_older_level_of_the_feature_has_no_letters(bootstrap: str, client: ProtocolClient) -> None:
    letters = Letters(bootstrap, client, new_topic(client))
    level(client, 1)
    try:
        assert letters.member.told((0, 2, [REJECT])) == NONE
        letters.wait_until_over()
    finally:
        level(client, 2)
    assert read(bootstrap, letters.topic) == []


def test_a_member_that_goes_gives_up_nothing_but_what_was_delivered_too_often(
    bootstrap: str, client: ProtocolClient
) -> None:
    letters = Letters(bootstrap, client, new_topic(client), TWICE)
    assert letters.member.told((0, 0, [RELEASE])) == NONE
    letters.member.take([(0, 0, 2)])
    letters.member.client.close()
    other = letters.group.member()
    other.take([(1, 2, 2)])
    assert other.told((1, 2, [1])) == NONE
    letters.wait_until_over()
    assert [one.headers["__dlq.errors.offset"] for one in read(bootstrap, letters.topic)] == [b"0"]
