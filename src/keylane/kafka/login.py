"""TLS and SASL for keylane's own connections, by librdkafka's settings: what confluent-kafka's clients are given serves
here, too. PLAIN and SCRAM (RFC 5802, RFC 7677), as `keylane broker` and Apache Kafka have them, and OAUTHBEARER
(RFC 7628) with the tokens of `oauth_cb`.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import ssl
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.errors import PeerError, UsageError
from keylane.foreign_errors import line_of
from keylane.kafka.token_function import SETTING, TokenFunction
from keylane.wire.scram import HASHES, keys_of, signature, xor

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

TOKENS = "OAUTHBEARER"
MECHANISMS = ("PLAIN", *HASHES, TOKENS)
USED_OF_LIFE = 0.8
"""A token is not taken for a connection after so much of its life, as by librdkafka."""
MAX_ITERATIONS = 10_000_000
"""More would be a broker that wants processor time, some seconds of it."""
PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")

_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password")
_KNOWN = {
    "enable.ssl.certificate.verification",
    "ssl.endpoint.identification.algorithm",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.method",
    *_FILES,
}


class LoginError(PeerError):
    """The broker does not let this user in."""


class Tokens:
    """What logs in by tokens: they come from `function`, and each serves until it nears its end.

    Thread safety: two threads at once may each ask for a token.
    """

    def __init__(self, function: Callable[[Any], Any], config: object) -> None:
        """Of confluent-kafka's `oauth_cb`, which may return a principal and extensions behind the token and its end."""
        self._function = function
        self._config = config
        self._message = b""
        self._used_until_s = 0.0
        self._is_new = False

    def message(self) -> bytes:
        """Of a client. Raises, without a token, `LoginError` where there never was one, and else `ConnectionError`: who
        gives them may be away."""
        now = time.time()
        self._is_new = now >= self._used_until_s
        if self._is_new:
            try:
                token, ends_s, *others = self._function(self._config)
                self._used_until_s = now + USED_OF_LIFE * (ends_s - now)
                extensions = "".join(f"\1{name}={value}" for name, value in dict(*others[1:2]).items())
                self._message = f"n,,\1auth=Bearer {token}{extensions}\1\1".encode()
            except Exception as error:  # of the user's own code
                name = f"={self._function.name}" if isinstance(self._function, TokenFunction) else ""
                kind = ConnectionError if self._message else LoginError
                raise kind(f"{SETTING}{name} gave no token: {line_of(error)}") from None
        return self._message

    def refused(self, text: str) -> Exception:
        """What to raise: `LoginError` for a token that was new, and `ConnectionError` for one that may have ended on
        its way: whoever tries again gets a new one."""
        self._used_until_s = 0.0
        return (LoginError if self._is_new else ConnectionError)(f"the broker does not take the token: {text}")


class Login(NamedTuple):
    """How connections begin."""

    tls: ssl.SSLContext | None = None
    mechanism: str | None = None
    username: str = ""
    password: str = ""
    tokens: Tokens | None = None

    def __repr__(self) -> str:
        return f"Login({self.mechanism}, {self.username!r})"


def login_of(settings: Mapping[str, Any]) -> Login:
    """By `security.protocol`, `ssl.*` and `sasl.*`; all other settings are left alone. Raises `UsageError`."""
    protocol = str(settings.get("security.protocol", PROTOCOLS[0])).lower()
    if protocol not in PROTOCOLS:
        raise UsageError(f"security.protocol={protocol}: give one of {', '.join(PROTOCOLS)}")
    mechanism = str(settings.get("sasl.mechanisms") or settings.get("sasl.mechanism") or "")
    has_sasl, function = protocol.startswith("sasl"), settings.get(SETTING)
    if has_sasl and mechanism == TOKENS and not callable(function):
        raise UsageError(
            f"{SETTING} is missing: keylane's own connections take {TOKENS}'s tokens from a function alone"
        )
    for name in settings:
        if name.startswith(("ssl.", "sasl.")) and name not in _KNOWN:
            raise UsageError(f"{name} is not known here: {', '.join(sorted(_KNOWN))} are")
    tls = _tls(settings) if protocol.endswith("ssl") else None
    if not has_sasl:
        return Login(tls)
    if mechanism not in MECHANISMS:
        raise UsageError(f"sasl.mechanisms={mechanism}: give one of {', '.join(MECHANISMS)}")
    if callable(function) and mechanism == TOKENS:
        return Login(tls, mechanism, tokens=Tokens(function, settings.get("sasl.oauthbearer.config")))
    username, password = (str(settings.get(name) or "") for name in ("sasl.username", "sasl.password"))
    if not username or not password:
        raise UsageError("sasl.username or sasl.password is missing")
    return Login(tls, mechanism, username, password)


def before_login_of(settings: Mapping[str, Any]) -> Login:
    """How connections begin that ask only what a broker answers before it knows who asks. Raises `UsageError`."""
    protocol = str(settings.get("security.protocol", PROTOCOLS[0])).lower().removeprefix("sasl_")
    others = {name: value for name, value in settings.items() if not name.startswith("sasl.")}
    return login_of(others | {"security.protocol": protocol})


def _tls(settings: Mapping[str, Any]) -> ssl.SSLContext:
    authority, certificate, key, password = (settings.get(name) for name in _FILES)
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate:
            context.load_cert_chain(certificate, key, password=str(password or ""))
    except (OSError, ValueError) as error:
        raise UsageError(f"ssl.ca.location={authority}, ssl.certificate.location={certificate}: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13 sets it; librdkafka takes certificates without it
    if str(settings.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    if str(settings.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def exchange(login: Login, nonce: str | None = None) -> Generator[bytes, bytes, None]:
    """The client's messages of a SASL exchange; sent back is what the broker answers to each.

    Raises `LoginError` for a broker that does not know the password itself, or answers something else, and for a token
    that there is not, or that the broker does not take; `ConnectionError` for one that may just have ended, or that
    whoever gives tokens does not give now.
    """
    assert login.mechanism is not None
    if login.tokens is not None:
        if refusal := (yield login.tokens.message()):
            raise login.tokens.refused(refusal.decode(errors="replace"))
        return
    if login.mechanism == "PLAIN":
        yield f"\0{login.username}\0{login.password}".encode()
        return
    user = login.username.replace("=", "=3D").replace(",", "=2C")
    first = f"n={user},r={nonce or secrets.token_urlsafe(24)}"
    challenge = yield f"n,,{first}".encode()
    try:
        answer = challenge.decode()
        whole_nonce, salt, iterations = (_fields(answer)[field] for field in "rsi")
        if not whole_nonce.startswith(first.rpartition("r=")[2]) or not 0 < int(iterations) <= MAX_ITERATIONS:
            raise ValueError(answer)
        keys = keys_of(login.mechanism, login.password, base64.b64decode(salt), int(iterations))
    except (KeyError, ValueError):
        raise LoginError(f"the broker's {login.mechanism} answer is none") from None
    last = f"c=biws,r={whole_nonce}"
    signed = f"{first},{answer},{last}".encode()
    proof = xor(keys.client, signature(login.mechanism, keys.stored, signed))
    answer = (yield f"{last},p={base64.b64encode(proof).decode()}".encode()).decode(errors="replace")
    expected = base64.b64encode(signature(login.mechanism, keys.server, signed))
    if not hmac.compare_digest(_fields(answer).get("v", "").encode(), expected):
        raise LoginError("the broker does not know the user's password itself: it is not the one that it seems to be")


def _fields(answer: str) -> dict[str, str]:
    return {name: value for name, _, value in (field.partition("=") for field in answer.split(","))}
