"""What handlers remember of requests, by the bytes that stay the same from one to the next.

Clients commit and fetch the same partitions again and again; then all of a frame but its correlation id, and an offset,
was decoded before.
"""

from __future__ import annotations

from typing import Any

MAX_BYTES = 32 * 1024 * 1024
ENTRY_BYTES = 500
"""What an entry takes beside its key, about."""


class KnownRequests:
    """A bounded dictionary: when it is full, all is forgotten and learned anew."""

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}
        self._size = 0
        self.get = self._known.get

    def remember(self, key: bytes, value: Any) -> None:
        if key not in self._known:
            self._size += len(key) + ENTRY_BYTES
        if self._size > MAX_BYTES:
            self._known.clear()
            self._size = len(key) + ENTRY_BYTES
        self._known[key] = value
