"""UpdateFeatures (57), versions 0-2: give features other levels; durable before the answer (KIP-584).

A request is carried out as a whole or not at all, and one that says so only checks. v1: the kind of upgrade in place of
a permission to downgrade; v2: no results of single features.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.broker.features import FEATURES
from keylane.storage.filesystem import StorageError
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 57
MIN_VERSION = 0
MAX_VERSION = 2
LACKS = "features other than group.version, share.version and transaction.version (INVALID_UPDATE_VERSION)"

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    updates = request.feature_updates
    reasons = (_refused(one, node.features.finalized.levels) for one in updates)
    reason = next((one for one in reasons if one is not None), None)
    if reason is not None:
        return _response(header.api_version, codes.INVALID_UPDATE_VERSION, reason)
    if not getattr(request, "validate_only", False):
        try:
            await node.features.change({one.feature: one.max_version_level for one in updates})
        except StorageError as error:
            return _response(header.api_version, error.code, str(error))
    return _response(header.api_version, codes.NONE, None, [one.feature for one in updates])


def _refused(update: Entity, levels: Mapping[str, int]) -> str | None:
    """Why a feature cannot have this level; None when it can."""
    name, level = update.feature, update.max_version_level
    feature = FEATURES.get(name)
    if feature is None:
        return f"feature {name!r}: this broker has {', '.join(FEATURES)} only"
    if not feature.oldest <= level <= feature.newest:
        return f"feature {name!r} at level {level}: this broker has levels {feature.oldest} to {feature.newest}"
    kind = getattr(update, "upgrade_type", None)
    if kind is None:
        kind = _SAFE_DOWNGRADE if update.allow_downgrade else _UPGRADE
    if kind not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        return f"feature {name!r}: upgrade type {kind} is not known: give 1 (upgrade), 2 or 3 (downgrade)"
    if level < levels[name] and kind == _UPGRADE:
        return (
            f"feature {name!r} from level {levels[name]} to {level}: that is a downgrade, and an upgrade was asked for"
        )
    if level > levels[name] and kind != _UPGRADE:
        return (
            f"feature {name!r} from level {levels[name]} to {level}: that is an upgrade, and a downgrade was asked for"
        )
    return None


def _response(version: int, error: int, reason: str | None, changed: list[str] | None = None) -> Entity:
    module = response_module("update_features", version)
    results: tuple[Entity, ...] = ()
    if hasattr(module, "UpdatableFeatureResult"):
        results = tuple(
            module.UpdatableFeatureResult(feature=name, error_code=ErrorCode.none, error_message=None)
            for name in changed or ()
        )
    return entity(
        module.UpdateFeaturesResponse,
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(error),
        error_message=reason,
        results=results,
    )
