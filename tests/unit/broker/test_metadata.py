"""Topics that a request for metadata makes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.config import BrokerConfig
from keylane.broker.dispatch import RequestHeader
from keylane.broker.handlers import metadata
from keylane.broker.node import Node
from keylane.broker.topic_files import TopicFiles
from keylane.storage.filesystem import OsFileSystem, now_ms
from keylane.wire.versions import request_type
from kit.protocol import part

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

VERSION = 12
CREATING_AND_LIVE = 2
"""Writes of the registry for topics that are made together."""


async def asked(node: Node, *names: str) -> list[tuple[str, ErrorCode, int]]:
    topics = tuple(part("metadata", VERSION, "MetadataRequestTopic", name=name, topic_id=None) for name in names)
    request = request_type("metadata", VERSION)(
        topics=topics, allow_auto_topic_creation=True, include_topic_authorized_operations=False
    )
    answer: Any = await metadata.handle(request, RequestHeader(3, VERSION, 1, None, "h"), node)
    return [(one.name, one.error_code, len(one.partitions)) for one in answer.topics]


def test_topics_are_made_in_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = 0
    write = TopicFiles.write

    def counted(files: TopicFiles, entries: list[dict[str, Any]]) -> None:
        nonlocal writes
        writes += 1
        write(files, entries)

    monkeypatch.setattr(TopicFiles, "write", counted)

    async def whole() -> None:
        config = BrokerConfig(num_partitions=2, auto_create_topics_enable=True)
        node = await Node.open(OsFileSystem(), str(tmp_path / "data"), config, now_ms)
        await node.coordinator.loaded()
        try:
            made = [(name, ErrorCode.none, 2) for name in ("a", "b", "c.d")]
            illegal = ErrorCode.invalid_topic_exception
            others = [("c_d", illegal, 0), ("e f", illegal, 0)]
            assert await asked(node, "a", "b", "c.d", "c_d", "e f") == [*made, *others]
            assert await asked(node, "c_d", "a") == [others[0], made[0]]
            assert writes == CREATING_AND_LIVE
        finally:
            await node.close()

    asyncio.run(whole())
