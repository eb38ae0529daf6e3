"""Kafka's bytes, purely: primitive types, versions, record batches, error codes. No clock, thread, socket or log.

Doors: `batches`, `codes`, `columns`, `conditional_commit`, `control`, `partition_log`, `primitives`, `scram`,
`transactions`, `versions`.
"""
