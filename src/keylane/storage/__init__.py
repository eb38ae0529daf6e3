"""Append-only logs of Kafka record batches behind a file-system port: what is acknowledged has been synced."""
