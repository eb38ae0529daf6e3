"""Schema Registry's deserializers in a pipeline: Avro, JSON Schema and Protobuf, over HTTP to a registry.

The registry here is a stand-in that keeps schemas in memory and answers the requests of confluent-kafka's own client,
which writes and reads all that the tests produce and consume.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from kit.filling import filling
from kit.stage import Stage

aiohttp = pytest.importorskip("aiohttp", reason="the extra http is not installed")
for needed in ("httpx2", "fastavro", "jsonschema", "google.protobuf"):
    pytest.importorskip(needed, reason=f"the extra schema is not installed: {needed}")

from aiohttp import web  # noqa: E402
from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: E402
from confluent_kafka.schema_registry.avro import AvroSerializer  # noqa: E402
from confluent_kafka.schema_registry.json_schema import JSONSerializer  # noqa: E402
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer  # noqa: E402
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

FLIGHT = {"type": "record", "name": "Flight", "fields": [{"name": "n", "type": "long"}]}
FLIGHT_JSON = {
    "title": "Flight",
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
}


def flight_class() -> Any:
    """What protoc would generate of `message Flight { int64 n = 1; }`."""
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="test", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    file.message_type.add(name="Flight").field.add(
        name="n", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Flight"))


Flight = flight_class()


class Registry:
    """A Schema Registry in memory, on a free port. Use it in a `with` block."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        """By id less 1."""
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Registry:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application()
        application.add_routes(
            [
                web.post("/subjects/{subject}/versions", self._register),
                web.post("/subjects/{subject}", self._lookup),
                web.get("/schemas/ids/{id}", self._by_id),
                web.get("/schemas/guids/{guid}", self._missing),
                web.get("/subjects/{subject}/versions/{version}", self._by_version),
            ]
        )
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
        self._ready.set()
        await self._end.wait()
        await runner.cleanup()

    async def _register(self, request: web.Request) -> web.Response:
        schema = await request.json()
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(request.match_info["subject"], [])
        if number not in versions:
            versions.append(number)
        return web.json_response(self._said(request.match_info["subject"], number))

    async def _lookup(self, request: web.Request) -> web.Response:
        schema = await request.json()
        if schema not in self.schemas:
            return await self._missing(request)
        return web.json_response(self._said(request.match_info["subject"], self.schemas.index(schema) + 1))

    async def _by_id(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        number = int(request.match_info["id"])
        if not 0 < number <= len(self.schemas):
            return await self._missing(request)
        return web.json_response(self._said("", number))

    async def _by_version(self, request: web.Request) -> web.Response:
        versions = self.subjects.get(request.match_info["subject"])
        if not versions:
            return await self._missing(request)
        return web.json_response(self._said(request.match_info["subject"], versions[-1]))

    async def _missing(self, _: web.Request) -> web.Response:
        return web.json_response({"error_code": 40403, "message": "Schema not found"}, status=404)

    def _said(self, subject: str, number: int) -> dict[str, Any]:
        version = self.subjects.get(subject, [number]).index(number) + 1
        return {"id": number, "subject": subject, "version": version, **self.schemas[number - 1]}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("schemas") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Registry() as running:
        yield running


def serializer(form: str, registry: Registry) -> tuple[Any, Any, Any]:
    """What writes, what reads, and how to make the n-th value."""
    client = SchemaRegistryClient({"url": registry.url})
    if form == "avro":
        written: Any = AvroSerializer(client, json.dumps(FLIGHT))
        return written, kl.schema.avro({"url": registry.url}), lambda n: {"n": n}
    if form == "json":
        written = JSONSerializer(json.dumps(FLIGHT_JSON), client)
        return written, kl.schema.json({"url": registry.url}), lambda n: {"n": n}
    written = ProtobufSerializer(Flight, client, {"use.deprecated.format": False})
    return written, kl.schema.protobuf({"url": registry.url}, Flight), lambda n: Flight(n=n)


@pytest.mark.parametrize("form", ["avro", "json", "protobuf"])
def test_a_pipeline_reads_what_the_registrys_serializers_wrote(
    broker: BrokerProcess, registry: Registry, form: str
) -> None:
    stage = Stage(broker.bootstrap, f"schema-{form}")
    stage.create(2)
    stage.create(1, "dead-" + form)
    serialize, deserialize, value = serializer(form, registry)
    context = SerializationContext(stage.topic, MessageField.VALUE)
    values: list[bytes | None] = [serialize(value(number), context) for number in range(20)]
    values[7] = b"not of the registry"
    values[11] = b"\x00\x00\x00\x03\xe7none"  # a schema that nobody has registered
    values[13] = None
    with filling(broker.bootstrap) as producer:
        for number, data in enumerate(values):
            producer.produce(kl.Output(stage.topic, key=b"%d" % number, value=data, partition=number % 2))
    seen: dict[int, Any] = {}

    def handler(record: kl.Record) -> None:
        seen[int(record.key or b"")] = record.value

    snapshot = stage.run(
        handler,
        value_deserializer=deserialize,
        retries=kl.Retries(max_attempts=2, delay_ms=1),
        on_exhausted=kl.DeadLetter("dead-" + form),
    )
    assert seen == {number: value(number) for number in range(20) if number not in (7, 11, 13)} | {13: None}
    assert (snapshot.processed, snapshot.dead_lettered, snapshot.retried) == (18, 2, 2)
    letters = {int(one.key or b""): one for one in stage.read("dead-" + form)}
    assert {number: one.value for number, one in letters.items()} == {number: values[number] for number in (7, 11)}
    assert stage.all_is_committed()


def test_a_deserializer_travels_and_is_made_where_it_is_used(registry: Registry) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    serialize, deserialize, value = serializer("avro", registry)
    data = serialize(value(5), SerializationContext("t", MessageField.VALUE))
    from keylane.consumer.decoding import Field

    for one in (deserialize, cloudpickle.loads(cloudpickle.dumps(deserialize))):
        before = len(registry.asked)
        assert one(data, Field("t", "value", [])) == {"n": 5}
        assert one(data, Field("t", "value", [])) == {"n": 5}
        assert len(registry.asked) == before + 1, "the schema is asked for once"


def test_a_registry_without_an_address_is_refused() -> None:
    with pytest.raises(kl.UsageError, match=r"registry=\{\}: give its settings, 'url' at least"):
        kl.schema.avro({})
