"""Deserializers for Confluent's Schema Registry: `keylane.schema.avro`, `json`, `protobuf` (the extra `schema`).

kl.Pipeline(..., value_deserializer=kl.schema.avro({"url": "http://registry:8081"}))
"""

from keylane.kafka.schema import avro, json, protobuf

__all__ = ["avro", "json", "protobuf"]
