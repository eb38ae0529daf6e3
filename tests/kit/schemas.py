"""Flights as confluent-kafka's serializers write them in each format, and a pipeline that reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import keylane as kl
from kit.filling import filling

if TYPE_CHECKING:
    from kit.stage import Stage

FORMS = ("avro", "json", "protobuf")
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


def serializer(form: str, url: str) -> tuple[Any, Any, Any]:
    """What writes, what reads, and how to make the n-th value."""
    client = SchemaRegistryClient({"url": url})
    if form == "avro":
        written: Any = AvroSerializer(client, json.dumps(FLIGHT))
        return written, kl.schema.avro({"url": url}), lambda n: {"n": n}
    if form == "json":
        written = JSONSerializer(json.dumps(FLIGHT_JSON), client)
        return written, kl.schema.json({"url": url}), lambda n: {"n": n}
    written = ProtobufSerializer(Flight, client, {"use.deprecated.format": False})
    return written, kl.schema.protobuf({"url": url}, Flight), lambda n: Flight(n=n)


def check_pipeline(stage: Stage, url: str, form: str) -> None:
    """A pipeline reads what the registry's serializers wrote, and what it cannot read is a dead letter as it was."""
    dead = f"{stage.topic}-dead"
    stage.create(2)
    stage.create(1, dead)
    serialize, deserialize, value = serializer(form, url)
    context = SerializationContext(stage.topic, MessageField.VALUE)
    values: list[bytes | None] = [serialize(value(number), context) for number in range(20)]
    values[7] = b"not of the registry"
    values[11] = b"\x00\x00\x00\x03\xe7none"  # a schema that nobody has registered
    values[13] = None
    with filling(stage.servers) as producer:
        for number, data in enumerate(values):
            producer.produce(kl.Output(stage.topic, key=b"%d" % number, value=data, partition=number % 2))
    seen: dict[int, Any] = {}

    def handler(record: kl.Record) -> None:
        seen[int(record.key or b"")] = record.value

    snapshot = stage.run(
        handler,
        value_deserializer=deserialize,
        retries=kl.Retries(max_attempts=2, delay_ms=1),
        on_exhausted=kl.DeadLetter(dead),
    )
    assert seen == {number: value(number) for number in range(20) if number not in (7, 11, 13)} | {13: None}
    assert (snapshot.processed, snapshot.dead_lettered) == (18, 2)
    assert snapshot.retried <= 1, "a schema may still be registered; bytes stay as they are"
    letters = {int(one.key or b""): one for one in stage.read(dead)}
    assert {number: one.value for number, one in letters.items()} == {number: values[number] for number in (7, 11)}
    assert stage.all_is_committed()
