"""A fetch that waits hears of a record whenever it comes: others have turns while it looks at its partitions."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

import pytest

from keylane.broker import dispatch
from keylane.broker.config import BrokerConfig
from keylane.broker.dispatch import decode_request, load_apis
from keylane.broker.handlers import fetch
from keylane.broker.handlers.produce import append_own
from keylane.broker.node import Node
from keylane.storage.filesystem import OsFileSystem, now_ms
from keylane.wire.batches import NewRecord, encode_batch

if TYPE_CHECKING:
    from pathlib import Path

PARTITIONS = 3
NEXT = dispatch.Slices.next
WAIT_MS = 60_000
HEAD = struct.pack(">hhih", 1, 4, 1, -1) + struct.pack(">iiiibi", -1, WAIT_MS, 1, 1_000_000, 0, 1)
FRAME = (
    HEAD
    + struct.pack(">h1si", 1, b"t", PARTITIONS)
    + b"".join(struct.pack(">iqi", index, 0, 1_000_000) for index in range(PARTITIONS))
)


@pytest.mark.parametrize("turn", range(4 * PARTITIONS + 1))
def test_a_record_that_comes_in_any_turn_is_answered(
    turn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "SLICE_S", -1.0)

    async def whole() -> bytes:
        node = await Node.open(OsFileSystem(), str(tmp_path / "data"), BrokerConfig(), now_ms)
        await node.coordinator.loaded()
        await node.topics.create("t", PARTITIONS)
        turns = iter(range(1_000))

        async def given(slices: dispatch.Slices) -> None:
            if next(turns) == turn:
                await append_own("t", 0, encode_batch([NewRecord(b"k", b"v")], timestamp_ms=now_ms()), node)
            await NEXT(slices)

        monkeypatch.setattr(dispatch.Slices, "next", given)
        call = decode_request(FRAME, "h", load_apis())
        try:
            return b"".join(await asyncio.wait_for(fetch.handle(call.request, call.header, node), WAIT_MS / 2_000))
        finally:
            await node.close()

    assert b"k" in asyncio.run(whole())
