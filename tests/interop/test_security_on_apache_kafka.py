"""TLS and SASL settings of a pipeline reach every client that it makes, on Apache Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import peers
import pytest

import keylane as kl
from keylane.errors import KeylaneError
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer, read_to_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Certificates

USER, PASSWORD = "alice", "wonderland"
RECORDS = 200


pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def apache_kafka(
    jvm_peers: None, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[peers.ApacheKafka]:
    """Its only listener wants TLS and a password. (The listener's name stays PLAINTEXT.)"""
    store = tmp_path_factory.mktemp("store") / "broker.pem"
    store.write_text(Path(certificates.key).read_text() + Path(certificates.certificate).read_text())
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{USER}" password="{PASSWORD}"'
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": f'{login} user_{USER}="{PASSWORD}";',
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.authority,
    }
    with peers.ApacheKafka(settings) as kafka:
        yield kafka


def secured(kafka: peers.ApacheKafka, certificates: Certificates, **changes: str) -> dict[str, Any]:
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": certificates.authority,
    }
    return settings | {name.replace("_", "."): value for name, value in changes.items()}


def login_of(kafka: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kafka.items() if name != "bootstrap.servers"}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_pipeline_joins_reads_produces_and_commits(
    apache_kafka: peers.ApacheKafka, certificates: Certificates, protocol: str
) -> None:
    kafka = secured(apache_kafka, certificates)
    topics = {f"in-{protocol}": 2, f"out-{protocol}": 1, f"dead-{protocol}": 1}
    assert Admin(kafka).create_topics(topics)
    with BulkProducer(apache_kafka.bootstrap, login_of(kafka)) as producer:
        for number in range(RECORDS):
            producer.produce(
                kl.Output(f"in-{protocol}", key=b"%d" % (number % 7), value=b"%d" % number, partition=number % 2)
            )

    def handler(record: kl.Record) -> kl.Output:
        if record.value == b"13":
            raise kl.Fatal("refused")
        return kl.Output(f"out-{protocol}", value=record.value)

    pipeline = kl.Pipeline(
        kafka=kafka | {"group.id": f"secured-{protocol}", "group.protocol": protocol},
        topics=[f"in-{protocol}"],
        handler=handler,
        offset_reset="earliest",
        on_exhausted=kl.DeadLetter(f"dead-{protocol}"),
    )
    with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
        consumer.run()

    def values(topic: str) -> list[bytes | None]:
        batches = read_to_end(apache_kafka.bootstrap, topic, settings=login_of(kafka))
        return [record.value for batch in batches for record in batch]

    assert set(values(f"out-{protocol}")) == {b"%d" % number for number in range(RECORDS)} - {b"13"}
    assert values(f"dead-{protocol}") == [b"13"]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [("sasl_password", "Invalid username or password"), ("ssl_ca_location", "certificate verify failed")],
)
def test_a_wrong_secret_or_authority_ends_the_run_and_is_not_printed(
    apache_kafka: peers.ApacheKafka, certificates: Certificates, wrong: str, text: str
) -> None:
    values = {"sasl_password": "not the password", "ssl_ca_location": certificates.strangers_authority}
    kafka = secured(apache_kafka, certificates, **{wrong: values[wrong]})
    pipeline = kl.Pipeline(kafka=kafka | {"group.id": "strangers"}, topics=["in-classic"], handler=print)
    with kl.ParallelConsumer(pipeline) as consumer, pytest.raises(KeylaneError, match=text) as caught:
        consumer.run()
    assert PASSWORD not in str(caught.value)
    assert "not the password" not in str(caught.value)
