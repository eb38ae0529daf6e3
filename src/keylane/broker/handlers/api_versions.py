"""ApiVersions (18), versions 0-4: what this broker offers.

v3: flexible, with the client's software name and version; v4 changes nothing that is used here (no features are
offered). A version above is answered in version 0 with UNSUPPORTED_VERSION and the versions of ApiVersions itself, so
that the client can ask again (KIP-511).
"""

from __future__ import annotations

import datetime
import functools
import re
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker import dispatch
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from keylane.broker.node import Node

API_KEY = 18
MIN_VERSION = 0
MAX_VERSION = 4
LACKS = "features (KIP-584): none are listed"

_CLIENT_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


async def handle(request: Any, header: dispatch.RequestHeader, node: Node) -> Any:  # noqa: ARG001
    version = header.api_version
    if not MIN_VERSION <= version <= MAX_VERSION:
        return _response(0, codes.UNSUPPORTED_VERSION)
    if version >= 3 and not (
        _CLIENT_SOFTWARE.fullmatch(request.client_software_name)
        and _CLIENT_SOFTWARE.fullmatch(request.client_software_version)
    ):
        return _response(version, codes.INVALID_REQUEST)
    return _response(version, codes.NONE)


@functools.cache
def _response(version: int, error_code: int) -> Any:
    module = response_module("api_versions", version)
    offered = [
        module.ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
        for api in dispatch.load_apis().values()
        if error_code == codes.NONE or api.key == API_KEY
    ]
    return entity(
        module.ApiVersionsResponse,
        error_code=ErrorCode(error_code),
        api_keys=tuple(offered),
        throttle_time=datetime.timedelta(0),
    )
