"""`ReplicatedPostgres`: a PostgreSQL with an asynchronous streaming replica, which takes over when it is told to.

Clients have both addresses (`target_session_attrs=read-write`), as applications do. What the replica has not got when
the primary is killed is gone.
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

from peers.postgres import find_postgres

WAIT_S = 60.0


class ReplicatedPostgres:
    """Use it in a `with` block. Thread safety: one thread at a time."""

    def __init__(self) -> None:
        programs = find_postgres()
        assert programs is not None, "PostgreSQL is not installed"
        self._programs = programs
        self._user = "postgres" if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="keylane-replicated-"))
        self._ports = [_free_port(), _free_port()]
        self._processes: list[subprocess.Popen[bytes] | None] = [None, None]
        self.primary = 0
        """Which of the two."""

    @property
    def conninfo(self) -> str:
        ports = ",".join(map(str, self._ports))
        return (
            f"host=127.0.0.1,127.0.0.1 port={ports} user=postgres dbname=postgres target_session_attrs=read-write "
            "connect_timeout=5"
        )

    def __enter__(self) -> Self:
        if self._user is not None:
            shutil.chown(self._folder, self._user, self._user)
        locale = ("--no-locale", "--encoding=UTF8")
        self._run("initdb", "-D", self._data(0), "-U", "postgres", "-A", "trust", "--no-sync", *locale)
        (self._data(0) / "postgresql.conf").write_text("max_wal_senders = 10\nhot_standby = on\n")
        self._start(0)
        self.add_replica()
        return self

    def __exit__(self, *_: object) -> None:
        for number in (0, 1):
            self._end(number, signal.SIGQUIT)
        shutil.rmtree(self._folder)

    def add_replica(self) -> None:
        """A copy of the primary, which streams from then on."""
        replica = 1 - self.primary
        shutil.rmtree(self._data(replica), ignore_errors=True)
        source = f"host=127.0.0.1 port={self._ports[self.primary]} user=postgres"
        self._run("pg_basebackup", "-D", self._data(replica), "-d", source, "-R", "-X", "stream", "-c", "fast")
        self._start(replica)
        self._until("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'", self.primary)

    def cut_off_replica(self) -> None:
        """From now on it gets nothing."""
        replica = 1 - self.primary
        self._sql("ALTER SYSTEM SET primary_conninfo = ''", replica)
        self._sql("SELECT pg_reload_conf()", replica)
        self._until("SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_replication)", self.primary)

    def fail_over(self) -> None:
        """The primary is killed, and the replica takes over with what it has."""
        self._end(self.primary, signal.SIGQUIT)
        self.primary = 1 - self.primary
        self._run("pg_ctl", "-D", self._data(self.primary), "-w", "promote")

    def _data(self, number: int) -> Path:
        return self._folder / f"data{number}"

    def _start(self, number: int) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self._ports[number],
            "unix_socket_directories": "",
            "fsync": "off",  # the machine does not fail here
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / f"log{number}").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data(number), *options],
                user=self._user,
                group=self._user,
                extra_groups=[] if self._user else None,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._until("SELECT 1", number)

    def _end(self, number: int, how: signal.Signals) -> None:
        process, self._processes[number] = self._processes[number], None
        if process is not None:
            process.send_signal(how)
            process.wait()

    def _sql(self, statement: str, number: int) -> str:
        command: list[str | Path] = [
            self._programs / "psql", "-X", "-q", "-A", "-t", "-h", "127.0.0.1", "-p", str(self._ports[number]),
            "-U", "postgres", "-c", statement,
        ]  # fmt: skip
        done: str = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return done.strip()

    def _until(self, statement: str, number: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                if self._sql(statement, number):
                    return
            except subprocess.CalledProcessError:  # it is starting
                pass
            assert time.monotonic() < deadline, statement
            time.sleep(0.02)

    def _run(self, program: str, *arguments: str | Path) -> None:
        subprocess.run(
            [self._programs / program, *arguments],
            check=True,
            capture_output=True,
            cwd="/",
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user else None,
        )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
