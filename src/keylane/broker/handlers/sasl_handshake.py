"""SaslHandshake (17), version 1: a client names the mechanism by which it will authenticate.

Version 0 is not offered: bare tokens without a request's header follow it, which no client of today sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.sessions import SaslSession
from keylane.wire import codes
from keylane.wire.versions import response_type

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 17
MIN_VERSION = 1
MAX_VERSION = 1
LACKS = "version 0 (bare tokens follow it); GSSAPI, OAUTHBEARER and delegation tokens"


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:  # noqa: ARG001
    session = header.session
    mechanisms: tuple[str, ...] = ()
    if not isinstance(session, SaslSession):
        code = codes.ILLEGAL_SASL_STATE
    else:
        mechanisms = session.mechanisms
        code = codes.NONE if session.handshake(request.mechanism) else codes.UNSUPPORTED_SASL_MECHANISM
    answer = response_type("sasl_handshake", header.api_version)
    return answer(error_code=ErrorCode(code), mechanisms=mechanisms)
