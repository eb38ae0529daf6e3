"""Kafka's bytes, purely: primitive types, versions, record batches, error codes. No clock, thread, socket or log."""
