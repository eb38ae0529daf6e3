from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import load_apis
from keylane.testing.answers import error_answer
from keylane.wire.versions import encode_response
from kit.protocol import decode_answer, encode_request
from kit.samples import sample_request

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSIONS = [
    (api.name, version)
    for api in load_apis().values()
    if api.name != "conditional_commit"
    for version in range(api.min_version, api.max_version + 1)
]


def errors(entity: Any) -> Iterator[ErrorCode]:
    """Every error in an answer, wherever it stands."""
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        if isinstance(value, ErrorCode):
            yield value
        for one in value if isinstance(value, tuple) else ():
            if dataclasses.is_dataclass(one):
                yield from errors(one)


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_every_api_has_an_answer_that_is_an_error(api: str, version: int) -> None:
    request = sample_request(api, version)
    answer = error_answer(api, version, request, int(ErrorCode.unknown_server_error))
    kind = type(answer)
    head = b"\0\0\0\7" + (b"\0" if kind.__header_schema__.__flexible__ else b"")
    assert decode_answer(api, version, head + encode_response(answer)) == (7, answer)
    assert set(errors(answer)) == {ErrorCode.unknown_server_error}


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_samples_can_be_sent(api: str, version: int) -> None:
    assert len(encode_request(api, sample_request(api, version), 1)) > 14


def test_an_error_names_what_was_asked() -> None:
    request = sample_request("list_offsets", 8, name="orders", partition_index=3)
    (topic,) = error_answer("list_offsets", 8, request, 3).topics
    assert topic.name == "orders"
    assert [(one.partition_index, one.offset) for one in topic.partitions] == [(3, -1)]
    request = sample_request("describe_groups", 5, groups=("a", "b"))
    assert [one.group_id for one in error_answer("describe_groups", 5, request, 15).groups] == ["a", "b"]
    request = sample_request("add_partitions_to_txn", 3, name="orders", partitions=(4, 5))
    (topic,) = error_answer("add_partitions_to_txn", 3, request, 51).results_by_topic_v3_and_below
    assert [one.partition_index for one in topic.results_by_partition] == [4, 5]
    request = sample_request("find_coordinator", 4, coordinator_keys=("g",))
    (one,) = error_answer("find_coordinator", 4, request, 15).coordinators
    assert (one.key, one.error_code, one.port) == ("g", ErrorCode(15), -1)
