"""How much all connections together may take of the broker: how many there are, and the memory of their requests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from keylane.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.broker.config import BrokerConfig


class TooManyConnectionsError(PeerError):
    """A client connected above `max.connections` or `max.connections.per.ip`; the new connection is closed."""


class ConnectionLimits:
    """Counts connections, by the address that they come from."""

    def __init__(self, config: BrokerConfig) -> None:
        self._most = config.max_connections
        self._most_of_one = config.max_connections_per_ip
        self._overrides = config.connection_limits()
        self._counts: Counter[str] = Counter()
        self._total = 0

    def enter(self, host: str) -> None:
        """One more, also when it is refused: `leave` follows either way. Raises `TooManyConnectionsError`."""
        self._total += 1
        self._counts[host] += 1
        if self._total > self._most:
            raise TooManyConnectionsError(f"there are {self._most} connections already (max.connections)")
        most = self._overrides.get(host, self._most_of_one)
        if self._counts[host] > most:
            raise TooManyConnectionsError(f"{host} has {most} connections already (max.connections.per.ip)")

    def leave(self, host: str) -> None:
        self._total -= 1
        self._counts[host] -= 1
        if not self._counts[host]:
            del self._counts[host]


class RequestMemory:
    """Bytes of all requests that have arrived, or are arriving, and are not answered (`queued.max.request.bytes`).

    A request whose size is known counts as a whole. When the limit is reached, what is arriving is read to its end, as
    in Kafka, and no new request is begun: so it is passed by one request a connection at most, and nothing can stand
    still for ever.
    """

    def __init__(self, limit: int, on_turn: Callable[[], None]) -> None:
        """`limit` -1: none. `on_turn` is called when it becomes full, and when there is room again."""
        self._limit = limit
        self._on_turn = on_turn
        self.held = 0

    @property
    def is_full(self) -> bool:
        return 0 <= self._limit <= self.held

    def change(self, by: int) -> None:
        was_full = self.is_full
        self.held += by
        if was_full is not self.is_full:
            self._on_turn()
