"""Exactly once from a streaming query into Kafka (docs/adr/0087): the sink `keylane` with `delivery=exactly_once`."""
