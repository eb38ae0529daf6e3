"""The load generator: pipelined commits and fetches over many connections, cheap enough not to be what is measured.

All frames of a connection are made before the clock starts, with one size and one correlation id. So its answers are
all equal, byte by byte, and checking thousands of them is one comparison. One thread serves all connections.

`python -m offsets.load` is told what to do line by line (JSON) and answers line by line, so that one warm process
serves all contestants.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import selectors
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.broker.config import BrokerConfig
from keylane.coordinator.formats import partition_for

if TYPE_CHECKING:
    from collections.abc import Sequence

Address = tuple[str, int]
TOPIC = "bench"
CORRELATION_ID = 7
COMMIT, FETCH, FIND_COORDINATOR = 8, 9, 10
COMMIT_VERSION, FETCH_VERSION, FIND_COORDINATOR_VERSION = 9, 9, 2
"""What librdkafka 2.x asks."""
BLOCK_BYTES = 1024 * 1024
"""Frames made in advance for a connection, at most (one at least); they are sent round and round."""
READ_BYTES = 1024 * 1024
READY_TIMEOUT_S = 60
LEAST_PER_S = 1_000
"""Of the commits by new groups."""
OFFSETS_PARTITIONS = BrokerConfig().offsets_topic_num_partitions
NOT_YET = (14, 15, 16)
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""


class Load(NamedTuple):
    """What to do: `in_flight` requests at all times on each of `connections`, `partitions` in each."""

    bootstrap: str
    what: str
    connections: int
    in_flight: int
    partitions: int
    seconds: float
    """0: until each group has been served once."""
    prefix: str
    """Of the groups."""
    groups: int = 1
    """Of each connection, by turns; with more than one, of the offset servers or the embedded broker."""


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _compact(text: str) -> bytes:
    return _varint(len(text) + 1) + text.encode()


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _frame(key: int, version: int, body: bytes, *, flexible: bool) -> bytes:
    head = struct.pack(">hhi", key, version, CORRELATION_ID) + _string("load") + (b"\0" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def commit_frame(group: str, partitions: int, offset: int) -> bytes:
    rows = b"".join(struct.pack(">iqi", index, offset, -1) + b"\1\0" for index in range(partitions))
    topic = _compact(TOPIC) + _varint(partitions + 1) + rows + b"\0"
    body = _compact(group) + struct.pack(">i", -1) + b"\1\0" + _varint(2) + topic + b"\0"
    return _frame(COMMIT, COMMIT_VERSION, body, flexible=True)


def fetch_frame(group: str, partitions: int) -> bytes:
    indexes = struct.pack(f">{partitions}i", *range(partitions))
    topic = _compact(TOPIC) + _varint(partitions + 1) + indexes + b"\0"
    one = _compact(group) + b"\0" + struct.pack(">i", -1) + _varint(2) + topic + b"\0"
    return _frame(FETCH, FETCH_VERSION, _varint(2) + one + b"\0\0", flexible=True)


def commit_answer(partitions: int, error: int = 0) -> bytes:
    """What a broker answers when all is well, or refused for one reason."""
    rows = b"".join(struct.pack(">ih", index, error) + b"\0" for index in range(partitions))
    body = bytes(4) + _varint(2) + _compact(TOPIC) + _varint(partitions + 1) + rows + b"\0\0"
    return struct.pack(">iib", len(body) + 5, CORRELATION_ID, 0) + body


def fetch_answer(group: str, partitions: int, offset: int) -> bytes:
    rows = b"".join(struct.pack(">iqi", index, offset, -1) + b"\1\0\0\0" for index in range(partitions))
    topic = _compact(TOPIC) + _varint(partitions + 1) + rows + b"\0"
    body = bytes(4) + _varint(2) + _compact(group) + _varint(2) + topic + b"\0\0\0\0"
    return struct.pack(">iib", len(body) + 5, CORRELATION_ID, 0) + body


class Client:
    """One connection, to the coordinator of its groups."""

    def __init__(self, load: Load, address: Address, groups: Sequence[str]) -> None:
        group = groups[0]
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel's own limit: Python's would be a system call more for each read.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", READY_TIMEOUT_S, 0))
        last = 1 << 40
        first = commit_frame(group, load.partitions, last)
        self._commit_first(first, load.partitions)
        self.least = len(groups) if load.seconds == 0 else 1
        """Answers, before the end."""
        if len(groups) > 1:
            frames = [commit_frame(each, load.partitions, last) for each in groups]
            self.answer = commit_answer(load.partitions)
        elif load.what == "commit":
            count = max(1, min(BLOCK_BYTES // len(first), load.in_flight * 4))
            frames = [commit_frame(group, load.partitions, last + number) for number in range(count)]
            self.answer = commit_answer(load.partitions)
        else:
            frames = [fetch_frame(group, load.partitions)]
            frames *= max(1, min(BLOCK_BYTES // len(frames[0]), load.in_flight * 4))
            self.answer = fetch_answer(group, load.partitions, last)
        self._frame_size = len(frames[0])
        self.frames = frames
        self._block = b"".join(frames)
        self._at = 0
        self._unsent = b""
        self._received = b""
        self.answered = 0
        self.latencies_s: list[float] = []
        self._measures = load.in_flight == 1

    def _commit_first(self, frame: bytes, partitions: int) -> None:
        """Commit until the answer is good: a new Apache Kafka refuses commits while it loads its offsets topic."""
        answer = commit_answer(partitions)
        not_yet = [commit_answer(partitions, error) for error in NOT_YET]
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            self.socket.sendall(frame)
            got = b""
            while len(got) < len(answer):  # a refusal has the same size
                got += self.socket.recv(len(answer) - len(got))
            if got == answer:
                return
            if got not in not_yet or time.monotonic() > deadline:
                raise RuntimeError(f"an answer that is not expected: {got[:80]!r}")
            time.sleep(0.1)

    def send(self, count: int) -> None:
        """Put so many more requests in flight."""
        if self._measures:
            self._began = time.perf_counter()
        size = count * self._frame_size
        parts = [self._unsent]
        while size:
            part = self._block[self._at : self._at + size]
            parts.append(part)
            size -= len(part)
            self._at = (self._at + len(part)) % len(self._block)
        data = b"".join(parts)
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        self._unsent = data[sent:]

    @property
    def has_more(self) -> bool:
        return bool(self._unsent)

    def receive(self) -> int:
        """How many answers came; checked. Raises `RuntimeError` for another answer than the one expected."""
        data = self._received + self.socket.recv(READ_BYTES)
        if len(data) == len(self._received):
            raise RuntimeError("the broker closed the connection")
        size = len(self.answer)
        count = len(data) // size
        if data[: count * size] != self.answer * count:
            raise RuntimeError(f"an answer that is not expected: {data[:120]!r}, and not {self.answer[:120]!r}")
        self._received = data[count * size :]
        self.answered += count
        if self._measures and count:
            self.latencies_s.append(time.perf_counter() - self._began)
        return count


def coordinator_of(bootstrap: str, group: str) -> Address:
    """Ask until the group is served (a new Apache Kafka makes its offsets topic first)."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            found = ask_coordinator((host, int(port)), group, 10.0)
            if found is not None:
                return found
        time.sleep(0.1)
    raise TimeoutError(f"no coordinator for {group}")


