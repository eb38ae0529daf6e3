"""What a broker lists of resources that have configs (KIP-1142): the same on ours and on Apache Kafka."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from kit.protocol import part

if TYPE_CHECKING:
    from kit.protocol import ProtocolClient

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
DEADLINE_S = 20.0
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
