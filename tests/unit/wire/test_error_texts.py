"""An error's text may name what is as long as a string can be: it is cut, and the client has its answer."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import load_apis
from keylane.broker.handlers import produce
from keylane.wire import codes
from keylane.wire.fields import fields_of
from keylane.wire.primitives import MAX_STRING_BYTES, error_text
from keylane.wire.versions import encode_response, entity, read_response, response_module, response_type

LONG = "é" * 40_000
NO_TIME = datetime.timedelta(0)


@pytest.mark.parametrize("text", ["", "short", "a" * MAX_STRING_BYTES])
def test_what_fits_is_left(text: str) -> None:
    assert error_text(text) is text


@pytest.mark.parametrize("text", [LONG, "a" + LONG, "a" * (MAX_STRING_BYTES + 1)])
def test_what_does_not_is_cut_between_two_characters(text: str) -> None:
    cut = error_text(text)
    assert MAX_STRING_BYTES - 3 <= len(cut.encode()) <= MAX_STRING_BYTES
    assert cut[-1] == "…"
    assert text.startswith(cut[:-1])


@pytest.mark.parametrize("version", [1, 4])
def test_each_row_of_an_answer(version: int) -> None:
    module = response_module("describe_configs", version)
    rows = tuple(
        entity(
            module.DescribeConfigsResult,
            error_code=ErrorCode.invalid_request, error_message=text, resource_type=2, resource_name="t", configs=(),
        )
        for text in (LONG, None, "short")
    )  # fmt: skip
    body = encode_response(module.DescribeConfigsResponse(throttle_time=NO_TIME, results=rows))
    head = bytes(4) if version < 4 else bytes(5)
    answer, _ = read_response("describe_configs", version, head + body)
    assert [one.error_message for one in answer.results] == [error_text(LONG), None, "short"]


@pytest.mark.parametrize("version", [8, 9])
def test_the_answer_to_a_produce_request(version: int) -> None:
    partition = produce.ProducedPartition(
        0, codes.INVALID_RECORD, error_message=LONG, record_errors=[(3, LONG), (4, "short")]
    )
    body = b"".join(produce.encode(version, [("t", [partition])]))
    head = bytes(4) if version < 9 else bytes(5)
    answer, _ = read_response("produce", version, head + body)
    [told] = answer.responses[0].partition_responses
    assert told.error_message == error_text(LONG)
    assert [one.batch_index_error_message for one in told.record_errors] == [error_text(LONG), "short"]


def texts(entity_type: Any) -> set[str]:
    found = set()
    for field in fields_of(entity_type):
        if field.kafka_type == "string" and "message" in field.name:
            found.add(field.name)
        if field.entity is not None:
            found |= texts(field.entity)
    return found


def test_every_text_of_every_answer_has_a_name_that_is_looked_for() -> None:
    named = set()
    for api in load_apis().values():
        if api.name != "conditional_commit":
            for version in range(api.min_version, api.max_version + 1):
                named |= texts(response_type(api.name, version))
    assert named
    assert {name for name in named if not name.endswith("error_message")} == set()