def ask_coordinator(server: Address, group: str, timeout_s: float) -> Address | None:
    """Whom it names; None while that is nobody. Raises `OSError`."""
    frame = _frame(FIND_COORDINATOR, FIND_COORDINATOR_VERSION, _string(group) + b"\0", flexible=False)
    with socket.create_connection(server, timeout=timeout_s) as link:
        link.sendall(frame)
        answer = link.recv(READ_BYTES)
    if len(answer) < 14 or struct.unpack_from(">h", answer, 12)[0] != 0:
        return None
    at = 20 + max(struct.unpack_from(">h", answer, 14)[0], 0)  # behind the message and the node's id
    (size,) = struct.unpack_from(">h", answer, at)
    return answer[at + 2 : at + 2 + size].decode(), struct.unpack_from(">i", answer, at + 2 + size)[0]


def connections_of(load: Load) -> list[tuple[Address, list[str]]]:
    """Where each connection goes, and its groups: to their coordinator, as a client's does."""
    names = [f"{load.prefix}-{number:07d}" for number in range(load.connections * load.groups)]
    if load.groups == 1:
        return [(coordinator_of(load.bootstrap, name), [name]) for name in names]
    by_partition: dict[int, Address] = {}
    by_server: dict[Address, list[str]] = {}
    for name in names:
        partition = partition_for(name, OFFSETS_PARTITIONS)
        if partition not in by_partition:
            by_partition[partition] = coordinator_of(load.bootstrap, name)
        by_server.setdefault(by_partition[partition], []).append(name)
    each = max(1, load.connections // len(by_server))
    return [(server, groups[at::each]) for server, groups in by_server.items() for at in range(each)]


def run(load: Load) -> dict[str, Any]:
    """Answers a second, and (with one request in flight) how long each took."""
    clients = [Client(load, *one) for one in connections_of(load)]
    with contextlib.ExitStack() as stack:
        for client in clients:
            stack.callback(client.socket.close)
        start = time.perf_counter()
        used_s = time.process_time()
        if (load.connections, load.in_flight) == (1, 1):
            _ask_one_by_one(clients[0], start + load.seconds)
        else:
            _keep_in_flight(clients, load, start)
        elapsed = time.perf_counter() - start
        used_s = time.process_time() - used_s
    latencies = sorted(latency for client in clients for latency in client.latencies_s)
    answered = sum(client.answered for client in clients)
    least = min(client.answered for client in clients)
    return {
        "per_s": answered / elapsed,
        "answered": answered,
        "least_of_a_connection": least,
        "generator_cpu": used_s / elapsed,
        "p50_ms": latencies[len(latencies) // 2] * 1e3 if latencies else None,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1e3 if latencies else None,
    }


def _ask_one_by_one(client: Client, end: float) -> None:
    """As a client does that has nothing else to do: it waits in `recv`. A selector would be a system call more."""
    frames = itertools.cycle(client.frames)
    send, receive, answer, size = client.socket.send, client.socket.recv, client.answer, len(client.answer)
    spent = client.latencies_s.append
    began = time.perf_counter()
    while began < end:
        send(next(frames))
        got = receive(size)
        while len(got) < size:
            more = receive(size - len(got))
            if not more:
                raise RuntimeError("the broker closed the connection")
            got += more
        if got != answer:
            raise RuntimeError(f"an answer that is not expected: {got[:120]!r}, and not {answer[:120]!r}")
        now = time.perf_counter()
        spent(now - began)
        began = now
    client.answered = len(client.latencies_s)


def _keep_in_flight(clients: list[Client], load: Load, start: float) -> None:
    with selectors.DefaultSelector() as selector:
        for client in clients:
            client.socket.setblocking(False)
            selector.register(client.socket, selectors.EVENT_READ, client)
        for client in clients:
            client.send(load.in_flight)
            _watch(selector, client)
        while (spent := time.perf_counter() - start) < load.seconds or any(
            client.answered < client.least for client in clients
        ):
            if spent > load.seconds + READY_TIMEOUT_S + load.connections * load.groups / LEAST_PER_S:
                raise RuntimeError("a connection got no answer, or too few")
            for key, events in selector.select(1):
                client = key.data
                count = client.receive() if events & selectors.EVENT_READ else 0
                if count or client.has_more:
                    client.send(count)
                    _watch(selector, client)


def _watch(selector: selectors.BaseSelector, client: Client) -> None:
    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.has_more else 0)
    if selector.get_key(client.socket).events != events:
        selector.modify(client.socket, events, client)


def main() -> None:
    for line in sys.stdin:
        try:
            answer = run(Load(**json.loads(line)))
        except (OSError, RuntimeError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
