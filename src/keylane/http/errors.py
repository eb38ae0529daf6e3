"""What goes wrong with a request: each error says whether another attempt can help, and when."""

from __future__ import annotations

from typing import Any

from keylane.errors import Fatal, PeerError, Throttled


class HttpError(PeerError):
    """No usable answer: no connection, no answer in time, or a body that is too long. The record is tried again.

    Its text is for the dead letter: it may hold the URL's path and what the service answered. `logged_text` holds
    neither: a path may be a secret, and an answer may quote the record.
    """

    def __init__(self, text: str, *, logged_text: str | None = None) -> None:
        Exception.__init__(self, text)  # not that of a class beside this one, which takes something else
        self._logged_text = text if logged_text is None else logged_text

    @property
    def logged_text(self) -> str:
        return self._logged_text

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process, whatever the constructor takes."""
        return type(self).__new__, (type(self), str(self)), self.__dict__


class StatusError(HttpError):
    """An answer with a status that is worth another attempt."""

    def __init__(
        self, text: str, status: int, retry_after_ms: int | None = None, *, logged_text: str | None = None
    ) -> None:
        super().__init__(text, logged_text=logged_text)
        self.status = status
        self.retry_after_ms = retry_after_ms
        """The server's Retry-After, in milliseconds; None without one. The next attempt waits as long."""


class ThrottledError(StatusError, Throttled):
    """An answer of 429: the service asks for a slower pace. It uses up no attempt (`keylane.Throttled`).
    `retry_after_ms` is what its headers ask for; None leaves the wait to `Retries`."""


class RefusedError(StatusError, Fatal):
    """An answer with a status that another attempt will not change: the record goes where `on_exhausted` says."""


class UnsendableError(HttpError, Fatal):
    """A request that can never be sent as it is: a URL without a host, a port that does not exist, an address in a
    network that is refused. The record goes where `on_exhausted` says, without another attempt."""
