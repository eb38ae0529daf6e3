"""Apache Kafka's own tools through TLS and SASL, renewing their authentication as they go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import peers
import pytest

from keylane.broker.process import BrokerProcess
from keylane.broker.users import add_user

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Certificates

pytestmark = pytest.mark.soak

PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
REAUTHENTICATE_MS = 1_000
RECORDS = 400
RECORDS_PER_S = 100
"""Four seconds: several renewals."""


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, jvm_peers: None, certificates: Certificates
) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    add_user(folder / "users.json", "alice", "wonder,land=")
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "keylane.users.file": str(folder / "users.json"),
        "ssl.certificate.location": certificates.certificate,
        "ssl.key.location": certificates.key,
        "connections.max.reauth.ms": str(REAUTHENTICATE_MS),
    }
    with BrokerProcess(folder / "data", settings=settings) as process:
        yield process


def client(folder: Path, certificates: Certificates, mechanism: str, password: str) -> str:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    path = folder / "client.properties"
    path.write_text(
        "security.protocol=SASL_SSL\n"
        f"sasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module} required "
        f'username="alice" password="{password}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={certificates.authority}\n"
    )
    return str(path)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_producer_renews_its_authentication(
    broker: BrokerProcess, tmp_path: Path, certificates: Certificates, mechanism: str
) -> None:
    file = client(tmp_path, certificates, mechanism, "wonder,land=")
    rate = ["--max-messages", str(RECORDS), "--throughput", str(RECORDS_PER_S)]
    where = ["--bootstrap-server", broker.bootstrap, "--topic", mechanism, "--command-config", file]
    done = peers.kafka_tool(PRODUCER, *where, *rate)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f'"acked":{RECORDS}' in done.stdout
    assert "was not renewed" not in broker.log.read_text()


def test_a_wrong_password_is_told(broker: BrokerProcess, tmp_path: Path, certificates: Certificates) -> None:
    file = client(tmp_path, certificates, "SCRAM-SHA-512", "guess")
    done = peers.kafka_tool(GROUPS, "--bootstrap-server", broker.bootstrap, "--list", "--command-config", file)
    assert "Authentication failed: invalid credentials" in done.stdout + done.stderr
