"""The groups of a request are read off its frame, of every API and version; one for many is divided and joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keylane.offset_servers.group_requests import APIS, MANY, divided, groups_of, joined
from keylane.testing.answers import error_answer
from keylane.wire import codes
from keylane.wire.versions import encode_response, request_schema
from kit.group_requests import ALL, CLIENT, OF_GROUPS, request_for
from kit.protocol import decode_answer

if TYPE_CHECKING:
    from keylane.broker.dispatch import Api

GROUP = "flights, 北"


def test_these_are_all_apis_of_groups_that_are_offered() -> None:
    assert len(OF_GROUPS) == len(APIS)


@pytest.mark.parametrize(("api", "version"), ALL, ids=lambda one: getattr(one, "name", one))
def test_the_group_is_read_off_every_request(api: Api, version: int) -> None:
    frame = request_for(api, version, [GROUP])
    assert list(groups_of(api, version, frame)) == [GROUP]
    for end in range(8, frame.index(GROUP.encode()) + 1):
        with pytest.raises((ValueError, IndexError)):
            groups_of(api, version, frame[:end])


MANY_GROUPS = [(api, version) for api, version in ALL if api.name in MANY and version >= MANY[api.name].first]


@pytest.mark.parametrize(("api", "version"), MANY_GROUPS, ids=lambda one: getattr(one, "name", one))
def test_a_request_for_many_groups_is_divided_and_its_answers_joined(api: Api, version: int) -> None:
    groups = ["b", GROUP, "a", "c"]
    frame = request_for(api, version, groups)
    assert list(groups_of(api, version, frame)) == groups
    parts = divided(api, version, frame, [[0, 3], [1], [2]])
    assert [list(groups_of(api, version, part)) for part in parts] == [["b", "c"], [GROUP], ["a"]]
    assert divided(api, version, frame, [[0, 1, 2, 3]]) == [frame]
    header = frame[: frame.index(CLIENT.encode()) + len(CLIENT) + api.schema(version).is_flexible]
    assert all(part.startswith(header) for part in parts), "correlation id and client id are the request's"

    def answer(part: bytes) -> bytes:
        request, _ = request_schema(api.name, version).read(part, len(header))
        found = error_answer(api.name, version, request, codes.NOT_COORDINATOR)
        tags = b"\0" if api.schema(version).has_flexible_response_header else b""
        return frame[4:8] + tags + encode_response(found)

    _, whole = decode_answer(api.name, version, joined(api, version, groups, [answer(part) for part in parts[::-1]]))
    assert [row.group_id for row in getattr(whole, MANY[api.name].answered)] == groups
