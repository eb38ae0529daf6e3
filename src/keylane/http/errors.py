"""What goes wrong with a request: each error says whether another attempt can help, and when."""

from __future__ import annotations

from keylane.errors import Fatal, PeerError


class HttpError(PeerError):
    """No usable answer: no connection, no answer in time, or a body that is too long. The record is tried again."""


class StatusError(HttpError):
    """An answer with a status that is worth another attempt."""

    def __init__(self, text: str, status: int, retry_after_ms: int | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_ms = retry_after_ms
        """The server's Retry-After, in milliseconds; None without one. The next attempt waits as long."""


class RefusedError(StatusError, Fatal):
    """An answer with a status that another attempt will not change: the record goes where `on_exhausted` says."""
