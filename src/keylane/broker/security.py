"""Who is let in: the listener's protocol, TLS, SASL, and the refusal to listen to strangers.

The idea: everything is checked before a socket is opened, and what is not safe needs an option whose name says so. The
options are Kafka's, but for certificate and key: they stand in PEM files, under the names that librdkafka has for them.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from typing import TYPE_CHECKING, NamedTuple

from keylane.broker.config import EVERY_ADDRESS
from keylane.broker.sessions import MECHANISMS, PLAIN, SaslSession, Session
from keylane.broker.users import UsersFile
from keylane.errors import PeerError, UsageError
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.broker.config import BrokerConfig, Listener

logger = logger_of("keylane.broker")

CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class Security(NamedTuple):
    """What the server needs for its connections."""

    tls: ssl.SSLContext | None
    new_session: Callable[[], Session]
    frame_limit: int | None
    """Of requests before a client has authenticated; None when it need not."""


OPEN = Security(None, Session, None)
"""Without TLS and SASL."""


def secure(config: BrokerConfig, listener: Listener, now_ms: Callable[[], int]) -> Security:
    """Check everything and read certificates and users. Raises `UsageError`."""
    tls = _tls_context(config) if listener.has_tls else None
    has_certificates = bool(config.ssl_certificate_location or config.ssl_key_location or config.ssl_ca_location)
    if has_certificates and tls is None:
        raise UsageError(
            f"ssl.… options are set and the listener is {listener}: listen with SSL or SASL_SSL, such as "
            f"listeners={'SASL_SSL' if listener.has_sasl else 'SSL'}://{listener.host}:{listener.port}"
        )
    if config.keylane_users_file and not listener.has_sasl:
        raise UsageError(
            f"keylane.users.file is set and the listener is {listener}: listen with SASL_SSL or SASL_PLAINTEXT, such "
            f"as listeners={'SASL_SSL' if tls else 'SASL_PLAINTEXT'}://{listener.host}:{listener.port}"
        )
    _refuse_strangers(config, listener)
    if not listener.has_sasl:
        return Security(tls, Session, None)
    if not config.keylane_users_file:
        raise UsageError(f"the listener is {listener}, and keylane.users.file is missing: give the file with the users")
    users, mechanisms = UsersFile(config.keylane_users_file), _mechanisms(config)
    if not users.names():
        logger.warning("%s holds no users: nobody can connect", config.keylane_users_file)
    return Security(
        tls,
        lambda: SaslSession(users, mechanisms, config.connections_max_reauth_ms, now_ms),
        config.sasl_server_max_receive_size,
    )


def _mechanisms(config: BrokerConfig) -> tuple[str, ...]:
    mechanisms = tuple(piece.strip() for piece in config.sasl_enabled_mechanisms.split(","))
    if not set(mechanisms) <= set(MECHANISMS):
        raise UsageError(
            f"sasl.enabled.mechanisms={config.sasl_enabled_mechanisms}: give some of {','.join(MECHANISMS)}"
        )
    return mechanisms


class _LoggedHandshake(ssl.SSLObject):
    """asyncio says nothing of a handshake that fails, and the client is told little."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            logger.warning("a client's TLS handshake failed (%s); closing the connection", error.reason or error)
            raise


def _tls_context(config: BrokerConfig) -> ssl.SSLContext:
    if not config.ssl_certificate_location:
        raise UsageError("ssl.certificate.location is missing: give the PEM file with the broker's certificate chain")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = _LoggedHandshake
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    certificate, key = config.ssl_certificate_location, config.ssl_key_location or None
    try:
        # A password is always given, because OpenSSL would ask the terminal for a missing one.
        context.load_cert_chain(certificate, key, password=config.ssl_key_password)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"ssl.certificate.location={certificate}, ssl.key.location={key or certificate}: {_reason(error)}; give "
            "PEM files of a certificate chain and its key (ssl.key.password, if it has one)"
        ) from None
    if config.ssl_client_auth not in CLIENT_AUTH:
        raise UsageError(f"ssl.client.auth={config.ssl_client_auth}: give {', '.join(CLIENT_AUTH)}")
    if config.ssl_client_auth != "none" and not config.ssl_ca_location:
        raise UsageError(
            f"ssl.client.auth={config.ssl_client_auth}, and ssl.ca.location is missing: give the PEM file with the "
            "authorities that sign clients' certificates"
        )
    if config.ssl_ca_location:
        try:
            context.load_verify_locations(config.ssl_ca_location)
        except (OSError, ValueError) as error:
            raise UsageError(f"ssl.ca.location={config.ssl_ca_location}: {_reason(error)}; give a PEM file") from None
    context.verify_mode = CLIENT_AUTH[config.ssl_client_auth]
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "it cannot be read"
    return getattr(error, "strerror", None) or str(error)


def _refuse_strangers(config: BrokerConfig, listener: Listener) -> None:
    """Raises `UsageError` for a listener on which anyone in the network could do anything."""
    if listener.host in EVERY_ADDRESS and not config.advertised_listeners:
        raise UsageError(
            f"{listener} is every address of this machine: say which one clients are to connect to, such as "
            f"advertised.listeners={listener.protocol}://{socket.gethostname()}:{listener.port or 9_092}"
        )
    if _is_loopback(listener):
        return
    if not listener.has_sasl and config.ssl_client_auth != "required":
        if not config.keylane_allow_unauthenticated_remote_clients:
            raise UsageError(
                f"{listener} can be reached by other machines, and clients need not authenticate: listen with SASL_SSL "
                "(keylane.users.file), or with SSL and ssl.client.auth=required, or on 127.0.0.1; or, where everyone "
                "may read, write and delete everything, set keylane.allow.unauthenticated.remote.clients=true"
            )
        logger.warning("%s: anyone who reaches this address may read, write and delete everything", listener)
    if not listener.has_tls:
        passwords = ", passwords of PLAIN among it" if listener.has_sasl and PLAIN in _mechanisms(config) else ""
        logger.warning("%s: everything goes over the network unencrypted%s", listener, passwords)


def _is_loopback(listener: Listener) -> bool:
    """Whether only this machine can reach the address. Raises `PeerError` for a name that means nothing."""
    try:
        found = {str(row[4][0]) for row in socket.getaddrinfo(listener.host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no host name"
        raise PeerError(f"cannot listen on {listener.host}:{listener.port}: {reason}") from error
    return all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found)
