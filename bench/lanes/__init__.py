"""Lanes beside the engine in one process, and beside micro-batches with threads (`make bench-lanes`)."""
