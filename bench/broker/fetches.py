"""Fetches of many partitions, of which few have records, over a bare socket: in a session (KIP-227), and without.

What a client's library costs is left out: requests are made before the time begins, and answers are read as bytes. The
first `load.records` partitions have a record each, which every fetch is given again.
"""

from __future__ import annotations

import datetime
import importlib
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

from keylane.wire.versions import encode_response, read_response, request_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.work import Load

API_KEY, VERSION = 1, 12
HEADER = struct.pack(">hhih", API_KEY, VERSION, 0, -1) + b"\0"
EPOCH_AT = 4 + len(HEADER) + struct.calcsize(">iiiibi")
"""Behind the frame's size and header: replica, longest wait, least and most bytes, isolation level, session id."""
NO_SESSION, OPENS, CLOSES = 0, 0, -1


class Connection:
    """Sends frames and reads whole answers."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def ask(self, frame: bytes) -> bytes:
        self._socket.sendall(frame)
        (size,) = struct.unpack(">i", self._file.read(4))
        return self._file.read(size)

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def request(load: Load, partitions: int, session_id: int, epoch: int) -> bytes:
    """A frame that names the first `partitions` of the topic, each from its beginning."""
    parts: Any = importlib.import_module(f"kio.schema.fetch.v{VERSION}.request")
    asked = tuple(
        parts.FetchPartition(partition=one, fetch_offset=0, partition_max_bytes=1_048_576) for one in range(partitions)
    )
    entity = request_type("fetch", VERSION)(
        max_wait=datetime.timedelta(0), min_bytes=1, max_bytes=52_428_800, session_id=session_id, session_epoch=epoch,
        topics=(parts.FetchTopic(topic=load.topic, partitions=asked),) if asked else (), forgotten_topics_data=(),
    )  # fmt: skip
    body = HEADER + encode_response(entity)
    return struct.pack(">i", len(body)) + body


def told(answer: bytes) -> tuple[int, int]:
    """The session's id, and how many partitions the answer tells of."""
    entity: Any = read_response("fetch", VERSION, answer)[0]
    assert int(entity.error_code) == 0, entity.error_code
    return entity.session_id, sum(len(topic.partitions) for topic in entity.responses)


def session(load: Load) -> dict[str, float]:
    """Each fetch names no partition, and is told of those with records."""
    connection = Connection(load.bootstrap)
    session_id, count = told(connection.ask(request(load, load.partitions, NO_SESSION, OPENS)))
    assert (session_id > 0, count) == (True, load.partitions)
    first = request(load, 0, session_id, 1)

    def frame(number: int) -> bytes:
        return first[:EPOCH_AT] + struct.pack(">i", number + 1) + first[EPOCH_AT + 4 :]

    found = _run(connection, frame, load.seconds, load.records)
    connection.ask(request(load, 0, session_id, CLOSES))
    connection.close()
    return found


def sessionless(load: Load) -> dict[str, float]:
    """Each fetch names every partition, and is told of every one."""
    connection = Connection(load.bootstrap)
    whole = request(load, load.partitions, NO_SESSION, CLOSES)
    found = _run(connection, lambda _: whole, load.seconds, load.partitions)
    connection.close()
    return found


def _run(connection: Connection, frame: Callable[[int], bytes], seconds: float, expected: int) -> dict[str, float]:
    """Fetches a second, one after the other; the bytes of a request and of an answer."""
    count, started = 0, time.perf_counter()
    answer = b""
    while time.perf_counter() - started < seconds:
        answer = connection.ask(frame(count))
        count += 1
    elapsed = time.perf_counter() - started
    assert told(answer)[1] == expected
    return {"per_s": count / elapsed, "request_bytes": len(frame(0)), "answer_bytes": len(answer)}
