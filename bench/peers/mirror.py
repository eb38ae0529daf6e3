"""MirrorMaker 2 of Apache Kafka, which copies topics and what groups have committed to another cluster."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import peers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
_SINGLE_NODES = """\
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
emit.heartbeats.enabled = false
"""


@contextmanager
def mirroring(properties: str, folder: Path) -> Iterator[None]:
    """It runs meanwhile between clusters of one node each. `properties` say between which, what it copies, and how
    often; `folder` gets its log."""
    file = folder / "mirror.properties"
    file.write_text(properties + _SINGLE_NODES)
    options = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    command = ["java", *options, "-cp", f"{peers.jars('mirror')}/*", _MAIN, str(file)]
    with (folder / "mirror.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            yield
        finally:
            process.kill()
            process.wait()
