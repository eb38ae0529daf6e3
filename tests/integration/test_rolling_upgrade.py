"""From the oldest version whose code is kept to today's, and back, one process at a time, while records come and run.

Three members, three offset servers and the broker that has their log. In between old and new ones are in one group and
in one log (docs/upgrade.md).
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import count
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from keylane.broker.data_folder import read_identity
from keylane.broker.process import BrokerProcess
from keylane.operations.commands import Adjusting
from keylane.operations.operator import Operator
from keylane.storage.filesystem import OsFileSystem
from kit.ledger import Ledger
from kit.offset_servers import OffsetServers, pace
from kit.older import unpack_source
from kit.stage import WAIT_S, Member, Stage, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from keylane.offsets import OffsetMap
    from kit.ledger import Look

    Older = Callable[[], AbstractContextManager[None]]

PARTITIONS = 4
OPTIONS = (
    "--allow-unreplicated-log", "--set", f"offsets.topic.num.partitions={PARTITIONS}", *pace(300, 30_000)
)  # fmt: skip
KEYS = 24
PAUSE_S = 0.004
"""Between two records: 250 a second at most, so that three members keep up."""
MORE = 25
"""So many records are committed in each partition behind each change."""
MEMBERS = SERVERS = 3
OLDER_FOLDER = 2
"""The format of a data folder that the kept code writes."""
TOKEN = "a token for the test"
OPERATIONS = {"token": TOKEN, "report_interval_ms": 200}
SESSION_MS = 30_000
"""Longer than a broker's start takes on a busy machine."""


class Load:
    """A producer that sends until the end of the `with`; then all that it sent is acknowledged."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
        self._topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.places: list[tuple[str, int, int]] = []
        self.failures: list[str] = []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _send(self) -> None:
        for number in count():
            if self._ended.wait(PAUSE_S):
                break
            key = number % KEYS
            self._producer.produce(
                self._topic, b"%d" % number, b"%d" % key, key % PARTITIONS, on_delivery=self._on_delivery
            )
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def _on_delivery(self, error: object, message: object) -> None:
        if error is None:
            self.places.append((message.topic(), message.partition(), message.offset()))  # type: ignore[attr-defined]
        else:
            self.failures.append(str(error))


@pytest.fixture
def older(tmp_path: Path) -> Older:
    """Processes that begin in this context run the kept code."""
    source = str(unpack_source(tmp_path))

    @contextmanager
    def on() -> Iterator[None]:
        path = os.environ["PYTHONPATH"]
        os.environ["PYTHONPATH"] = os.pathsep.join([source, path])
        try:
            yield
        finally:
            os.environ["PYTHONPATH"] = path

    return on


class Group:
    """The members, and how far they got."""

    def __init__(self, stage: Stage, folder: Path, stack: ExitStack) -> None:
        self.stage = stage
        self.ledger = Ledger(folder / "ledger")
        self.looks: list[Look] = []
        self._stack = stack
        self._members: list[Member] = []

    def add_member(self) -> None:
        kafka = self.stage.kafka | {"session.timeout.ms": SESSION_MS}
        options = {"ledger": str(self.ledger.path), "ends": False, "operations": OPERATIONS}
        self._members.append(self._stack.enter_context(Member(kafka=kafka, topic=self.stage.topic, **options)))

    def end_member(self) -> None:
        """The oldest one."""
        member = self._members.pop(0)
        member.process.terminate()
        member.end()

    def goes_on(self) -> None:
        """Commits are made, in all partitions."""
        before = {name: one.base for name, one in self.stage.committed().items()}

        def is_further(found: Mapping[tuple[str, int], OffsetMap]) -> bool:
            return len(found) == PARTITIONS and all(found[name].base >= before.get(name, 0) + MORE for name in found)

        until(lambda: is_further(self.stage.committed()), "more records are committed in each partition")
        found = self.stage.committed()
        self.looks.append((self.ledger.length(), found))

    def obeys(self, newer: int) -> None:
        """A command is done by each member of today, and refused by the kept code, which signs commands otherwise."""
        with Operator(self.stage.kafka, self.stage.group, TOKEN, self.stage.admin) as operator:
            command = operator.send(Adjusting(max_concurrency=32), "the test")
            expected = Counter({"done": newer, "refused": MEMBERS - newer})

            def states() -> Counter[str]:
                return Counter(one.state for one in operator.results_of(command).values())

            assert operator.wait(lambda: states() == expected, time.monotonic() + WAIT_S), states()


@pytest.mark.parametrize(
    "ways",
    [
        pytest.param(("up",), marks=pytest.mark.full),
        pytest.param(("up", "down") * 4 + ("up",), marks=pytest.mark.soak),
    ],
    ids=["up", "up-and-down"],
)
def test_nothing_is_lost_or_out_of_order(
    older: Older, tmp_path: Path, ways: Sequence[str], record_property: Callable[[str, object], None]
) -> None:
    data = tmp_path / "data"
    with ExitStack() as stack:
        with older():
            broker = stack.enter_context(BrokerProcess(data))
            servers = stack.enter_context(OffsetServers(broker.bootstrap, tmp_path, SERVERS, *OPTIONS))
        servers.settled()
        stage = Stage(servers.log, "rolls", servers.bootstrap)
        stage.create(PARTITIONS)
        group = Group(stage, tmp_path, stack)
        with Load(broker.bootstrap, stage.topic) as load:
            with older():
                for _ in range(MEMBERS):
                    group.add_member()
            group.goes_on()
            assert read_identity(OsFileSystem(), str(data)).version == OLDER_FOLDER, "the kept code runs"
            broker.terminate()
            broker.start()
            group.stage = Stage(servers.log, "rolls", servers.bootstrap)  # a client that has seen no refusal
            group.goes_on()
            assert read_identity(OsFileSystem(), str(data)).version > OLDER_FOLDER
            for way in ways:
                with older() if way == "down" else nullcontext():
                    for server in list(servers.running):
                        servers.stop(server)
                        servers.add(server.port)
                        group.goes_on()
                    for turn in range(1, MEMBERS + 1):
                        group.end_member()
                        group.add_member()
                        group.goes_on()
                        group.obeys(turn if way == "up" else MEMBERS - turn)
        until(group.stage.all_is_committed, "all is committed")
        for _ in range(MEMBERS):
            group.end_member()
        records = group.stage.sources()
    ledger = group.ledger
    done = ledger.done_times()
    record_property("records", len(records))
    record_property("run again", sum(done.values()) - len(records))
    assert load.failures == []
    assert sorted(load.places) == sorted(source for source, _ in records), "acknowledged once, and there once"
    assert done.keys() == dict(records).keys(), "nothing is lost"
    assert ledger.disorders("key", records) == []
    assert ledger.run_again(group.looks, "key") == [], "acknowledged work"
    assert "Traceback" not in servers.told()
    ledger.close()
