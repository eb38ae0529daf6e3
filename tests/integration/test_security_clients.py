"""TLS and SASL with the Python clients: who may enter does all that they want, and the others are told why not."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

import keylane
from keylane.broker.process import BrokerProcess
from keylane.broker.users import add_user
from keylane.cli.main import main
from keylane.coordinator.replicated.journal import Refused
from keylane.coordinator.transactions.transactional_ids import Producer as Epoch
from keylane.errors import BrokerUnavailableError
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer, read_to_end
from keylane.kafka.conditional import Change, ConditionalCommits
from keylane.kafka.link import Link, address_of
from keylane.kafka.login import LoginError, before_login_of, login_of
from keylane.kafka.presence import offers_kip_848
from keylane.offset_servers.between import encode_error
from keylane.records import Output
from keylane.wire import codes
from keylane.wire.own_apis import BEGIN_FORWARDING
from keylane.wire.primitives import string
from keylane.wire.versions import encode_response
from kit.log_writer import LogWriter
from kit.offset_servers import OffsetServers
from kit.processes import Stopwatch
from kit.samples import sample_request
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Certificates

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
USER, PASSWORD = "alice", "wonder=land, 北"
TIMEOUT_S = 20
NO_MEMBER = {"generation_id_or_member_epoch": -1, "partition_index": 0, "committed_offset": 5}
NOT_NOW = (b"\0\x0e", b"\0\x10")
"""How an answer for one partition ends: COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR."""


@pytest.fixture(scope="module")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users.json"
    add_user(path, USER, PASSWORD)
    return path


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, users_file: Path, certificates: Certificates
) -> Iterator[BrokerProcess]:
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "keylane.users.file": str(users_file),
        "ssl.certificate.location": certificates.certificate,
        "ssl.key.location": certificates.key,
        "connection.failed.authentication.delay.ms": "0",
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=settings) as process:
        yield process


def librdkafka(certificates: Certificates, mechanism: str, **changes: str) -> dict[str, Any]:
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": certificates.authority,
    }
    return settings | {name.replace("_", "."): value for name, value in changes.items()}


def python_clients(certificates: Certificates, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    """kafka-python and aiokafka have the same names. Python 3.13 asks more of certificates than librdkafka does."""
    context = ssl.create_default_context(cafile=certificates.authority)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": password,
        "ssl_context": context,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_produces_and_reads(broker: BrokerProcess, certificates: Certificates, mechanism: str) -> None:
    settings = librdkafka(certificates, mechanism)
    with BulkProducer(broker.bootstrap, settings) as producer:
        producer.produce(Output("confluent", value=mechanism.encode()))
    found = [
        record.value for batch in read_to_end(broker.bootstrap, "confluent", settings=settings) for record in batch
    ]
    assert mechanism.encode() in found


def test_a_log_of_our_own(broker: BrokerProcess, certificates: Certificates) -> None:
    settings = {"bootstrap.servers": broker.bootstrap} | librdkafka(certificates, MECHANISMS[1])
    Admin(settings).create_topics({"fenced": 1}, config={"cleanup.policy": "compact"})
    with LogWriter(settings, "fenced") as writer:
        writer.init()
        for number in range(20):
            writer.append(b"%d" % number * 1_000)
        assert [writer.answer() for _ in range(20)] == list(range(20))
        assert writer.values() == [b"%d" % number * 1_000 for number in range(20)]
    with LogWriter(settings | {"sasl.password": "wrong"}, "fenced") as writer:
        refused = writer.init()
        assert isinstance(refused, Refused)
        assert "the broker refuses the login" in refused.reason
        writer.producer = Epoch(1, 0)
        writer.append(b"never")
        late = writer.answer()
        assert isinstance(late, Refused)
        assert "the broker refuses the login" in late.reason


def test_offset_servers(broker: BrokerProcess, users_file: Path, certificates: Certificates, tmp_path: Path) -> None:
    """TLS and SASL from the client to the server, and from there to the broker that it passes on to."""
    properties = write_properties(tmp_path / "log.properties", librdkafka(certificates, MECHANISMS[2]))
    settings = {
        "keylane.users.file": str(users_file),
        "ssl.certificate.location": certificates.certificate,
        "ssl.key.location": certificates.key,
        "offsets.topic.num.partitions": "2",
    }
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    options += ["--allow-unreplicated-log", "--command-config", properties]
    with OffsetServers(broker.bootstrap, tmp_path, 1, *options, protocol="SASL_SSL") as servers:
        servers.settled()
        client = librdkafka(certificates, MECHANISMS[0])
        with BulkProducer(servers.bootstrap, client) as producer:
            producer.produce(Output("relayed", value=b"1"))
        found = [one.value for batch in read_to_end(servers.bootstrap, "relayed", settings=client) for one in batch]
        assert found == [b"1"]
        admin = Admin({"bootstrap.servers": servers.bootstrap} | client)
        admin.commit_offsets("relayed", {("relayed", 0): 1})
        assert admin.committed_offsets("relayed")["relayed", 0].offset == 1
        with pytest.raises(BrokerUnavailableError):
            Admin({"bootstrap.servers": servers.bootstrap} | client | {"sasl.password": "x"}, timeout_ms=2_000).topics()
        add_user(users_file, "groups", "of its own")
        places = {"bootstrap.servers": broker.bootstrap, "offsets.servers": servers.bootstrap, "group.id": "apart"}
        own = {"offsets.sasl.username": "groups", "offsets.sasl.password": "of its own"}
        assert consumed(places | client | own, "relayed") == [b"1"]
        committed = Admin(places | client | own).committed_offsets("apart")
        assert committed["relayed", 0].offset == 1
        with pytest.raises(keylane.PeerError, match="invalid credentials"):
            consumed(places | client | own | {"offsets.sasl.password": "of another"}, "relayed")


def consumed(kafka: dict[str, Any], topic: str) -> list[bytes]:
    """What keylane's consumer reads, to the end."""
    seen: list[bytes] = []
    pipeline = keylane.Pipeline(
        kafka=kafka, topics=[topic], handler=lambda record: seen.append(record.value), offset_reset="earliest"
    )
    with keylane.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
        consumer.run()
    return seen


