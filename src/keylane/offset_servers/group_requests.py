"""Which groups a request is for, purely: read off its frame; and a request for many groups divided, and its answers
joined.

The first field behind the header is the group, but for four APIs that take many.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, NamedTuple

from keylane.broker.dispatch import load_apis
from keylane.broker.handlers import offset_fetch
from keylane.wire.primitives import FieldReader
from keylane.wire.versions import encode_response, read_response, request_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keylane.broker.dispatch import Api

APIS = (
    "conditional_commit",
    "consumer_group_describe",
    "consumer_group_heartbeat",
    "delete_groups",
    "describe_groups",
    "heartbeat",
    "join_group",
    "leave_group",
    "offset_commit",
    "offset_delete",
    "offset_fetch",
    "sync_group",
)
"""Those of groups and offsets that the leader of a group answers."""


class _Many(NamedTuple):
    """An API that takes many groups: kio's names of its fields."""

    asked: str
    answered: str
    first: int
    """Version."""


NEWEST = {"offset_commit": 9, "offset_fetch": 9}
"""Newer versions name topics by their ids, and what is committed stands in the log by name."""


MANY = {
    "consumer_group_describe": _Many("group_ids", "groups", 0),
    "delete_groups": _Many("groups_names", "results", 0),
    "describe_groups": _Many("groups", "groups", 0),
    "offset_fetch": _Many("groups", "groups", offset_fetch.MANY_GROUPS_VERSION),
}
_KEY_AND_VERSION = struct.Struct(">hh")
_CLIENT_ID_AT = 8


def of_leaders() -> dict[int, Api]:
    """The APIs of groups and offsets, by key, in the versions that are offered."""
    found = {key: api for key, api in load_apis().items() if api.name in APIS}
    newest = {key: NEWEST.get(api.name, api.max_version) for key, api in found.items()}
    return {key: api._replace(max_version=min(api.max_version, newest[key])) for key, api in found.items()}


def key_and_version(frame: bytes) -> tuple[int, int]:
    """Of a request."""
    key, version = _KEY_AND_VERSION.unpack_from(frame)
    return key, version


def groups_of(api: Api, version: int, frame: bytes) -> Sequence[str]:
    """The groups that a request of this API and version is for. Raises `ValueError`."""
    reader = _behind_header(api, version, frame)
    many = MANY.get(api.name)
    if many is None or version < many.first:
        return (reader.string(),)
    start = reader.at
    count = len(reader.items())
    if count == 1 or api.name != "offset_fetch":
        return [reader.string() for _ in range(count)]
    return [one.group for one in offset_fetch.decode(version, frame, start)]


def _behind_header(api: Api, version: int, frame: bytes) -> FieldReader:
    reader = FieldReader(frame, _CLIENT_ID_AT)
    reader.nullable_string()
    reader.go_on(is_flexible=api.schema(version).is_flexible)
    reader.skip_tags()
    return reader


def divided(api: Api, version: int, frame: bytes, parts: Sequence[Sequence[int]]) -> list[bytes]:
    """The request's frame for each part of its groups, which are numbered as `groups_of` has them. Raises
    `ValueError`."""
    start = _behind_header(api, version, frame).at
    request, _ = request_schema(api.name, version).read(frame, start)
    asked = MANY[api.name].asked
    groups = getattr(request, asked)
    return [
        frame[:start] + encode_response(dataclasses.replace(request, **{asked: tuple(groups[one] for one in part)}))
        for part in parts
    ]


def joined(api: Api, version: int, groups: Sequence[str], answers: Sequence[bytes]) -> bytes:
    """The answer's frame, of those of all parts, with the groups in the order in which they were asked for."""
    places: Mapping[str, int] = {group: at for at, group in reversed(list(enumerate(groups)))}
    found = [read_response(api.name, version, answer) for answer in answers]
    whole, start = found[0]
    answered = MANY[api.name].answered
    rows = [row for answer, _ in found for row in getattr(answer, answered)]
    rows.sort(key=lambda row: places[row.group_id])
    return answers[0][:start] + encode_response(dataclasses.replace(whole, **{answered: tuple(rows)}))
