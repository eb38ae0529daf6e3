"""A request of every API and version of groups and offsets, for groups of one's own."""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any

from keylane.offset_servers.group_requests import MANY, of_leaders
from keylane.wire.conditional_commit import Condition, Request
from keylane.wire.conditional_commit import encode_request as encode_conditional_commit
from keylane.wire.primitives import string
from kit.protocol import encode_request
from kit.samples import sample_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.broker.dispatch import Api

OF_GROUPS = {api.name: api for api in of_leaders().values()}
ALL = [(api, version) for api in OF_GROUPS.values() for version in range(api.min_version, api.max_version + 1)]
CLIENT = "keylane-testing"


def request_for(api: Api, version: int, groups: Sequence[str], number: int = 7) -> bytes:
    """A request for these groups (one, where the API takes no more), without its size."""
    if api.name == "conditional_commit":
        body = encode_conditional_commit(Request(groups[0], -1, "", None, [("t", [Condition(0, -1, 5, -1, None)])]))
        return struct.pack(">hhi", api.key, version, number) + string(CLIENT) + body
    values: dict[str, Any] = {"group_id": groups[0]}
    if api.name == "offset_fetch" and version >= MANY["offset_fetch"].first:
        one = sample_request(api.name, version).groups[0]
        values["groups"] = tuple(dataclasses.replace(one, group_id=group) for group in groups)
    elif api.name in MANY:
        values[MANY[api.name].asked] = tuple(groups)
    return encode_request(api.name, sample_request(api.name, version, **values), number, CLIENT)[4:]
