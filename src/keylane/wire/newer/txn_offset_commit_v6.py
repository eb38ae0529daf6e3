"""TxnOffsetCommit 6: topics by their ids (KIP-1319)."""

import uuid
from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.txn_offset_commit.v5 import request as v5
from kio.schema.txn_offset_commit.v5 import response as v5_response
from kio.schema.txn_offset_commit.v5.request import (
    TxnOffsetCommitRequestPartition as TxnOffsetCommitRequestPartition,
)
from kio.schema.txn_offset_commit.v5.response import (
    TxnOffsetCommitResponsePartition as TxnOffsetCommitResponsePartition,
)
from kio.static.constants import EntityType
from kio.static.primitive import i16


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequestTopic:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(6)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(28)
    __header_schema__: ClassVar = v5.TxnOffsetCommitRequest.__header_schema__
    topic_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequest(v5.TxnOffsetCommitRequest):
    __version__: ClassVar[i16] = i16(6)
    topics: tuple[TxnOffsetCommitRequestTopic, ...]  # type: ignore[assignment] # by id


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponseTopic:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(6)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(28)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    topic_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})
    partitions: tuple[TxnOffsetCommitResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponse(v5_response.TxnOffsetCommitResponse):
    __version__: ClassVar[i16] = i16(6)
    topics: tuple[TxnOffsetCommitResponseTopic, ...]  # type: ignore[assignment] # by id
