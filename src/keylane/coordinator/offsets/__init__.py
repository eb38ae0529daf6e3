"""Committed offsets, purely: what is durable (`store`), what waits for its transaction or a sync, and what is stale."""
