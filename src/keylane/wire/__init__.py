"""Kafka's bytes, purely: primitive types, versions, record batches, error codes. No clock, thread, socket or log.

Doors: `batches`, `codes`, `columns`, `conditional_commit`, `control`, `own_apis`, `partition_log`, `primitives`,
`scram`, `transactions`, `versions`.
"""
