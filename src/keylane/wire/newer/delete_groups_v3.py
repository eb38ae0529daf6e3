"""DeleteGroups 3: each result has a message."""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.delete_groups.v2 import request as v2
from kio.schema.delete_groups.v2 import response as v2_response
from kio.static.primitive import i16


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest(v2.DeleteGroupsRequest):
    __version__: ClassVar[i16] = i16(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletableGroupResult(v2_response.DeletableGroupResult):
    __version__: ClassVar[i16] = i16(3)
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse(v2_response.DeleteGroupsResponse):
    __version__: ClassVar[i16] = i16(3)
    results: tuple[DeletableGroupResult, ...]
