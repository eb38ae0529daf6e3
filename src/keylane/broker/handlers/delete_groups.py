"""DeleteGroups (42), versions 0-3: groups without members end, with all their offsets, durably (KIP-229).

v2: flexible. A group with members is refused (NON_EMPTY_GROUP), one that does not exist too (GROUP_ID_NOT_FOUND).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import after, answer_of, failure_of, prepared
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.broker.dispatch import RequestHeader, Steps
    from keylane.broker.node import Node
    from keylane.storage.shared_sync import Round

API_KEY = 42
MIN_VERSION = 0
MAX_VERSION = 3
LACKS = "nothing"


def begin(request: Any, header: RequestHeader, node: Node) -> Any:
    outcomes: dict[str, int | Round] = {}

    def finish() -> Any:
        rounds = [outcome for outcome in outcomes.values() if not isinstance(outcome, int)]
        return after(rounds, lambda: answer_of(len(outcomes), lambda: _answer(header.api_version, outcomes)))

    return prepared(_delete_each(request.groups_names, node, outcomes), finish)


def _delete_each(groups: Iterable[str], node: Node, outcomes: dict[str, int | Round]) -> Steps:
    """Fills `outcomes`."""
    for group in groups:
        outcomes[group] = node.coordinator.delete_group(group)
        yield None


def _answer(version: int, outcomes: dict[str, int | Round]) -> Any:
    module = response_module("delete_groups", version)
    results = tuple(
        module.DeletableGroupResult(group_id=group, error_code=ErrorCode(_code(outcome)))
        for group, outcome in outcomes.items()
    )
    return module.DeleteGroupsResponse(throttle_time=datetime.timedelta(0), results=results)


def _code(outcome: int | Round) -> int:
    """Of what was refused at once, or was made durable or not."""
    return outcome if isinstance(outcome, int) else failure_of(outcome)
