"""A user that lacks a right is told so, and not that what it may not see does not exist, on Apache Kafka with ACLs."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import peers
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # exported untyped
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

import keylane as kl
from keylane.cli import main
from keylane.errors import KeylaneError, PeerError
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from keylane.kafka.sole_member import SoleMember
from keylane.pipeline import topics_of_operations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
ALLOW = AclPermissionType.ALLOW
GROUP, SEEN, TOLD, HIDDEN = "weather", "airports", "delays", "flights"
SAYS = "TOPIC_AUTHORIZATION_FAILED"


@pytest.fixture(scope="module")
def apache_kafka(jvm_peers: None) -> Iterator[peers.ApacheKafka]:
    """`admin` may do all; `app` may use its group, read a topic and hear of another one."""
    users = 'username="admin" password="admin-secret" user_admin="admin-secret" user_app="app-secret"'
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": f"{LOGIN} {users};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
    }
    with peers.ApacheKafka(settings) as kafka:
        own = login(kafka, "admin")
        names = [SEEN, TOLD, HIDDEN, *topics_of_operations(GROUP), "__keylane_offsets"]
        assert Admin(own).create_topics(dict.fromkeys(names, 1))
        rules = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, "User:app", "*", may, ALLOW)
            for kind, name, may in (
                (ResourceType.GROUP, GROUP, AclOperation.READ),
                (ResourceType.TOPIC, SEEN, AclOperation.READ),
                (ResourceType.TOPIC, TOLD, AclOperation.DESCRIBE),
            )
        ]
        Admin(own).commit_offsets(GROUP, {(HIDDEN, 0): 0})
        client = AdminClient(own)  # kept: its futures end with it
        for future in client.create_acls(rules).values():
            future.result(20)
        yield kafka


def login(kafka: peers.ApacheKafka, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"{user}-secret",
    }


def login_alone(kafka: peers.ApacheKafka, user: str) -> dict[str, Any]:
    return {name: value for name, value in login(kafka, user).items() if name != "bootstrap.servers"}


@pytest.mark.parametrize("topics", [[HIDDEN], kl.Partitions([(HIDDEN, 0)])], ids=["group", "by hand"])
def test_a_member_that_may_not_read_its_topic(apache_kafka: peers.ApacheKafka, topics: Any) -> None:
    kafka = login(apache_kafka, "app") | {"group.id": GROUP}
    pipeline = kl.Pipeline(kafka=kafka, topics=topics, handler=print)
    with pytest.raises(PeerError, match=SAYS), kl.ParallelConsumer(pipeline) as consumer:
        consumer.run()


def test_a_topic_that_may_be_seen_and_not_read_is_named(apache_kafka: peers.ApacheKafka) -> None:
    kafka = login(apache_kafka, "app") | {"group.id": GROUP}
    pipeline = kl.Pipeline(kafka=kafka, topics=[TOLD], handler=print)
    with pytest.raises(PeerError, match=rf"{TOLD}.*{SAYS}"), kl.ParallelConsumer(pipeline) as consumer:
        consumer.run()


def test_why_an_output_may_not_be_produced_is_told(apache_kafka: peers.ApacheKafka) -> None:
    """Not only that it was purged when the producer was given up."""
    with BulkProducer(apache_kafka.bootstrap, login_alone(apache_kafka, "admin")) as producer:
        producer.produce(kl.Output(SEEN, value=b"x"))
    kafka = login(apache_kafka, "app") | {"group.id": GROUP}
    pipeline = kl.Pipeline(
        kafka=kafka, topics=[SEEN], offset_reset="earliest", retries=kl.Retries(max_attempts=1),
        handler=lambda record: kl.Output(TOLD, value=record.value),
    )  # fmt: skip
    with pytest.raises(KeylaneError, match="AUTHORIZATION_FAILED"), kl.ParallelConsumer(pipeline) as consumer:
        consumer.run()


def test_a_topic_that_is_not_there_is_told_so(apache_kafka: peers.ApacheKafka) -> None:
    """By a user who may see topics."""
    kafka = login(apache_kafka, "admin") | {"group.id": GROUP}
    with (
        pytest.raises(kl.UsageError, match="'nothing' does not exist"),
        kl.ParallelConsumer(kl.Pipeline(kafka=kafka, topics=["nothing"], handler=print)) as consumer,
    ):
        consumer.run()
    assert "nothing" not in Admin(kafka).topics(), "who asks makes none"


@pytest.mark.parametrize(
    "options",
    [
        {"outputs": [HIDDEN]},
        {"on_exhausted": kl.DeadLetter(HIDDEN)},
        {"delivery": "transactional"},
        {"kafka": {"group.id": "other"}},
    ],
    ids=["output", "dead letter", "transactional id", "group"],
)
def test_a_member_that_may_not_do_something_else(apache_kafka: peers.ApacheKafka, options: dict[str, Any]) -> None:
    kafka = login(apache_kafka, "app") | {"group.id": GROUP} | options.get("kafka", {})
    pipeline = kl.Pipeline(**(options | {"kafka": kafka}), topics=[SEEN], handler=print)
    with (
        pytest.raises(PeerError, match="AUTHORIZATION_FAILED") as raised,
        kl.ParallelConsumer(pipeline) as consumer,
    ):
        consumer.run()
    assert "does not exist" not in str(raised.value)


def test_lanes_and_frames(apache_kafka: peers.ApacheKafka) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from keylane.spark.group import Group
    from keylane.spark.structured.options import parse_source
    from keylane.spark.structured.topics import Topics

    kafka = login(apache_kafka, "app")
    pipeline = kl.Pipeline(kafka=kafka | {"group.id": GROUP}, topics=[HIDDEN], handler=print)
    with pytest.raises(PeerError, match=SAYS):
        Group(pipeline).end_offsets()
    options = {f"kafka.{name}": value for name, value in kafka.items()}
    with pytest.raises(PeerError, match=SAYS):
        Topics(parse_source(options | {"subscribe": HIDDEN}, streaming=True)).partitions()


def test_a_query_does_not_take_a_topic_for_deleted(
    apache_kafka: peers.ApacheKafka, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = login(apache_kafka, "app") | {"group.id": GROUP}
    with closing(SoleMember(kafka, [HIDDEN], "driver")) as member, pytest.raises(PeerError, match=SAYS):
        member.own({(HIDDEN, 0)}, 10)
    assert "was deleted" not in caplog.text


@pytest.mark.parametrize(
    "command",
    [
        f"groups reset {GROUP} --topic {HIDDEN} --to-earliest",
        f"groups offsets {GROUP} --topic {HIDDEN}:0",
        f"records show {GROUP} {HIDDEN}:0@0",
        f"dlq list {HIDDEN}",
        f"topics describe {HIDDEN}",
        f"operate show {GROUP}",
        "offsets status --allow-unreplicated-log",
        "groups describe other",
        "groups delete other",
    ],
)
def test_commands(
    apache_kafka: peers.ApacheKafka, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in login(apache_kafka, "app").items()))
    code = main([*command.split(), "--command-config", str(file)])
    said = capsys.readouterr().err
    assert "AUTHORIZATION_FAILED" in said
    assert "does not exist" not in said
    assert (code, said.count("\n")) == (1, 1)
