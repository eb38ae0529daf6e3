"""`Load`: what the load generator is told to do."""

from __future__ import annotations

from typing import NamedTuple


class Load(NamedTuple):
    """What to do."""

    bootstrap: str
    what: str
    """produce, fetch, single, transactions, session, sessionless, create or delete."""
    topic: str
    size: int = 100
    """Bytes of a record's value."""
    partitions: int = 1
    clients: int = 1
    seconds: float = 4.0
    records: int = 0
    """How many to produce at once, for a topic that is fetched."""
