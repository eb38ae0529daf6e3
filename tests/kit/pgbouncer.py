"""`started_bouncer`: a PgBouncer in transaction pooling before a PostgreSQL, for tests of stores."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

START_S = 30.0

SETTINGS = """\
[databases]
* = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
{more}
"""


def find_bouncer() -> str | None:
    """Its program; None where it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def started_bouncer(server_port: int, more: str = "") -> Iterator[int]:
    """Its port. `more`: settings."""
    program = find_bouncer()
    assert program is not None, "PgBouncer is not installed"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="keylane-pgbouncer-") as folder:
        user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
        file = Path(folder) / "settings.ini"
        file.write_text(SETTINGS.format(server=server_port, port=port, more=more))
        if user is not None:
            shutil.chown(folder, user)
        command = [program, "-q", str(file)]
        process = subprocess.Popen(command, user=user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + START_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except ConnectionRefusedError:
                    assert process.poll() is None
                    assert time.monotonic() < until
                    time.sleep(0.02)
            yield port
        finally:
            process.terminate()
            process.wait()