@pytest.mark.full
def test_offset_servers_log_in_at_each_other(
    broker: BrokerProcess, users_file: Path, certificates: Certificates, tmp_path: Path
) -> None:
    """The server that a client is at authenticates it; the one that leads its group believes the servers' user."""
    add_user(users_file, "servers", "their own")
    at_servers = librdkafka(certificates, MECHANISMS[1], sasl_username="servers", sasl_password="their own")
    options = ["--command-config", write_properties(tmp_path / "log", librdkafka(certificates, MECHANISMS[2]))]
    options += ["--servers-config", write_properties(tmp_path / "servers", at_servers)]
    settings = {
        "keylane.users.file": str(users_file),
        "ssl.certificate.location": certificates.certificate,
        "ssl.key.location": certificates.key,
    }
    options += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    options += ["--set", "offsets.topic.num.partitions=2"]
    with OffsetServers(
        broker.bootstrap, tmp_path, 2, *options, "--allow-unreplicated-log", protocol="SASL_SSL"
    ) as servers:
        servers.settled()
        client = login_of(librdkafka(certificates, MECHANISMS[0]))
        for server in servers.running:
            with closing(Link(address_of(server.address), client, TIMEOUT_S)) as link:
                for group in ("a", "b"):  # of two offsets partitions, and so of two servers
                    request = sample_request("offset_commit", 2, group_id=group, member_id="", **NO_MEMBER)
                    deadline = time.monotonic() + TIMEOUT_S
                    while (answer := link.ask(8, 2, encode_response(request)))[-2:] != b"\0\0":
                        assert answer[-2:] in NOT_NOW, answer
                        assert time.monotonic() < deadline, "it never learns who leads it"
                answer = link.ask(BEGIN_FORWARDING, 0, string("192.0.2.1"))
                assert answer == encode_error(codes.CLUSTER_AUTHORIZATION_FAILED), "a client is no server"
        found = servers.status()["servers"]
        assert all(one["answered"] >= 2 and one["forwarded"] >= 1 for one in found), found


