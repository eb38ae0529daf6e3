"""Schema Registry deserializers that travel: `avro`, `json`, `protobuf`. They need the extra `schema`.

The idea: confluent-kafka's own deserializers hold an HTTP client and cannot be pickled, so what a pipeline carries is
how to make them; each process makes its own when the first record comes. Errors of the registry and of the data are
confluent-kafka's, raised in the worker: a failed attempt of the record.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal

from keylane.errors import UsageError
from keylane.telling import ClientSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keylane.consumer.decoding import Field

Format = Literal["avro", "json", "protobuf"]


class RegistryDeserializer:
    """Makes Python values of what Schema Registry's serializers wrote: a function of (bytes or None, context).

    Thread safety: any thread.
    """

    def __init__(self, form: Format, registry: Mapping[str, Any], message: Any, settings: Mapping[str, Any]) -> None:
        if not registry.get("url"):
            raise UsageError(f"registry={ClientSettings(registry)!r}: give its settings, 'url' at least")
        self._how = (form, dict(registry), message, dict(settings))
        self._lock = threading.Lock()
        self._made: Callable[[bytes, Any], Any] | None = None

    def __call__(self, data: bytes | None, context: Field) -> Any:
        if data is None:  # a tombstone
            return None
        made = self._made
        if made is None:
            with self._lock:
                made = self._made = self._made or _make(*self._how)
        return made(data, _context(context))

    def __reduce__(self) -> tuple[Any, ...]:
        return (RegistryDeserializer, self._how)


def avro(registry: Mapping[str, Any], **settings: Any) -> RegistryDeserializer:
    """For Avro. `registry` are confluent-kafka's settings of a Schema Registry client (`url`, credentials, TLS);
    `settings` are further arguments of its `AvroDeserializer`."""
    return RegistryDeserializer("avro", registry, None, settings)


def json(registry: Mapping[str, Any], schema: str | None = None, **settings: Any) -> RegistryDeserializer:
    """For JSON Schema: the value is checked against `schema`, or else against the one that it was written with."""
    return RegistryDeserializer("json", registry, schema, settings)


def protobuf(registry: Mapping[str, Any], message: type[Any], **settings: Any) -> RegistryDeserializer:
    """For Protobuf: `message` is the generated class."""
    return RegistryDeserializer("protobuf", registry, message, settings)


def _make(form: Format, registry: dict[str, Any], message: Any, settings: dict[str, Any]) -> Callable[..., Any]:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        client = SchemaRegistryClient(registry)
        made: Callable[..., Any]
        if form == "avro":
            from confluent_kafka.schema_registry.avro import AvroDeserializer

            made = AvroDeserializer(client, **settings)
        elif form == "json":
            from confluent_kafka.schema_registry.json_schema import JSONDeserializer

            made = JSONDeserializer(message, schema_registry_client=client, **settings)
        else:
            from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

            made = ProtobufDeserializer(message, {"use.deprecated.format": False}, client, **settings)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"Schema Registry deserializers need {error.name}: run `pip install 'keylane[schema]'`"
        ) from None
    return made


def _context(field: Field) -> Any:
    from confluent_kafka.serialization import MessageField, SerializationContext

    headers: list[tuple[str, str | bytes | None]] = list(field.headers)
    return SerializationContext(field.topic, MessageField(field.field), headers)
