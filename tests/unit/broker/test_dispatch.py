from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.broker.dispatch import MalformedRequestError, RequestHeader, decode_request, load_apis
from keylane.wire import conditional_commit
from keylane.wire.versions import request_schema, request_type, response_type
from kit.protocol import encode_request

APIS = load_apis()


def frame(key: int, version: int, body: bytes = b"", client_id: bytes | None = b"me") -> bytes:
    name = struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id
    return struct.pack(">hhi", key, version, 99) + name + body


def test_every_version_that_is_offered_has_a_schema_and_a_handler() -> None:
    assert list(APIS) == sorted(APIS)
    for api in APIS.values():
        assert api.lacks
        assert callable(api.handle or api.begin)
        for version in range(api.min_version, api.max_version + 1):
            schema = api.schema(version)
            if api.key == conditional_commit.API_KEY:
                continue  # keylane's own: kio does not know it
            assert schema[1:] == request_schema(api.name, version)[1:]
            assert request_type(api.name, version).__api_key__ == api.key
            if api.key != 18:
                assert schema.has_flexible_response_header == response_type(api.name, version).__flexible__
            else:
                assert not schema.has_flexible_response_header


def test_what_must_not_be_offered_is_not() -> None:
    assert not APIS.keys() & {71, 72}


def test_a_request_is_read() -> None:
    request = request_type("metadata", 12)(
        topics=None, allow_auto_topic_creation=True, include_topic_authorized_operations=False
    )
    call = decode_request(encode_request("metadata", request, 7)[4:], "10.0.0.1", APIS)
    assert call.request == request
    assert call.header == RequestHeader(3, 12, 7, "keylane-testing", "10.0.0.1")
    assert call.api.name == "metadata"


def test_tagged_fields_of_the_header_are_skipped() -> None:
    tags = b"\x02" + b"\x00\x03abc" + b"\x05\x00"
    call = decode_request(frame(18, 3, tags + b"\x02a\x02b\x00"), "h", APIS)
    assert call.request.client_software_name == "a"
    assert call.header.client_id == "me"


def test_a_null_client_id() -> None:
    assert decode_request(frame(18, 0, client_id=None), "h", APIS).header.client_id is None


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no request header"),
        (frame(18, 0)[:9], "no request header"),
        (frame(0, 2), "produce version 2 is not offered by this broker, which takes 3 to 13"),
        (frame(9999, 0), "API key 9999 version 0 is not offered"),
        (frame(71, 0), "API key 71"),
        (frame(3, 12), "metadata version 12 cannot be read"),
        (frame(3, 1, b"\x7f\xff\xff\xff"), "metadata version 1 cannot be read"),
        (struct.pack(">hhih", 18, 0, 1, 30) + b"short", "a client id of 30 bytes"),
        (struct.pack(">hhih", 18, 0, 1, -2), "a client id of -2 bytes"),
        (frame(18, 0, client_id=b"\xff"), "no request header"),
        (frame(18, 3, b"\xff\xff\xff\xff\xff\x01"), "a varint of more than 5 bytes"),
        (frame(18, 3, b"\x01\x00\x7f"), "run past the request"),
    ],
)
def test_what_cannot_be_read_is_named(data: bytes, says: str) -> None:
    with pytest.raises(MalformedRequestError, match=says):
        decode_request(data, "h", APIS)


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    call = decode_request(frame(18, 1_000, b"whatever"), "h", APIS)
    assert call.header.api_version == 1_000
    assert not call.schema.has_flexible_response_header


requests: Any = st.one_of(
    st.binary(max_size=200),
    st.builds(
        frame,
        st.sampled_from(sorted(APIS)),
        st.integers(0, 12),
        st.binary(max_size=200),
        st.none() | st.binary(max_size=10),
    ),
)


@given(requests)
def test_any_bytes_are_read_or_refused_in_one_line(data: bytes) -> None:
    said = ""
    try:
        decode_request(data, "h", APIS)
    except MalformedRequestError as error:
        said = str(error)
    assert "\n" not in said
