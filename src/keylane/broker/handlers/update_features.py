"""UpdateFeatures (57), versions 0-2: features have one level each, which they are at (KIP-584).

To ask for that level is no error. Anything else is refused as a whole, with Apache Kafka's code. v1: the kind of
upgrade, and a request that only checks; v2: no results of single features.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.broker.handlers.api_versions import FEATURES
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 57
MIN_VERSION = 0
MAX_VERSION = 2
LACKS = "features other than group.version and share.version, and other levels (INVALID_UPDATE_VERSION)"


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:  # noqa: ARG001
    module = response_module("update_features", header.api_version)
    wrong = next((one for one in request.feature_updates if FEATURES.get(one.feature) != one.max_version_level), None)
    results: tuple[Entity, ...] = ()
    if wrong is None and hasattr(module, "UpdatableFeatureResult"):
        results = tuple(
            module.UpdatableFeatureResult(feature=one.feature, error_code=ErrorCode.none, error_message=None)
            for one in request.feature_updates
        )
    return entity(
        module.UpdateFeaturesResponse,
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(codes.NONE if wrong is None else codes.INVALID_UPDATE_VERSION),
        error_message=None if wrong is None else _reason(wrong.feature, wrong.max_version_level),
        results=results,
    )


def _reason(feature: str, level: int) -> str:
    known = FEATURES.get(feature)
    if known is None:
        return f"feature {feature!r}: this broker has {', '.join(FEATURES)} only"
    return f"feature {feature!r} at level {level}: this broker has level {known} only"
