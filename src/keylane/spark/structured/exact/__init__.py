"""Exactly once from a streaming query into Kafka (docs/adr/0088): the sink `keylane` with `delivery=exactly_once`."""
