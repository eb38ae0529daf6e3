"""`Stage` and `Member`: topics on a real broker, and consumers in processes of their own, for tests of pipelines.

The idea: what a test fills, reads and asks the broker goes through other code than what it tests, and a consumer that
is to be killed is a process (`python -m kit.member`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import read_to_end
from keylane.offsets import OffsetMap, decode
from kit.filling import filling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kit.ledger import Source

WAIT_S = 60.0


def until(condition: Callable[[], bool], what: str | Callable[[], str], wait_s: float = WAIT_S) -> None:
    """Wait for what another thread or process brings about; `what` is told when it does not come."""
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, f"never: {what if isinstance(what, str) else what()}"
        time.sleep(0.01)


class Stage:
    """Topics with names of their own on a broker, and one group: there, or at offset servers."""

    def __init__(self, servers: str, name: str, offsets_servers: str | None = None, group: str | None = None) -> None:
        self.servers = servers
        self.group = group or f"group-{name}"
        self.topic = f"in-{name}"
        self._places = {"bootstrap.servers": servers}
        if offsets_servers is not None:
            self._places["offsets.servers"] = offsets_servers
        self.admin = Admin(self._places)

    @property
    def kafka(self) -> dict[str, Any]:
        return {
            **self._places,
            "group.id": self.group,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 300,
        }

    def create(self, partitions: int, topic: str | None = None) -> None:
        assert self.admin.create_topics({topic or self.topic: partitions})

    def fill(self, records: Iterable[tuple[bytes | None, int]], topic: str | None = None) -> None:
        """Produce (key, partition); the values count from 0."""
        with filling(self.servers) as producer:
            for number, (key, partition) in enumerate(records):
                producer.produce(kl.Output(topic or self.topic, key=key, value=b"%d" % number, partition=partition))

    def read(self, topic: str) -> list[kl.Record]:
        return [record for batch in read_to_end(self.servers, topic) for record in batch]

    def sources(self) -> list[tuple[Source, bytes | None]]:
        """All records of the topic, with their keys."""
        return [((one.topic, one.partition, one.offset), one.key) for one in self.read(self.topic)]

    def ends(self) -> dict[tuple[str, int], int]:
        names = [(self.topic, partition) for partition in range(self.admin.topics()[self.topic])]
        found = self.admin.log_ends(names, read_committed=False)
        return {name: end for name, end in found.items() if end is not None}

    def committed(self) -> dict[tuple[str, int], OffsetMap]:
        """What the group has committed, as another client reads it."""
        found = self.admin.committed_offsets(self.group)
        return {name: decode(one.metadata, one.offset) for name, one in found.items()}

    def covered(self) -> set[Source]:
        """The records that are complete by what the group has committed, as another client reads it."""
        maps = self.committed()
        return {
            source for source, _ in self.sources() if source[:2] in maps and maps[source[:2]].is_complete(source[2])
        }

    def all_is_committed(self) -> bool:
        committed = self.committed()
        return all(name in committed and committed[name].base == end for name, end in self.ends().items())

    def pipeline(self, handler: Callable[..., Any], **options: Any) -> kl.Pipeline:
        chosen: dict[str, Any] = {
            "kafka": self.kafka,
            "topics": [self.topic],
            "offset_reset": "earliest",
            "handler": handler,
        }
        return kl.Pipeline(**(chosen | options))

    def run(self, handler: Callable[..., Any], **options: Any) -> kl.Snapshot:
        """Run to the end of the logs; the last snapshot."""
        with kl.ParallelConsumer(self.pipeline(handler, **options), ending_offsets="latest") as consumer:
            consumer.run()
        return consumer.snapshot()


class ThreadMember:
    """A consumer on a thread of its own."""

    def __init__(self, pipeline: kl.Pipeline, name: str, **options: Any) -> None:
        self.consumer = kl.ParallelConsumer(pipeline, client_id=name, **options)
        self._failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.consumer.run()
        except BaseException as error:  # told by end()
            self._failure = error

    @property
    def assigned(self) -> int:
        return len(self.consumer.snapshot().partitions)

    def end(self) -> None:
        """Wait for it to finish by itself; raises what it failed with."""
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive(), self.consumer.snapshot()
        if self._failure is not None:
            raise self._failure


class Member:
    """A consumer in a process of its own (`kit.member` says what it takes)."""

    def __init__(self, **options: Any) -> None:
        chosen = {"ends": True, "ordering": "key", "slow": [], "hold_s": 0, "work_s": 0.002, "stream": None} | options
        command = [sys.executable, "-m", "kit.member", json.dumps(chosen)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    @property
    def name(self) -> str:
        """What it calls itself in the ledger."""
        return str(self.process.pid)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def freeze(self) -> None:
        """SIGSTOP: nothing of it runs until it is woken, when this returns."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> str:
        """Wait for it to finish by itself; what it said."""
        said, _ = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0
        return str(said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
