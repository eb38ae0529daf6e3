"""ApiVersions (18), versions 0-4: what this broker offers.

v3: flexible, with the client's software name and version, and the features that there are (KIP-584); v4: those of them
that may have level 0, of which there are none. A version above is answered in version 0 with UNSUPPORTED_VERSION and
the versions of ApiVersions itself, so that the client can ask again (KIP-511).
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
    from keylane.wire.versions import Entity

API_KEY = 18
MIN_VERSION = 0
MAX_VERSION = 4
LACKS = "features (KIP-584) other than group.version and share.version"

_CLIENT_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

FEATURES = {"group.version": 1, "share.version": 1}
"""The one level of each feature that is there: groups of the consumer protocol (KIP-848), share groups (KIP-932)."""
_NEEDS = {"group.version": 68, "share.version": 76}
"""By feature, an API that is offered where the feature is there."""

Offered = tuple[tuple[int, int, int], ...]
"""API key, oldest and newest version of each."""


async def handle(request: Entity, header: dispatch.RequestHeader, node: Node) -> Entity:  # noqa: ARG001
    return answer(request, header, _offered_here())


@functools.cache
def _offered_here() -> Offered:
    return tuple((api.key, api.min_version, api.max_version) for api in dispatch.load_apis().values())


def answer(request: Entity, header: dispatch.RequestHeader, offered: Offered) -> Entity:
    """With what is offered."""
    version = header.api_version
    if not MIN_VERSION <= version <= MAX_VERSION:
        return _response(0, codes.UNSUPPORTED_VERSION, offered)
    if version >= 3 and not (
        _CLIENT_SOFTWARE.fullmatch(request.client_software_name)
        and _CLIENT_SOFTWARE.fullmatch(request.client_software_version)
    ):
        return _response(version, codes.INVALID_REQUEST, offered)
    return _response(version, codes.NONE, offered)


@functools.cache
def _response(version: int, error_code: int, offered: Offered) -> Any:
    module = response_module("api_versions", version)
    rows = tuple(
        module.ApiVersion(api_key=key, min_version=oldest, max_version=newest)
        for key, oldest, newest in offered
        if error_code == codes.NONE or key == API_KEY
    )
    more: dict[str, object] = {}
    if error_code == codes.NONE and hasattr(module, "SupportedFeatureKey"):
        keys = {key for key, *_ in offered}
        there = [(name, level) for name, level in FEATURES.items() if _NEEDS[name] in keys]
        more = {
            "supported_features": tuple(
                module.SupportedFeatureKey(name=name, min_version=level, max_version=level) for name, level in there
            ),
            "finalized_features": tuple(
                module.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
                for name, level in there
            ),
            "finalized_features_epoch": 0 if there else -1,
        }
    return entity(
        module.ApiVersionsResponse,
        error_code=ErrorCode(error_code),
        api_keys=rows,
        throttle_time=datetime.timedelta(0),
        **more,
    )
