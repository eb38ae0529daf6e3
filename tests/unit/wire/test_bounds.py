from __future__ import annotations

import contextlib
import struct

import pytest

from keylane.broker.dispatch import MalformedRequestError, decode_request, load_apis
from keylane.wire.bounds import BoundsError, bounds_checker
from keylane.wire.primitives import ItemCount, TooManyItemsError
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
    assert bounds_checker(request_type(api, version))(b"head" + body, 4, ItemCount()) == 4 + len(body)


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
        check(struct.pack(">i", 2**24) + b"abc", 0, ItemCount())
    with pytest.raises(BoundsError, match="a length of 500, and 3 bytes are left"):
        check(struct.pack(">ih", 1, 500) + b"abc", 0, ItemCount())
    assert check(struct.pack(">i", -1), 0, ItemCount()) == 4, "null"
    with pytest.raises(BoundsError, match="null where an array is due"):
        bounds_checker(request_type("list_offsets", 1))(struct.pack(">ii", -1, -1), 0, ItemCount())
    check = bounds_checker(request_type("describe_topic_partitions", 0))
    no_cursor = b"\x01" + struct.pack(">i", 9) + b"\xff\x00"
    assert check(no_cursor, 0, ItemCount()) == len(no_cursor), "a null entity"
    with pytest.raises(BoundsError, match="a length of 99, and 6 bytes are left"):
        check(no_cursor[:-2] + b"\x01\x64" + bytes(6), 0, ItemCount())
    check = bounds_checker(request_type("heartbeat", 0))
    with pytest.raises(BoundsError, match="4 bytes are missing"):
        check(struct.pack(">h", 0), 0, ItemCount())


def test_items_of_all_arrays_are_counted_together() -> None:
    check = bounds_checker(request_type("delete_records", 0))
    topic = struct.pack(">hi", 0, 2) + bytes(2 * 12)
    body = struct.pack(">i", 3) + 3 * topic + bytes(4)
    assert check(body, 0, ItemCount(9)) == len(body)
    with pytest.raises(TooManyItemsError, match="more than 8 items"):
        check(body, 0, ItemCount(8))


@pytest.mark.parametrize("api", ["delete_records", "offset_commit", "offset_fetch", "metadata"])
def test_a_request_of_more_items_than_any_may_have_is_malformed(api: str) -> None:
    found = APIS[{"delete_records": 21, "offset_commit": 8, "offset_fetch": 9, "metadata": 3}[api]]
    request = sample_request(api, 1 if api != "offset_commit" else 2)
    frame = encode_request(api, request, 7)[4:]
    with pytest.raises(TooManyItemsError):
        decode_request(frame, "h", APIS, max_items=0)
    assert decode_request(frame, "h", APIS).api is found
