"""`Net`: hosts that are network namespaces behind a router, whose links a test cuts in silence.

What is cut is dropped: no reset and no ICMP, as with a cable or a firewall, and in one direction if need be. The
namespaces have no names, so they end with the processes in them; this machine's own interfaces and routes stay as they
are. Linux, as root, with iproute2.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

CLONE_NEWNET = 0x40000000
OWN = "/proc/thread-self/ns/net"


def missing() -> str | None:
    """Why there can be no `Net` here, in one line; None when there can."""
    if shutil.which("ip") is None:
        return "network namespaces need iproute2, and `ip` is not on the PATH"
    before = os.open(OWN, os.O_RDONLY)
    try:
        _unshare()
        _enter(before)
    except OSError as error:
        return f"network namespaces are not allowed here ({error.strerror}): run as root, with CAP_SYS_ADMIN"
    finally:
        os.close(before)
    return None


class Net:
    """A context manager. Thread safety: one thread, which is where `inside` says; what it starts is there too."""

    def __init__(self, *hosts: str) -> None:
        self.address = {host: f"10.99.{number}.2" for number, host in enumerate(hosts, 1)}
        self._rules: list[str] = []
        self._spaces: dict[str, int] = {}
        """Open files of namespaces, by host; "" is the router's."""

    def __enter__(self) -> Self:
        for name in ("", *self.address):
            self._spaces[name] = _new_space()
        with self._in(""):
            _ip("link set lo up")
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for number, host in enumerate(self.address, 1):
            gateway, place = f"10.99.{number}.1", f"/proc/{os.getpid()}/fd/{self._spaces[host]}"
            with self._in(""):
                _ip(f"link add to{number} type veth peer name eth0 netns {place}")
                _ip(f"addr add {gateway}/30 dev to{number}")
                _ip(f"link set to{number} up")
            with self._in(host):
                _ip("link set lo up")
                _ip(f"addr add {self.address[host]}/30 dev eth0")
                _ip("link set eth0 up")
                _ip(f"route add default via {gateway}")
        return self

    def __exit__(self, *_: object) -> None:
        for space in self._spaces.values():
            os.close(space)

    @contextmanager
    def inside(self, host: str) -> Iterator[str]:
        """This thread, and the threads and processes that it starts, are on the host; gives its address."""
        with self._in(host):
            yield self.address[host]

    def cut(self, source: str | None, target: str | None) -> None:
        """From now on nothing gets from a host to another one; None: any. The way back stays as it is."""
        ends = (("from", source), ("to", target))
        rule = " ".join(f"{word} {self.address[host]}" for word, host in ends if host is not None)
        with self._in(""):
            _ip(f"rule add {rule} blackhole")
        self._rules.append(rule)

    def isolate(self, host: str) -> None:
        """Nobody hears the host, nor it anybody."""
        self.cut(host, None)
        self.cut(None, host)

    def heal(self) -> None:
        """All links carry again."""
        with self._in(""):
            while self._rules:
                _ip(f"rule del {self._rules.pop()} blackhole")

    @contextmanager
    def _in(self, name: str) -> Iterator[None]:
        before = os.open(OWN, os.O_RDONLY)
        try:
            _enter(self._spaces[name])
            yield
        finally:
            _enter(before)
            os.close(before)


def _new_space() -> int:
    before = os.open(OWN, os.O_RDONLY)
    try:
        _unshare()
        return os.open(OWN, os.O_RDONLY)
    finally:
        _enter(before)
        os.close(before)


_libc = ctypes.CDLL(None, use_errno=True)  # Python 3.11 has neither os.unshare nor os.setns


def _unshare() -> None:
    _check(_libc.unshare(CLONE_NEWNET))


def _enter(space: int) -> None:
    _check(_libc.setns(space, CLONE_NEWNET))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _ip(words: str) -> None:
    done = subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {words}: {done.stderr.strip()}"
