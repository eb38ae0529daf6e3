from __future__ import annotations

import contextlib
import struct

import pytest

from keylane.broker.dispatch import MalformedRequestError, decode_request, load_apis
from keylane.wire.bounds import BoundsError, bounds_checker
from keylane.wire.versions import encode_response, request_type
from kit.protocol import encode_request
from kit.samples import sample_request

APIS = load_apis()
VERSIONS = [
    (api.name, version)
    for api in APIS.values()
    if api.name != "conditional_commit"
    for version in range(api.min_version, api.max_version + 1)
]
HUGE = [struct.pack(">i", 2**31 - 1), struct.pack(">i", 2**24), b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x7f"]


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_every_request_is_passed_to_its_end(api: str, version: int) -> None:
    body = encode_response(sample_request(api, version))
    assert bounds_checker(request_type(api, version))(b"head" + body, 4) == 4 + len(body)


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_no_length_or_count_ends_the_process(api: str, version: int) -> None:
    """kio makes room for what a count promises: without a look at it before, this test does not come to an end."""
    frame = encode_request(api, sample_request(api, version), 1)[4:]
    for at in range(10, len(frame)):
        for huge in HUGE:
            damaged = frame[:at] + huge + frame[at + len(huge) :]
            with contextlib.suppress(MalformedRequestError):
                decode_request(damaged, "h", APIS)


def test_what_is_promised_and_not_there_is_named() -> None:
    check = bounds_checker(request_type("metadata", 1))
    with pytest.raises(BoundsError, match="an array of 16777216 items, and 3 bytes are left"):
        check(struct.pack(">i", 2**24) + b"abc", 0)
    with pytest.raises(BoundsError, match="a length of 500, and 3 bytes are left"):
        check(struct.pack(">ih", 1, 500) + b"abc", 0)
    assert check(struct.pack(">i", -1), 0) == 4, "null"
    with pytest.raises(BoundsError, match="null where an array is due"):
        bounds_checker(request_type("list_offsets", 1))(struct.pack(">ii", -1, -1), 0)
    check = bounds_checker(request_type("describe_topic_partitions", 0))
    no_cursor = b"\x01" + struct.pack(">i", 9) + b"\xff\x00"
    assert check(no_cursor, 0) == len(no_cursor), "a null entity"
    with pytest.raises(BoundsError, match="a length of 99, and 6 bytes are left"):
        check(no_cursor[:-2] + b"\x01\x64" + bytes(6), 0)
    check = bounds_checker(request_type("heartbeat", 0))
    with pytest.raises(BoundsError, match="4 bytes are missing"):
        check(struct.pack(">h", 0), 0)
