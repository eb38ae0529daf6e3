"""A hundred kills of all kinds while a stream runs on a standalone cluster and its lanes come and go.

The short form that `make test` runs is `drivers/test_demo_kills`; `test_cluster` and `test_lanes_crashes` look closer
at single kills of each kind. The verdict is taken from the topics: nothing is lost, the order of keys is kept, and
after each kill nothing runs that a commit acknowledged before it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.bulk import BulkProducer
from kit.cluster import StandaloneCluster
from kit.kills import Kills
from kit.processes import is_alive, parent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KILLS = int(os.environ.get("KEYLANE_SOAK_KILLS", "100"))
SHARES = {"worker": 50, "executor": 15, "frozen worker": 10, "broker": 10, "driver": 8, "node": 7}
"""Of a hundred kills; a worker costs a second or two, a driver twenty."""
RECORDS_PER_S = 150
KEYS = 101
SEED = 20_13
PARTITIONS = 4


class Stream(threading.Thread):
    """Produces until it is told to end; rides out broker restarts, as its client's retries do."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._servers, self._topic = servers, topic
        self.ending = threading.Event()
        self.failed = 0

    def run(self) -> None:
        number = 0
        while not self.ending.wait(0.2):
            try:
                with BulkProducer(self._servers) as producer:
                    for _ in range(RECORDS_PER_S // 5):
                        number += 1
                        key = f"key-{number % KEYS}".encode()
                        producer.produce(kl.Output(self._topic, key=key, value=str(number).encode()))
            except kl.PeerError:
                self.failed += 1  # what the broker did not take is no input record


class Soak:
    """The driver in its process, and what can be killed."""

    def __init__(
        self, cluster: StandaloneCluster, broker: BrokerProcess, work: Any, drivers: Callable[..., Any]
    ) -> None:
        self.cluster, self.broker, self.work, self._drivers = cluster, broker, work, drivers
        self.kills = Kills(work.admin, work.servers, work.group, work.output, PARTITIONS)
        self._random = random.Random(SEED)
        self.start_driver()

    def start_driver(self) -> None:
        arguments = ("--lanes", "2", "--members", "dynamic", "--wander", "--failure-window-ms", "5000")
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        self.driver = self._drivers(self.cluster.url, self.work, environment, *arguments)
        self.latest: dict[str, Any] = {}
        threading.Thread(target=self._listen, args=(self.driver,), daemon=True).start()

    def _listen(self, driver: Any) -> None:
        with contextlib.suppress(AssertionError, ValueError):  # it was killed, in the middle of a line perhaps
            while True:
                seen = driver.next()
                if driver is self.driver:
                    self.latest = seen

    def running(self) -> list[dict[str, Any]]:
        return [lane for lane in self.latest.get("lanes", ()) if lane["state"] == "running" and lane["pid"]]

    def settle(self) -> None:
        """Until a lane runs and makes progress."""
        deadline = time.monotonic() + 120
        before = None
        while True:
            assert time.monotonic() < deadline, (self.latest, self.driver.log.read_text()[-3_000:])
            assert self.latest.get("error") is None, self.latest
            if self.running():
                now = self.latest["processed"]
                before = now if before is None else before
                if now > before + RECORDS_PER_S // 2:
                    return
            time.sleep(0.1)

    def kill(self, what: str) -> None:
        """One kill; the note of what was committed is taken right after it."""
        lane = self._random.choice(self.running())
        pid = lane["pid"]
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it has just ended by itself
            if what == "worker":
                os.kill(pid, signal.SIGKILL)
            elif what == "frozen worker":
                os.kill(pid, signal.SIGSTOP)
            elif what == "executor":
                os.kill(parent(parent(pid)), signal.SIGKILL)
            elif what == "node":
                node = next(one for one in self.cluster.workers if one.pid == parent(parent(parent(pid))))
                os.killpg(node.pid, signal.SIGKILL)
                self.cluster.workers.remove(node)
                node.wait()
                self.cluster.add_worker(wait=False)
            elif what == "driver":
                os.killpg(self.driver.process.pid, signal.SIGKILL)
        if what == "broker":
            self.broker.kill()
            self.broker.start()
        self.kills.note(what)
        if what == "driver":
            self.start_driver()
        if what == "frozen worker":
            deadline = time.monotonic() + 60
            while is_alive(pid):
                assert time.monotonic() < deadline, "a frozen worker is given up, and killed"
                time.sleep(0.1)


@pytest.mark.soak
def test_a_hundred_kills(java: None, tmp_path: Path, works: Callable[[str], Any], drivers: Callable[..., Any]) -> None:
    kinds = [what for what, share in SHARES.items() for _ in range(max(1, share * KILLS // 100))]
    random.Random(SEED).shuffle(kinds)
    with (
        BrokerProcess(tmp_path / "data") as broker,
        StandaloneCluster(tmp_path / "cluster", workers=2, cores=4, memory_mb=2_048) as cluster,
    ):
        work = works(broker.bootstrap)
        stream = Stream(broker.bootstrap, work.topic)
        stream.start()
        soak = Soak(cluster, broker, work, drivers)
        for number, what in enumerate(kinds):
            soak.settle()
            print(f"{number + 1} of {len(kinds)}: {what}, {soak.latest['processed']} processed", flush=True)  # noqa: T201
            soak.kill(what)
        soak.settle()
        stream.ending.set()
        stream.join()
        deadline = time.monotonic() + 120
        while work.lag():
            assert time.monotonic() < deadline, soak.latest
            time.sleep(0.2)
        soak.driver.close()
        seen = work.outputs()
        again = soak.kills.ran_again()
        repeats = len(seen.repeated)
        print(f"{len(seen.inputs)} records, {Counter(kinds)}, {repeats} ran again, {stream.failed} lapses")  # noqa: T201
        assert (seen.lost, seen.foreign, seen.out_of_order("key")) == (set(), set(), [])
        assert again == []
