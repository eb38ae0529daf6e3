"""Requests that a broker of the log's cluster answers: passed on unchanged, in order, on a connection of their own.

The idea: each client's connection has one to its broker. Answers with addresses in them are written anew. When either
connection ends, so does the other: to the client it looks as if its broker had ended it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from keylane.broker.dispatch import MalformedRequestError
from keylane.kafka.link import login_requests
from keylane.offset_servers.upstream import SIZE, Upstream
from keylane.telling import logger_of
from keylane.wire.primitives import FieldError, FieldReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keylane.kafka.login import Login
    from keylane.offset_servers.nodes import Address

logger = logger_of("keylane.offsets")

PRODUCE = 0
FLEXIBLE_PRODUCE = 9
TRANSACTIONAL_PRODUCE = 3
_KEY_AND_VERSION = struct.Struct(">hh")


class Passed(NamedTuple):
    """An API whose requests are passed on."""

    name: str
    first: int
    last: int
    rewrite: Callable[[int, bytes], bytes] | None = None
    """An answer's frame of a version, with our nodes in place of the brokers'."""
    applies: Callable[[bytes], bool] | None = None
    """Whether this request is passed on; None: each is."""


class Relay:
    """Of one client's connection."""

    def __init__(
        self,
        passed: Mapping[int, Passed],
        brokers: Callable[[], Sequence[Address]],
        login: Login,
        close: Callable[[], None],
    ) -> None:
        """`brokers`: who may answer, the first one that is there; `close` ends the client's connection."""
        self._passed = passed
        self._close = close
        self._due = 0
        """Answers that are waited for."""
        self._upstream = Upstream(brokers, login, lambda: login_requests(login), self._lost)

    def take(self, frame: bytes, told: Callable[[list[bytes] | None], None]) -> bool:
        """Pass it on, if it is one of those. Raises `MalformedRequestError` for a version that is not offered."""
        key, version = _KEY_AND_VERSION.unpack_from(frame)
        api = self._passed.get(key)
        if api is None or (api.applies is not None and not api.applies(frame)):
            return False
        if not api.first <= version <= api.last:
            raise MalformedRequestError(
                f"{api.name} version {version} is not offered by this server, which takes {api.first} to {api.last}"
            )
        if key == PRODUCE and not _wants_answer(frame, version):
            told(None)
            self._upstream.send(frame, None)
        else:
            self._due += 1
            self._upstream.send(frame, lambda answer: self._answered(told, version, api.rewrite, answer))
        return True

    def pause(self) -> None:
        """The client takes no more for now."""
        self._upstream.pause()

    def resume(self) -> None:
        self._upstream.resume()

    def close(self) -> None:
        """The client is gone."""
        self._upstream.close()

    def _answered(
        self,
        told: Callable[[list[bytes] | None], None],
        version: int,
        rewrite: Callable[[int, bytes], bytes] | None,
        frame: bytes,
    ) -> None:
        self._due -= 1
        if rewrite is not None:
            frame = rewrite(version, frame)
        told([SIZE.pack(len(frame)), frame])

    def _lost(self, reason: str) -> None:
        """The broker's connection is gone, and with it the client's."""
        if self._due:
            logger.info("a connection to a broker of the log's cluster ends: %s", reason)
        self._close()


def _wants_answer(frame: bytes, version: int) -> bool:
    """Whether a Produce asks for an acknowledgement. Raises `MalformedRequestError`."""
    reader = FieldReader(frame, 8)
    try:
        reader.nullable_string()  # the client's id
        reader.go_on(is_flexible=version >= FLEXIBLE_PRODUCE)
        reader.skip_tags()
        if version >= TRANSACTIONAL_PRODUCE:
            reader.nullable_string()
        return reader.int16() != 0
    except FieldError as error:
        raise MalformedRequestError(f"produce version {version} cannot be read: {error}") from error
