"""Avro, JSON Schema and Protobuf with Apicurio Registry; it keeps schemas of the first two in a topic of our broker."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keylane.broker.process import BrokerProcess
from keylane.records import Output
from kit.filling import filling
from kit.stage import Stage

for needed in ("httpx2", "fastavro", "jsonschema", "google.protobuf"):
    pytest.importorskip(needed, reason=f"the extra schema is not installed: {needed}")

from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: E402
from confluent_kafka.schema_registry.avro import AvroSerializer  # noqa: E402
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402
from peers.apicurio import Apicurio  # noqa: E402

from kit.schemas import check_pipeline  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.soak

EXAMPLES = Path(__file__).parents[2] / "examples"
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "double"}]}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("registry") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def registry(jvm_peers: None, broker: BrokerProcess) -> Iterator[Apicurio]:
    with Apicurio(broker.bootstrap) as running:
        yield running


@pytest.mark.parametrize("form", ["avro", "json"])
def test_a_pipeline_reads_what_was_written_with_a_real_registry(
    broker: BrokerProcess, registry: Apicurio, form: str
) -> None:
    check_pipeline(Stage(broker.bootstrap, f"registry-{form}"), registry.url, form)


def test_a_pipeline_reads_protobuf_of_a_real_registry(jvm_peers: None, broker: BrokerProcess) -> None:
    with Apicurio() as registry:
        check_pipeline(Stage(broker.bootstrap, "registry-protobuf"), registry.url, "protobuf")


def test_the_example_reads_what_was_written_before_the_registry_was_killed(
    broker: BrokerProcess, registry: Apicurio, tmp_path: Path
) -> None:
    """What it knows afterwards, it has from the broker."""
    stage = Stage(broker.bootstrap, "registry-example")
    for topic in ("orders.avro", "orders.priced", "orders.avro.dead"):
        stage.create(1, topic)
    serialize = AvroSerializer(SchemaRegistryClient({"url": registry.url}), json.dumps(ORDER))
    context = SerializationContext("orders.avro", MessageField.VALUE)
    with filling(broker.bootstrap) as producer:
        for number in range(50):
            producer.produce(Output("orders.avro", b"%d" % number, serialize({"amount": number / 4}, context)))
        producer.produce(Output("orders.avro", b"bad", b"no Avro"))
    registry.kill()
    registry.start()
    file = tmp_path / shutil.copy(EXAMPLES / "read_schemas.py", tmp_path)
    text = file.read_text().replace("127.0.0.1:9092", broker.bootstrap)
    file.write_text(text.replace("http://127.0.0.1:8081", registry.url))
    command = [sys.executable, "-m", "keylane", "run", file.name, "--available-now"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    priced = {one.key: one.value for one in stage.read("orders.priced")}
    assert priced == {b"%d" % number: b"%d" % (number * 25) for number in range(50)}
    assert [one.value for one in stage.read("orders.avro.dead")] == [b"no Avro"]
