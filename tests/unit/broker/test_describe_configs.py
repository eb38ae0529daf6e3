"""The answer to DescribeConfigs is bounded, whatever a request asks for."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from keylane.broker.config import BrokerConfig
from keylane.broker.dispatch import RequestHeader, decode_request, load_apis
from keylane.broker.handlers import describe_configs as handler
from keylane.wire import codes
from keylane.wire.versions import read_response

if TYPE_CHECKING:
    import pytest

    from keylane.broker.node import Node

GROUPS = b"".join(struct.pack(">bh2si", 32, 2, b"g%d" % number, -1) for number in range(3))
REQUEST = struct.pack(">hhihi", 32, 1, 1, -1, 3) + GROUPS + b"\0"


def test_an_answer_that_would_be_too_large_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole() -> list[tuple[int, bool, str | None]]:
        node = cast("Node", SimpleNamespace(group_configs=SimpleNamespace(texts=lambda _: {}), config=BrokerConfig()))
        request = decode_request(REQUEST, "h", load_apis()).request
        header = RequestHeader(32, 1, 1, None, "h")
        parts = await handler.handle(request, header, node)
        answer, _ = read_response("describe_configs", 1, bytes(4) + b"".join(parts))
        return [(int(one.error_code), bool(one.configs), one.error_message) for one in answer.results]

    monkeypatch.setattr(handler, "MOST_BYTES", 100)
    told = asyncio.run(whole())
    assert told[0] == (codes.NONE, True, None)
    assert told[-1] == (
        codes.INVALID_REQUEST,
        False,
        "the answer has 100 bytes already: describe fewer than 3 resources",
    )
