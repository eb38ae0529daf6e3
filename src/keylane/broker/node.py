"""The node: what all handlers share. It owns the data folder, the topics with their logs, and the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from keylane.broker.config import BrokerConfig


class Topics(Protocol):
    """The registry of topics, as handlers read it."""

    def exists(self, name: str) -> bool: ...
    def partition_count(self, name: str) -> int | None: ...
    def topic_id(self, name: str) -> UUID | None: ...


class Node:
    """One broker. Made by `Node.open`, closed by `close`."""

    node_id: int
    host: str
    """What clients are told to connect to."""
    port: int
    cluster_id: str
    config: BrokerConfig
    topics: Topics
    coordinator: Any
    clock: Callable[[], int]
    """Milliseconds since the epoch."""
