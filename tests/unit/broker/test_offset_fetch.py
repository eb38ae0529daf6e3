"""What OffsetFetch says when a whole group is refused: never an offset, always the error, where the version has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from keylane.broker.dispatch import RequestHeader
from keylane.broker.handlers import offset_fetch
from keylane.wire.requests import OffsetFetch
from keylane.wire.versions import response_type

TOPICS = [("flights", [0, 7]), ("weather", [1])]


def answer(version: int, code: ErrorCode, topics: Any = TOPICS) -> Any:
    """The response's entity, of a coordinator that refuses."""
    node: Any = SimpleNamespace(coordinator=SimpleNamespace(fetch=lambda *_, **__: int(code)))
    request = [OffsetFetch("g", topics, require_stable=False)]
    body = b"".join(offset_fetch.begin(request, RequestHeader(9, version, 1, None, "h"), node))
    entity, size = entity_reader(response_type("offset_fetch", version))(body, 0)
    assert size == len(body)
    return entity


@pytest.mark.parametrize(
    "code", [ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator, ErrorCode.kafka_storage_error]
)
def test_a_refusal_is_no_offset(code: ErrorCode) -> None:
    first = answer(1, code)
    rows = [
        (topic.name, p.partition_index, p.committed_offset, p.error_code)
        for topic in first.topics
        for p in topic.partitions
    ]
    assert rows == [("flights", 0, -1, code), ("flights", 7, -1, code), ("weather", 1, -1, code)]
    for version in range(2, 8):
        later = answer(version, code)
        assert (later.error_code, later.topics) == (code, ())
    for version in (8, 9):
        (group,) = answer(version, code).groups
        assert (group.error_code, group.topics) == (code, ())


def test_a_refusal_of_all_of_a_group() -> None:
    assert answer(1, ErrorCode.not_coordinator, []).topics == ()
    assert answer(5, ErrorCode.not_coordinator, None).error_code == ErrorCode.not_coordinator
