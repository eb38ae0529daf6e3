"""SaslAuthenticate (36), versions 0-2: one step of a client's authentication.

v1: the session's lifetime is told (KIP-368), so that a client can renew it on the same connection; v2: flexible. A
refusal is told `connection.failed.authentication.delay.ms` late, and the connection is closed behind it.
"""

from __future__ import annotations

import asyncio
import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.scram import AuthenticationError
from keylane.broker.sessions import SaslSession
from keylane.errors import UsageError
from keylane.telling import logger_of
from keylane.wire import codes
from keylane.wire.versions import entity, response_type

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 36
MIN_VERSION = 0
MAX_VERSION = 2
LACKS = "GSSAPI, OAUTHBEARER and delegation tokens"

logger = logger_of("keylane.broker")


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    session = header.session
    if not isinstance(session, SaslSession):
        return _answer(header, codes.ILLEGAL_SASL_STATE, "this listener has no SASL")
    if session.mechanism is None:
        session.end_work(has_failed=True)
        return _answer(header, codes.ILLEGAL_SASL_STATE, "SaslHandshake has to come first")
    mechanism = session.mechanism
    refusal: str | None = None
    said = b""
    try:
        said = await asyncio.to_thread(session.authenticate, request.auth_bytes)
    except AuthenticationError as error:
        refusal = f"Authentication failed: {error}"
        logger.warning("%s: authentication by %s failed: %s", header.client_host, mechanism, error)
    except UsageError as error:  # the users file cannot be read: the client need not know why
        refusal = "Authentication failed: the broker cannot check credentials at the moment"
        logger.error("nobody can authenticate: %s", error)  # noqa: TRY400 - one line that says it all
    if refusal is not None:
        await asyncio.sleep(node.config.connection_failed_authentication_delay_ms / 1_000)
    session.end_work(has_failed=refusal is not None)
    if refusal is not None:
        return _answer(header, codes.SASL_AUTHENTICATION_FAILED, refusal)
    lifetime_ms = session.max_reauth_ms if session.is_open else 0
    return _answer(header, codes.NONE, None, said, lifetime_ms)


def _answer(header: RequestHeader, code: int, message: str | None, said: bytes = b"", lifetime_ms: int = 0) -> Any:
    return entity(
        response_type("sasl_authenticate", header.api_version),
        error_code=ErrorCode(code),
        error_message=message,
        auth_bytes=said,
        session_lifetime=datetime.timedelta(milliseconds=lifetime_ms),
    )
