"""Very many members that leave at once do so step by step."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.config import BrokerConfig
from keylane.broker.dispatch import RequestHeader
from keylane.broker.handlers import leave_group
from keylane.broker.node import Node
from keylane.coordinator.coordinator import Coordinator
from keylane.storage.filesystem import OsFileSystem, now_ms
from keylane.wire.versions import request_type
from kit.protocol import part

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from keylane.coordinator.groups.protocol import Leaver, Left

VERSION = 5
STEP = 10


def test_members_leave_in_steps_and_each_has_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    leave = Coordinator.leave

    async def counted(coordinator: Coordinator, group: str, leavers: Sequence[Leaver]) -> tuple[int, Sequence[Left]]:
        steps.append(len(leavers))
        return await leave(coordinator, group, leavers)

    monkeypatch.setattr(Coordinator, "leave", counted)
    monkeypatch.setattr(leave_group, "MEMBERS_AT_ONCE", STEP)

    async def asked(node: Node, group: str, count: int) -> tuple[ErrorCode, list[tuple[str, ErrorCode]]]:
        members = tuple(
            part("leave_group", VERSION, "MemberIdentity", member_id=f"m{number}", group_instance_id=None, reason=None)
            for number in range(count)
        )
        request = request_type("leave_group", VERSION)(group_id=group, members=members)
        answer: Any = await leave_group.handle(request, RequestHeader(13, VERSION, 1, None, "h"), node)
        return answer.error_code, [(one.member_id, one.error_code) for one in answer.members]

    async def whole() -> None:
        node = await Node.open(OsFileSystem(), str(tmp_path / "data"), BrokerConfig(), now_ms)
        await node.coordinator.loaded()
        try:
            unknown = [(f"m{number}", ErrorCode.unknown_member_id) for number in range(25)]
            assert await asked(node, "g", 25) == (ErrorCode.none, unknown)
            assert await asked(node, "g", 0) == (ErrorCode.none, [])
            assert await asked(node, "", 25) == (ErrorCode.invalid_group_id, [])
            assert steps == [STEP, STEP, 5, 0, STEP]
        finally:
            await node.close()

    asyncio.run(whole())
