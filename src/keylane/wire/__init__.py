"""Kafka's bytes, purely: frames, versions, record batches, encoders. No clock, thread, socket or log."""
