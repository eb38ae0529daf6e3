"""Requests and responses of ConditionalCommit: what is written is read, and anything else is refused by its error."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.wire.conditional_commit import (
    API_KEY,
    Condition,
    ConditionalCommitError,
    Outcome,
    Request,
    Response,
    encode_request,
    encode_response,
    read_request,
    read_response,
)

I16, I32, I64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))
TEXT = st.text(max_size=20)
CONDITIONS = st.builds(Condition, I32, I64, I64, I32, st.none() | TEXT)
REQUESTS = st.builds(
    Request, TEXT, I32, TEXT, st.none() | TEXT, st.lists(st.tuples(TEXT, st.lists(CONDITIONS, max_size=3)), max_size=3)
)
OUTCOMES = st.builds(Outcome, I32, I16, I64)
RESPONSES = st.builds(Response, I16, st.lists(st.tuples(TEXT, st.lists(OUTCOMES, max_size=3)), max_size=3))


def test_the_key_is_the_letters() -> None:
    assert API_KEY == 27_500


@given(REQUESTS, st.binary(max_size=5), st.binary(max_size=5))
def test_requests(request: Request, before: bytes, behind: bytes) -> None:
    body = encode_request(request)
    assert read_request(before + body + behind, len(before)) == (request, len(body))
    for size in range(len(body)):
        with pytest.raises(ConditionalCommitError):
            read_request(body[:size], 0)


@given(RESPONSES, st.binary(min_size=1, max_size=3))
def test_responses(response: Response, behind: bytes) -> None:
    body = encode_response(response)
    assert read_response(body) == response
    with pytest.raises(ConditionalCommitError):
        read_response(body + behind)


@given(st.binary(max_size=60))
def test_random_bytes(data: bytes) -> None:
    for read in (lambda: read_request(data, 0), lambda: read_response(data)):
        with contextlib.suppress(ConditionalCommitError):
            read()
