"""`PostgresServer`: a PostgreSQL of its own on a free port of 127.0.0.1, for tests of stores.

It runs what the system has installed (`/usr/lib/postgresql/*/bin`, Debian's package, or what is on the path), in a
temporary folder, and both end with its `with` block. As root it runs as the user `postgres`, as it has to.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from keylane.errors import PeerError

START_S = 30.0


def find_postgres() -> Path | None:
    """The folder of its programs; None where it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda one: float(one.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


class PostgresServer:
    """Started by `start`, or at the begin of a `with` block. Thread safety: one thread at a time."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        """On another `host` than this machine's own whoever reaches it is let in."""
        found = find_postgres()
        if found is None:
            raise PeerError("PostgreSQL is not installed: no initdb in /usr/lib/postgresql/*/bin, nor on the path")
        self._programs = found
        self._folder = Path(tempfile.mkdtemp(prefix="keylane-postgres-"))
        self._user = "postgres" if os.geteuid() == 0 else None
        self._host = host
        with socket.create_server((host, 0)) as free:
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def conninfo(self) -> str:
        return f"postgresql://postgres@{self._host}:{self.port}/postgres"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    def start(self) -> None:
        """Returns when it answers. May be called again after `kill` or `stop`."""
        if not (self._folder / "PG_VERSION").exists():
            self._make()
        settings = {"listen_addresses": self._host, "port": self.port, "unix_socket_directories": ""}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._folder, *options],
                user=self._user,
                group=self._user,
                extra_groups=[] if self._user else None,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_S
        while subprocess.run(self._is_ready(), capture_output=True, check=False).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise PeerError(f"PostgreSQL did not start: {(self._folder / 'log').read_text()[-1_000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """As an administrator does who is in a hurry: connections are cut, and everything is written."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As a crash does; its children see that it is gone, and end."""
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def _is_ready(self) -> list[str]:
        return [str(self._programs / "pg_isready"), "-q", "-h", self._host, "-p", str(self.port), "-U", "postgres"]

    def _make(self) -> None:
        if self._user is not None:
            shutil.chown(self._folder, self._user, self._user)
        command = [
            str(self._programs / "initdb"),
            "-D",
            str(self._folder),
            "-U",
            "postgres",
            "-A",
            "trust",
            "--no-sync",
            "--no-locale",  # the caller's may have another encoding, or none
            "--encoding=UTF8",
        ]
        made = subprocess.run(
            command,
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user else None,
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
        )
        if made.returncode != 0:
            raise PeerError(f"PostgreSQL's initdb failed: {made.stderr.strip()}")
        if self._host != "127.0.0.1":
            with (self._folder / "pg_hba.conf").open("a") as rules:
                rules.write("host all all all trust\n")
