"""ApiVersions (18), versions 0-5: what this broker offers.

v3: flexible, with the client's software name and version, and the features that there are (KIP-584); v4: those of them
that may have level 0, which clients of version 3 cannot read; v5: which cluster and node the client takes this one for:
one that was led to another, as by an address that is used again, is told REBOOTSTRAP_REQUIRED (KIP-1242). A version
above is answered in version 0 with UNSUPPORTED_VERSION and the versions of ApiVersions itself, so that the client can
ask again (KIP-511).
"""

from __future__ import annotations

import datetime
import functools
import re
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker import dispatch
from keylane.broker.features import FEATURES, NEWEST
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from keylane.broker.features import Finalized
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 18
MIN_VERSION = 0
MAX_VERSION = 5
LACKS = "features (KIP-584) other than group.version, share.version and transaction.version"

_CLIENT_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

LEVEL_0_VERSION = 4
MISROUTED_VERSION = 5
NO_NODE = -1

TOLD_FROM = {0: 0}
"""Oldest versions of APIs that are told, by key, and not served. An older librdkafka (2.1.1, say) compresses with gzip,
snappy and lz4 only for a broker that offers Produce 0, and sends plain batches to others without a word. Apache Kafka 4
tells it for the same reason, and refuses it as well (KAFKA-18659)."""

Offered = tuple[tuple[int, int, int], ...]
"""API key, oldest and newest version of each."""


async def handle(request: Entity, header: dispatch.RequestHeader, node: Node) -> Entity:
    return answer(request, header, _offered_here(), node.features.finalized, here=(node.cluster_id, node.node_id))


@functools.cache
def _offered_here() -> Offered:
    apis = dispatch.load_apis().values()
    return tuple((api.key, TOLD_FROM.get(api.key, api.min_version), api.max_version) for api in apis)


def answer(
    request: Entity,
    header: dispatch.RequestHeader,
    offered: Offered,
    finalized: Finalized = NEWEST,
    *,
    here: tuple[str, int] | None = None,
) -> Entity:
    """With what is offered; `here`: this cluster's id and this node's, where clients are to be held to them."""
    version = header.api_version
    if not MIN_VERSION <= version <= MAX_VERSION:
        return _response(0, codes.UNSUPPORTED_VERSION, offered)
    if version >= 3 and not (
        _CLIENT_SOFTWARE.fullmatch(request.client_software_name)
        and _CLIENT_SOFTWARE.fullmatch(request.client_software_version)
    ):
        return _response(version, codes.INVALID_REQUEST, offered)
    if version >= MISROUTED_VERSION:
        if (request.cluster_id is None) is not (request.node_id == NO_NODE):
            return _response(version, codes.INVALID_REQUEST, offered)
        if here is not None and request.cluster_id is not None and here != (request.cluster_id, request.node_id):
            return _response(version, codes.REBOOTSTRAP_REQUIRED, offered)
    return _response(version, codes.NONE, offered, finalized.epoch, tuple(finalized.levels.items()))


@functools.lru_cache(maxsize=16)
def _response(
    version: int, error_code: int, offered: Offered, epoch: int = 0, levels: tuple[tuple[str, int], ...] = ()
) -> Any:
    module = response_module("api_versions", version)
    rows = tuple(
        module.ApiVersion(api_key=key, min_version=oldest, max_version=newest)
        for key, oldest, newest in offered
        if error_code == codes.NONE or (error_code == codes.UNSUPPORTED_VERSION and key == API_KEY)
    )
    more: dict[str, object] = {}
    if error_code == codes.NONE and hasattr(module, "SupportedFeatureKey"):
        versions = {key: newest for key, _, newest in offered}
        there = [name for name in FEATURES if versions.get(FEATURES[name].needs[0], -1) >= FEATURES[name].needs[1]]
        more = {
            "supported_features": tuple(
                module.SupportedFeatureKey(
                    name=name, min_version=FEATURES[name].oldest, max_version=FEATURES[name].newest
                )
                for name in there
                if FEATURES[name].oldest > 0 or version >= LEVEL_0_VERSION
            ),
            "finalized_features": tuple(
                module.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
                for name, level in levels
                if level > 0 and name in there
            ),
            "finalized_features_epoch": epoch if there else -1,
        }
    return entity(
        module.ApiVersionsResponse,
        error_code=ErrorCode(error_code),
        api_keys=rows,
        throttle_time=datetime.timedelta(0),
        **more,
    )
