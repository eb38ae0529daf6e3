"""Append-only logs of Kafka record batches behind a file-system port: what is acknowledged has been synced.

Doors: `compacting`, `facts`, `filesystem`, `findings`, `log`, `log_view`, `open_log`, `producers`, `recovery`,
`sealed`, `shared_sync`.
"""
