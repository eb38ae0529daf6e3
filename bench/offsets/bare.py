"""What a commit of one client with one in flight takes at least on this machine, whatever broker it asks: a sync, and a
round trip between two processes. Without a loop, a protocol, offsets: blocking sockets in Python.

`python -m offsets.bare FILE` is the other process: it answers what comes on its one connection, and before that appends
to FILE and syncs it; without FILE it only answers.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REQUEST_BYTES, ANSWER_BYTES, SYNCED_BYTES = 90, 40, 160
"""About what a commit of one partition, its answer, and its part of keylane's journal take."""
READ_BYTES = 4_096
SECONDS = 0.7
RESERVE_BYTES = 8 * 1024 * 1024
"""For 50,000 syncs."""


def bounds(folder: Path) -> dict[str, float]:
    """A second: syncs in one thread of a file that grows, and of one that does not; bare round trips, and bare round
    trips with a sync in each."""
    path = folder / "bare"
    try:
        return {
            "syncs_per_s": syncs_per_s(path),
            "reserved_syncs_per_s": reserved_syncs_per_s(path),
            "round_trips_per_s": round_trips_per_s([]),
            "synced_round_trips_per_s": round_trips_per_s([str(path)]),
        }
    finally:
        path.unlink()


def syncs_per_s(path: Path) -> float:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return _rate(lambda: _sync(fd))
    finally:
        os.close(fd)


def reserved_syncs_per_s(path: Path) -> float:
    """Over bytes that were written and synced before, as keylane's journal does: a sync without a new size."""
    path.write_bytes(b"\xe5" * RESERVE_BYTES)
    fd = os.open(path, os.O_WRONLY)
    try:
        os.fsync(fd)
        return _rate(lambda: _sync(fd))
    finally:
        os.close(fd)


def round_trips_per_s(arguments: list[str]) -> float:
    command = [sys.executable, "-m", "offsets.bare", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        with _connected(socket.create_connection(("127.0.0.1", int(other.stdout.readline())))) as link:
            request = bytes(REQUEST_BYTES)

            def ask() -> None:
                link.sendall(request)
                assert len(link.recv(READ_BYTES)) == ANSWER_BYTES

            return _rate(ask)


def _rate(step: Callable[[], None]) -> float:
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < SECONDS:
        step()
        count += 1
    return count / spent


def _sync(fd: int) -> None:
    os.write(fd, bytes(SYNCED_BYTES))
    os.fdatasync(fd)


def _connected(link: socket.socket) -> socket.socket:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def main() -> None:
    """Ends with the connection."""
    paths = sys.argv[1:]
    fd = os.open(paths[0], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if paths else None
    answer = bytes(ANSWER_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        link = _connected(server.accept()[0])
    with link:
        while link.recv(READ_BYTES):
            if fd is not None:
                _sync(fd)
            link.sendall(answer)


if __name__ == "__main__":
    main()
