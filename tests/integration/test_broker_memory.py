"""Many clients that ask for much, or send much, at once: the broker's memory is bounded, and others are served."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from keylane.broker.process import BrokerProcess
from keylane.broker.server import DRAIN_TIMEOUT_S
from keylane.kafka.admin import Admin
from keylane.wire.batches import NewRecord, encode_batch
from keylane.wire.partition_log import produce
from kit.processes import peak_mb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MB = 1024 * 1024
TOPIC = "flights"
CLIENTS = 60
ANSWER_BYTES = 40 * MB
REQUEST_BYTES = 20 * MB
MAX_GROWTH_MB = 200
"""Where each client's bytes would take 2,400 MB of answers, or 1,200 MB of requests."""
SETTINGS = {
    "message.max.bytes": str(2 * REQUEST_BYTES),
    "queued.max.request.bytes": str(32 * MB),
    "keylane.queued.max.answer.bytes": str(32 * MB),
}


def frame(key: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhih", key, version, 1, -1) + body
    return struct.pack(">i", len(request)) + request


VERSIONS = frame(18, 0, b"")


def fetch(max_bytes: int) -> bytes:
    partition = struct.pack(">iiqi", 1, 0, 0, max_bytes)
    head = struct.pack(">iiiibi", -1, 500, 1, max_bytes, 0, 1)
    return frame(1, 4, head + struct.pack(">h", len(TOPIC)) + TOPIC.encode() + partition)


def produced(size: int) -> bytes:
    batch = encode_batch([NewRecord(b"k", bytes(size))], timestamp_ms=int(time.time() * 1_000))
    return frame(0, 7, produce(TOPIC, 0, batch, 30_000))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("memory")
    with BrokerProcess(folder / "data", settings=SETTINGS) as running:
        Admin({"bootstrap.servers": running.bootstrap}).create_topics({TOPIC: 1})
        yield running


class Crowd:
    """Clients that all send the same bytes, and take what comes."""

    def __init__(self, broker: BrokerProcess, request: bytes, stack: ExitStack) -> None:
        self._address = (broker.host, broker.port)
        self._request = request
        self._stack = stack
        self._selector = stack.enter_context(selectors.DefaultSelector())
        self._left: dict[socket.socket, memoryview] = {}
        self._answers: dict[socket.socket, list[int]] = {}
        """Of each: bytes that are still to come, once its size is known."""

    def connect(self) -> socket.socket:
        return self._stack.enter_context(socket.create_connection(self._address, 30))

    def begin(self, count: int) -> None:
        for _ in range(count):
            one = self.connect()
            one.setblocking(False)
            self._left[one] = memoryview(self._request)
            self._selector.register(one, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def go_on(self) -> int:
        """What can be sent or taken now; how many have their whole answer."""
        for key, _ in self._selector.select(0.1):
            one = key.fileobj
            assert isinstance(one, socket.socket)
            if self._left[one]:
                try:
                    self._left[one] = self._left[one][one.send(self._left[one][:MB]) :]
                except BlockingIOError:
                    continue
                if not self._left[one]:
                    self._selector.modify(one, selectors.EVENT_READ)
            else:
                self._take(one)
        return sum(answer == [0] for answer in self._answers.values())

    def _take(self, one: socket.socket) -> None:
        data = one.recv(MB)
        assert data, "the broker closed a connection"
        if one not in self._answers:
            self._answers[one] = [int.from_bytes(data[:4], "big") + 4]
        self._answers[one][0] -= len(data)
        if not self._answers[one][0]:
            self._selector.unregister(one)


def ask(one: socket.socket, request: bytes) -> bytes:
    one.sendall(request)
    stream = one.makefile("rb")
    return stream.read(int.from_bytes(stream.read(4), "big"))


def served_meanwhile(broker: BrokerProcess, request: bytes) -> int:
    """Run the crowd; how often somebody else was answered before the last of it was."""
    before = peak_mb(broker.pid)
    with ExitStack() as stack:
        crowd = Crowd(broker, request, stack)
        other = crowd.connect()
        crowd.begin(CLIENTS)
        count = 0
        while crowd.go_on() < CLIENTS:
            assert ask(other, VERSIONS)
            count += 1
    assert peak_mb(broker.pid) - before <= MAX_GROWTH_MB
    return count


def test_many_that_fetch_much(broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        one = Crowd(broker, b"", stack).connect()
        for _ in range(ANSWER_BYTES // (4 * MB)):
            ask(one, produced(4 * MB))
    assert served_meanwhile(broker, fetch(ANSWER_BYTES)) >= CLIENTS


def test_a_client_that_takes_each_large_answer_is_read_from_again(broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        one = Crowd(broker, b"", stack).connect()
        ask(one, produced(MB))
        for _ in range(20):
            assert len(ask(one, fetch(MB))) > MB // 2


def test_many_that_send_much(broker: BrokerProcess) -> None:
    assert served_meanwhile(broker, produced(REQUEST_BYTES)) >= CLIENTS


@pytest.mark.full
def test_clients_that_take_or_send_nothing_do_not_keep_the_memory(broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        crowd = Crowd(broker, b"", stack)
        ask(crowd.connect(), produced(8 * MB))
        silent = [crowd.connect() for _ in range(5)]
        for one in silent:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            one.sendall(fetch(ANSWER_BYTES))
        half = produced(REQUEST_BYTES)[: 2 * MB]
        for one in (crowd.connect() for _ in range(2)):
            one.setblocking(False)
            one.send(half)
        assert len(ask(crowd.connect(), fetch(ANSWER_BYTES))) > MB
        assert ask(crowd.connect(), produced(REQUEST_BYTES))
    said = broker.log.read_text()
    assert "takes no more of its answer, and others wait for the memory" in said
    assert "sends no more of its request, and others wait for the memory" in said


def describe_configs(count: int) -> bytes:
    """Of so many groups, which need not be there."""
    groups = b"".join(struct.pack(">bh6si", 32, 6, b"%06d" % number, -1) for number in range(count))
    return frame(32, 1, struct.pack(">i", count) + groups + b"\0")


def test_configs_of_many_resources_take_little_memory_and_hold_up_no_stop(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, ExitStack() as stack:
        crowd = Crowd(broker, b"", stack)
        before = peak_mb(broker.pid)
        crowd.connect().sendall(describe_configs(300_000))
        other = crowd.connect()
        for _ in range(200):
            assert ask(other, VERSIONS)
        assert peak_mb(broker.pid) - before <= MAX_GROWTH_MB
        begun = time.monotonic()
        broker.terminate()
        assert time.monotonic() - begun < DRAIN_TIMEOUT_S