def write_properties(path: Path, settings: dict[str, Any]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_conditional_commits(broker: BrokerProcess, certificates: Certificates, mechanism: str) -> None:
    settings = {"bootstrap.servers": broker.bootstrap} | librdkafka(certificates, mechanism)
    Admin(settings).create_topics({"conditional": 1})
    with ConditionalCommits(settings, mechanism) as commits:
        for offset in range(3):
            commits.commit({("conditional", 0): Change(offset - 1 if offset else None, offset)})
    with (
        ConditionalCommits(settings | {"sasl.password": "wrong"}, mechanism) as commits,
        pytest.raises(LoginError, match="the broker refuses the login"),
    ):
        commits.commit({("conditional", 0): Change(2, 3)})
    untrusted = {name: value for name, value in settings.items() if name != "ssl.ca.location"}
    with (
        ConditionalCommits(untrusted, mechanism, timeout_ms=2_000) as commits,
        pytest.raises(BrokerUnavailableError, match="certificate verify failed"),
    ):
        commits.commit({("conditional", 0): Change(2, 3)})


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER", "GSSAPI"])
def test_what_a_broker_offers_is_asked_before_the_login(
    broker: BrokerProcess, certificates: Certificates, mechanism: str
) -> None:
    settings = librdkafka(certificates, mechanism) | {"sasl.kerberos.service.name": "kafka"}
    assert offers_kip_848(settings, broker.bootstrap)
    with closing(Link(address_of(broker.bootstrap), before_login_of(settings), TIMEOUT_S)) as link:
        assert link.offers(18, 0)
        assert not link.offers(18, 99)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_produces_and_reads(broker: BrokerProcess, certificates: Certificates, mechanism: str) -> None:
    settings = python_clients(certificates, mechanism)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, **settings)
    topic = f"kafka-python-{mechanism}"
    producer.send(topic, b"one").get(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", **settings)
    assert next(consumer).value == b"one"
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_produces_and_reads(broker: BrokerProcess, certificates: Certificates, mechanism: str) -> None:
    topic = f"aiokafka-{mechanism}"

    async def run() -> bytes | None:
        settings = {"bootstrap_servers": broker.bootstrap, **python_clients(certificates, mechanism)}
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"one")
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings) as consumer:
            value: bytes | None = (await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value
            return value

    assert asyncio.run(run()) == b"one"


class Said(logging.Handler):
    """librdkafka's own lines."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage()


def assert_refused(broker: BrokerProcess, settings: dict[str, Any], says: str) -> None:
    """The connection does not come about, and librdkafka says why."""
    said, logger = Said(), logging.Logger("librdkafka")
    logger.addHandler(said)
    client = AdminClient(settings | {"bootstrap.servers": broker.bootstrap}, logger=logger)

    def is_said() -> bool:
        client.poll(0.05)
        return says in said.text

    until(is_said, lambda: said.text)
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.1)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_and_an_unknown_user_are_told_the_same(
    broker: BrokerProcess, certificates: Certificates, mechanism: str
) -> None:
    for change in ({"sasl_password": "guess"}, {"sasl_username": "mallory"}):
        settings = librdkafka(certificates, mechanism, **change)
        assert_refused(broker, settings, "Authentication failed: invalid credentials")


def test_the_other_clients_are_told_too(broker: BrokerProcess, certificates: Certificates) -> None:
    settings = python_clients(certificates, "SCRAM-SHA-256", "guess")
    with pytest.raises(KafkaError):
        KafkaProducer(bootstrap_servers=broker.bootstrap, bootstrap_timeout_ms=500, **settings)

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, **settings)
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(AioKafkaError):
        asyncio.run(run())


def test_a_client_that_does_not_know_the_authority(broker: BrokerProcess, certificates: Certificates) -> None:
    settings = librdkafka(certificates, "PLAIN", ssl_ca_location=certificates.strangers_authority)
    assert_refused(broker, settings, "certificate verify failed")


@pytest.mark.parametrize(
    ("change", "says"),
    [("sasl_password", "correct sasl.username, sasl.password"), ("ssl_ca_location", "correct ssl.ca.location")],
)
def test_a_wrong_password_or_authority_is_told_as_what_it_is_within_five_seconds(
    broker: BrokerProcess, certificates: Certificates, change: str, says: str
) -> None:
    wrong = {"sasl_password": "guess", "ssl_ca_location": certificates.strangers_authority}[change]
    kafka = librdkafka(certificates, "SCRAM-SHA-256", **{change: wrong})
    kafka |= {"bootstrap.servers": broker.bootstrap, "group.id": "g"}
    for ask in (lambda: consumed(kafka, "t"), Admin(kafka).topics, Admin(kafka).groups):
        watch = Stopwatch()
        with pytest.raises(keylane.PeerError, match=says):
            ask()
        assert watch.took_s() < 5


def test_a_client_without_tls(broker: BrokerProcess, certificates: Certificates) -> None:
    settings = librdkafka(certificates, "PLAIN", security_protocol="SASL_PLAINTEXT")
    assert_refused(broker, settings, "Disconnected")


def test_who_is_added_to_a_running_broker_enters_at_once(
    broker: BrokerProcess, users_file: Path, certificates: Certificates
) -> None:
    settings = librdkafka(certificates, "SCRAM-SHA-512", sasl_username="bob", sasl_password="builder")
    assert_refused(broker, settings, "invalid credentials")
    add_user(users_file, "bob", "builder")
    assert AdminClient(settings | {"bootstrap.servers": broker.bootstrap}).list_topics(timeout=TIMEOUT_S).brokers


def test_client_certificates(tmp_path: Path, certificates: Certificates) -> None:
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.certificate.location": certificates.certificate,
        "ssl.key.location": certificates.key,
        "ssl.client.auth": "required",
        "ssl.ca.location": certificates.authority,
    }
    client = {"security.protocol": "SSL", "ssl.ca.location": certificates.authority}
    ours = {"ssl.certificate.location": certificates.certificate, "ssl.key.location": certificates.key}
    theirs = {
        "ssl.certificate.location": certificates.strangers_certificate,
        "ssl.key.location": certificates.strangers_key,
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        producer = Producer(client | ours | {"bootstrap.servers": broker.bootstrap})
        producer.produce("t", b"in")
        assert producer.flush(TIMEOUT_S) == 0
        assert_refused(broker, client, "SSL connection closed by peer")
        assert_refused(broker, client | theirs, "SSL connection closed by peer")
        said = broker.log.read_text()
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in said
    assert "CERTIFICATE_VERIFY_FAILED" in said


def settings_file(folder: Path, bootstrap: str, certificates: Certificates, *, java: bool) -> str:
    """For `--command-config`, in librdkafka's words or in those of Kafka's Java tools."""
    lines = [f"bootstrap.servers={bootstrap}", "security.protocol=SASL_SSL", "sasl.mechanism=SCRAM-SHA-256"]
    if java:
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        lines += [f'sasl.jaas.config={module} required username="{USER}" password="{PASSWORD}";']
        lines += ["ssl.truststore.type=PEM", f"ssl.truststore.location={certificates.authority}"]
    else:
        lines += [f"sasl.username={USER}", f"sasl.password={PASSWORD}", f"ssl.ca.location={certificates.authority}"]
    path = folder / "client.properties"
    path.write_text("\n".join(lines))
    return str(path)


def test_pipelines_and_groups(
    broker: BrokerProcess, tmp_path: Path, certificates: Certificates, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = librdkafka(certificates, "SCRAM-SHA-256")
    Admin(settings | {"bootstrap.servers": broker.bootstrap}).create_topics({"pipeline": 1, "pipeline.out": 1})
    with BulkProducer(broker.bootstrap, settings) as producer:
        for number in range(50):
            producer.produce(Output("pipeline", value=b"%d" % number))
    pipeline = keylane.Pipeline(
        kafka=settings | {"bootstrap.servers": broker.bootstrap, "group.id": "secured"},
        topics=["pipeline"],
        handler=lambda record: Output("pipeline.out", value=record.value),
        offset_reset="earliest",
    )
    with keylane.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
        consumer.run()
    out = [record for batch in read_to_end(broker.bootstrap, "pipeline.out", settings=settings) for record in batch]
    assert len(out) == 50
    for java in (False, True):
        file = settings_file(tmp_path, broker.bootstrap, certificates, java=java)
        assert main(["groups", "describe", "secured", "--command-config", file, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["group"] == "secured"


@pytest.mark.soak
def test_the_demo(
    broker: BrokerProcess, tmp_path: Path, certificates: Certificates, capsys: pytest.CaptureFixture[str]
) -> None:
    file = settings_file(tmp_path, broker.bootstrap, certificates, java=False)
    arguments = ["--records", "300", "--no-spark", "--latency-ms", "1", "--results", str(tmp_path), "--json"]
    assert main(["demo", "--command-config", file, *arguments]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["processed"] == 300
