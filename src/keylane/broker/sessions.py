"""Who a connection belongs to, and what it may ask: SASL as Kafka carries it, a state machine without a socket.

The idea: every connection has a `Session`. Without SASL it is open from the start. With it, only ApiVersions,
SaslHandshake and SaslAuthenticate are taken until a client has shown who it is (KIP-43, KIP-152), and again when its
time is over (`connections.max.reauth.ms`, KIP-368). A client that fails is told, after a delay, and disconnected.
"""

from __future__ import annotations

import secrets
from types import MappingProxyType
from typing import TYPE_CHECKING

from keylane.broker.scram import AuthenticationError, ScramServer, has_password
from keylane.errors import PeerError
from keylane.wire.scram import HASHES

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from keylane.broker.users import UsersFile

SASL_HANDSHAKE = 17
API_VERSIONS = 18
SASL_AUTHENTICATE = 36
PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *HASHES)
_PLAIN_CREDENTIAL = "SCRAM-SHA-256"
"""PLAIN is checked against this one."""


class NotAuthenticatedError(PeerError):
    """A client asked what only an authenticated one may ask; its connection is closed."""


class Session:
    """Of a connection that need not authenticate; the base of the one that must."""

    is_open = True
    """Whether everything may be asked."""
    has_failed = False
    """Whether it is to be closed once its answers are written."""
    user: str | None = None
    forwarded_from: str | None = None
    """The host of the client whose requests another server forwards here; None: the connection is the client's own."""

    _at_close: Mapping[Hashable, Callable[[], None]] = MappingProxyType({})

    def at_close(self, what: Hashable, call: Callable[[], None]) -> None:
        """When the connection is over, call this; one call for each `what`."""
        self._at_close = {**self._at_close, what: call}

    def close(self) -> None:
        """The connection is over."""
        for call in self._at_close.values():
            call()

    def forward_from(self, host: str) -> None:
        """From now on another server's client is behind it. Its authentication is the other server's to renew."""
        self.forwarded_from = host

    def admit(self, api_key: int) -> None:
        """A request has come. Raises `NotAuthenticatedError` when it may not be asked now."""


class SaslSession(Session):
    """Of a connection that must authenticate."""

    def __init__(
        self, users: UsersFile, mechanisms: tuple[str, ...], max_reauth_ms: int, now_ms: Callable[[], int]
    ) -> None:
        """`max_reauth_ms`: how long an authentication lasts; 0 for as long as the connection."""
        self.is_open = False
        self.has_failed = False
        self.user = None
        self.mechanisms = mechanisms
        self.max_reauth_ms = max_reauth_ms
        self._users = users
        self._now_ms = now_ms
        self._expires_at = 0
        self._mechanism: str | None = None
        """Agreed on, and not yet through."""
        self._first_mechanism: str | None = None
        self._scram: ScramServer | None = None
        self._is_at_work = False

    def forward_from(self, host: str) -> None:
        super().forward_from(host)
        self._expires_at = 0

    def admit(self, api_key: int) -> None:
        if self._is_at_work or self.has_failed:
            raise NotAuthenticatedError("a request came before its client's authentication was answered")
        if api_key in (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE):
            self._is_at_work = api_key == SASL_AUTHENTICATE
            return
        if not self.is_open:
            raise NotAuthenticatedError(f"API key {api_key} was asked before the client authenticated (SASL)")
        if self._expires_at and self._now_ms() > self._expires_at:
            raise NotAuthenticatedError(f"the authentication of {self.user!r} is over, and was not renewed")

    def handshake(self, mechanism: str) -> bool:
        """Whether the mechanism is offered; the exchange begins anew then."""
        is_offered = mechanism in self.mechanisms
        if is_offered:
            self._mechanism = mechanism
            self._scram = None
        return is_offered

    @property
    def mechanism(self) -> str | None:
        """What `authenticate` expects; None when a handshake is due."""
        return self._mechanism

    def authenticate(self, message: bytes) -> bytes:
        """The server's next message; the session may be open then. Raises `AuthenticationError`.

        May take milliseconds (PLAIN): to be called in a thread. `admit` let nothing else in until `end_work`.
        """
        assert self._mechanism is not None
        if self._mechanism == PLAIN:
            self._enter(self._plain(message))
            return b""
        if self._scram is None:
            mechanism = self._mechanism
            nonce = secrets.token_urlsafe(24)
            self._scram = ScramServer(mechanism, lambda user: self._users.credential(mechanism, user), nonce)
            return self._scram.first(message)
        answer = self._scram.final(message)
        self._enter(self._scram.user)
        return answer

    def end_work(self, *, has_failed: bool) -> None:
        """The step is over; a client that failed is never let in on this connection."""
        self._is_at_work = False
        self.has_failed = has_failed
        if has_failed:
            self.is_open = False

    def _plain(self, message: bytes) -> str:
        """RFC 4616: authorization id, user, password, divided by NUL. The user's name, if the password is right."""
        try:
            authorization, user, password = message.decode().split("\0")
        except ValueError:
            raise AuthenticationError("a PLAIN message is three texts divided by NUL") from None
        if not user or not password or authorization not in ("", user):
            raise AuthenticationError("a PLAIN message needs a user, a password, and no other user to act for")
        if not has_password(_PLAIN_CREDENTIAL, self._users.credential(_PLAIN_CREDENTIAL, user), password):
            raise AuthenticationError("invalid credentials")
        return user

    def _enter(self, user: str) -> None:
        if self.user not in (None, user) or self._first_mechanism not in (None, self._mechanism):
            raise AuthenticationError("a client renews its authentication as the same user, by the same mechanism")
        self.user, self._first_mechanism, self.is_open = user, self._mechanism, True
        self._mechanism = self._scram = None
        if self.max_reauth_ms:
            self._expires_at = self._now_ms() + self.max_reauth_ms
