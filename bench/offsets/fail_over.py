"""How long no commit is acknowledged while a server or a node of its log goes, as a client of the protocol sees it.

Clients of groups in different offsets partitions commit all the time, one commit after the other, to whom
FindCoordinator names. When a connection ends or a commit is refused they ask any server again. They have no back-off of
a library's, so what is measured is the servers' own part and Apache Kafka's. Nodes are given up after
`broker.session.timeout.ms`, 6 s here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.coordinator.formats import partition_for
from offsets.load import OFFSETS_PARTITIONS, Address, ask_coordinator, commit_answer, commit_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STEADY_S = 2.0
"""Before a fault."""
GIVEN_UP_S = 60.0
ASK_S = 2.0
"""A server that says nothing for so long is not asked further."""
ANSWER_S = 30.0
"""A commit waits for so long, as those of libraries do."""
AGAIN_S = 0.05
PROBED = range(0, OFFSETS_PARTITIONS, 4)
"""Offsets partitions of which one group is asked for each."""


class Kind(NamedTuple):
    """A fault, and for how many seconds nobody shall be silent."""

    name: str
    asked_s: float | None


STOPPED, KILLED = Kind("a server is stopped", 1.0), Kind("a server is killed", 8.0)
LEADER_KILLED = Kind("a node that leads a part of the log is killed", 10.0)
LEADER_FROZEN = Kind("a node that leads a part of the log is frozen", None)
KINDS = (STOPPED, KILLED, LEADER_KILLED, LEADER_FROZEN)


class Prober(threading.Thread):
    """Commits for one group, until it is stopped."""

    def __init__(self, servers: Sequence[str], group: str) -> None:
        super().__init__(daemon=True)
        self.group = group
        self.acknowledged_at: list[float] = []
        self._servers = itertools.cycle(servers)
        self._is_over = threading.Event()
        self._frame, self._answer = commit_frame(group, 1, 1), commit_answer(1)

    def run(self) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(OSError):
                found = self._coordinator()
                if found is not None:
                    self._commit(found)
            time.sleep(AGAIN_S)

    def stop(self) -> None:
        self._is_over.set()
        self.join()

    def silence_s(self, since: float) -> float:
        """The longest from then on."""
        later = [since, *(at for at in self.acknowledged_at if at > since)]
        return max((after - before for before, after in itertools.pairwise(later)), default=0.0)

    def _coordinator(self) -> Address | None:
        host, _, port = next(self._servers).rpartition(":")
        return ask_coordinator((host, int(port)), self.group, ASK_S)

    def _commit(self, address: Address) -> None:
        """Until a commit is refused. Raises `OSError`."""
        with socket.create_connection(address, timeout=ASK_S) as link:
            link.settimeout(ANSWER_S)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not self._is_over.is_set():
                link.sendall(self._frame)
                if _received(link) != self._answer:
                    return
                self.acknowledged_at.append(time.monotonic())
                time.sleep(AGAIN_S)


def _received(link: socket.socket) -> bytes:
    """One answer. Raises `OSError`."""
    with link.makefile("rb") as file:
        head = file.read(4)
        if len(head) < 4:
            raise ConnectionError("closed")
        (size,) = struct.unpack(">i", head)
        return head + file.read(size)


def groups() -> list[str]:
    """One of each partition that is probed."""
    names = (f"fail-over-{number}" for number in itertools.count())
    found: dict[int, str] = {}
    while len(found) < OFFSETS_PARTITIONS:
        found.setdefault(partition_for(name := next(names), OFFSETS_PARTITIONS), name)
    return [found[partition] for partition in PROBED]


def silence(servers: Sequence[str], strike: Callable[[], object]) -> dict[str, Any]:
    """Of the group that was silent longest while `strike` happened to servers or to their log."""
    probers = [Prober(servers, name) for name in groups()]
    for one in probers:
        one.start()
    try:
        _until_all(probers, time.monotonic() + STEADY_S)
        struck_at = time.monotonic()
        strike()
        _until_all(probers, struck_at + STEADY_S)
        _until_all(probers, time.monotonic() + STEADY_S)
    finally:
        for one in probers:
            one.stop()
    silences = sorted(one.silence_s(struck_at) for one in probers)
    return {"longest_s": round(silences[-1], 2), "load": os.getloadavg()[0]}


def _until_all(probers: Sequence[Prober], moment: float) -> None:
    """Until each has had a commit acknowledged after that moment. Raises `TimeoutError`."""
    deadline = moment + GIVEN_UP_S
    while not all(one.acknowledged_at and one.acknowledged_at[-1] > moment for one in probers):
        if time.monotonic() > deadline:
            raise TimeoutError(f"a group has had no commit acknowledged for {GIVEN_UP_S:g} s")
        time.sleep(0.05)
