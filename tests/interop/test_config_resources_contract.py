"""What a broker lists of resources that have configs (KIP-1142), and what it makes of a group's configs: the same on
ours and on Apache Kafka."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from interop.test_topic_contract import change, value_of
from kit.protocol import part, until

if TYPE_CHECKING:
    from kit.protocol import ProtocolClient

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
DEADLINE_S = 20.0
SET, DELETE = 0, 1
MINUTE = datetime.timedelta(minutes=1)


def listed(client: ProtocolClient, *kinds: int) -> list[tuple[int, str]]:
    answer = client.ask("list_config_resources", 1, resource_types=kinds)
    assert answer.error_code == ErrorCode.none
    return [(row.resource_type, row.resource_name) for row in answer.config_resources]


def until_listed(client: ProtocolClient, kind: int, names: list[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while sorted(listed(client, kind)) != [(kind, name) for name in names]:
        assert time.monotonic() < deadline, f"{listed(client, kind)} after {DEADLINE_S} s"


def set_group_config(client: ProtocolClient, group: str, value: str | None) -> None:
    config = part(
        "incremental_alter_configs", 1, "AlterableConfig", name="consumer.session.timeout.ms",
        config_operation=0 if value else 1, value=value,
    )  # fmt: skip
    resource = part(
        "incremental_alter_configs", 1, "AlterConfigsResource", resource_type=GROUP, resource_name=group,
        configs=(config,),
    )  # fmt: skip
    answer = client.ask("incremental_alter_configs", 1, resources=(resource,), validate_only=False).responses[0]
    assert answer.error_code == ErrorCode.none, answer.error_message


def test_what_has_configs_is_listed_by_type(client: ProtocolClient) -> None:
    wanted = tuple(
        part(
            "create_topics", 7, "CreatableTopic", name=name, num_partitions=1, replication_factor=1, assignments=(),
            configs=(),
        )
        for name in ("b", "a")
    )  # fmt: skip
    client.ask("create_topics", 7, topics=wanted, timeout=MINUTE, validate_only=False)
    until_listed(client, TOPIC, ["a", "b"])
    until_listed(client, GROUP, [])
    set_group_config(client, "group-with", "50000")
    until_listed(client, GROUP, ["group-with"])
    assert listed(client, CLIENT_METRICS) == []
    assert listed(client, BROKER) == [(BROKER, "1")]
    assert listed(client, BROKER_LOGGER) == [(BROKER_LOGGER, "1")]
    everything = [(TOPIC, "a"), (TOPIC, "b"), (BROKER, "1"), (BROKER_LOGGER, "1"), (GROUP, "group-with")]
    assert sorted(listed(client)) == everything
    kinds = [kind for kind, _ in listed(client)]
    assert kinds == [GROUP, BROKER_LOGGER, BROKER, TOPIC, TOPIC]
    assert sorted(listed(client, TOPIC, GROUP, TOPIC)) == [(TOPIC, "a"), (TOPIC, "b"), (GROUP, "group-with")]
    set_group_config(client, "group-with", None)
    until_listed(client, GROUP, [])


def test_a_type_that_there_is_not(client: ProtocolClient) -> None:
    for kinds in ((99,), (TOPIC, 0), (3,)):
        answer = client.ask("list_config_resources", 1, resource_types=kinds)
        assert (answer.error_code, answer.config_resources) == (ErrorCode.unsupported_version, ())


def test_version_0_lists_client_metrics_alone(client: ProtocolClient) -> None:
    answer = client.ask("list_config_resources", 0)
    assert (answer.error_code, answer.config_resources) == (ErrorCode.none, ())


SESSION, RESET, ISOLATION = "consumer.session.timeout.ms", "share.auto.offset.reset", "share.isolation.level"
SINCE_4_4 = {"share.renew.acknowledge.enable", "errors.deadletterqueue.topic.name"}


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        (SESSION, " 46000 ", "46000"),
        (SESSION, "+46000", "46000"),
        (SESSION, "046000", "46000"),
        (SESSION, "\u0664\u0665\u0660\u0660\u0660", "45000"),
        (SESSION, "46_000", None),
        (SESSION, "46000.0", None),
        (SESSION, "", None),
        (RESET, " earliest ", "earliest"),
        (RESET, "Earliest", None),
        (RESET, "by_duration:pt1h", "by_duration:pt1h"),
        (RESET, "by_duration:P1DT+1H0.5S", "by_duration:P1DT+1H0.5S"),
        (RESET, "by_duration:+PT1S", "by_duration:+PT1S"),
        (RESET, "BY_DURATION:PT1H", None),
        (RESET, "by_duration: PT1H", None),
        (RESET, "by_duration:-PT1H", None),
        (RESET, "by_duration:", None),
        (ISOLATION, " read_committed", "read_committed"),
        (ISOLATION, "Read_Committed", None),
        ("share.renew.acknowledge.enable", " FALSE ", "false"),
        ("share.renew.acknowledge.enable", "no", None),
        ("errors.deadletterqueue.topic.name", " Letters ", "Letters"),
        ("errors.deadletterqueue.topic.name", " __letters", None),
    ],
)
def test_a_groups_config_is_kept_as_it_was_understood(
    client: ProtocolClient, name: str, given: str, kept: str | None
) -> None:
    """Trimmed, numbers and truth values in one spelling; None: INVALID_CONFIG."""
    group = "group-of-configs"
    answer = change(client, group, (name, SET, given), kind=GROUP)
    if name in SINCE_4_4 and answer.error_message == f"Unknown group config name: {name}":
        pytest.skip("this broker is older than Apache Kafka 4.4")
    assert answer.error_code == (ErrorCode.none if kept else ErrorCode.invalid_config), answer.error_message
    if kept:
        until(lambda: value_of(client, group, name, GROUP)[0], lambda value: value == kept)
        assert change(client, group, (name, DELETE, None), kind=GROUP).error_code == ErrorCode.none
