"""Members that are operated, in processes of their own, and the command line that operates them.

A file of tests takes the fixtures by name: `broker, stage, token = operated.broker, operated.stage, operated.token`."""

from __future__ import annotations

import importlib
import json
import pkgutil
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane import cli
from keylane.cli import main
from keylane.consumer.snapshot import PartitionSnapshot
from keylane.flow import host
from keylane.operations.commands import Holding
from keylane.pipeline import topics_of_operations
from keylane.testing import EmbeddedBroker
from keylane.version import __version__
from kit.ledger import Ledger
from kit.stage import Member, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "a token for the tests"
OPERATIONS: dict[str, Any] = {"token": TOKEN, "report_interval_ms": 200}
PARTITIONS = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """Its groups may give a silent member up after a second.

    Commands are imported before members run in threads: pytest compiles what it imports, and Python 3.11 cannot do that
    in two threads at once."""
    for package in (cli, host):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    with EmbeddedBroker(settings={"group.min.session.timeout.ms": "1000"}) as broker:
        yield broker


@pytest.fixture
def stage(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Stage:
    """A group and a topic for one test, by its name."""
    name = request.node.name.removeprefix("test_").replace("[", "-").replace("]", "")[:60]
    stage = Stage(broker.bootstrap_servers, name)
    stage.create(PARTITIONS)
    return stage


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the command line."""
    monkeypatch.setenv("KEYLANE_OPERATIONS_TOKEN", TOKEN)


def fill(stage: Stage, records: int) -> None:
    stage.fill((b"%d" % (number % 7), number % PARTITIONS) for number in range(records))


class Members:
    """Processes of one group, and what their handlers ran."""

    def __init__(self, stage: Stage, folder: Path, **options: Any) -> None:
        self._stage = stage
        self.ledger = Ledger(folder / "ledger")
        self._options = {
            "kafka": stage.kafka | {"session.timeout.ms": 2_000},
            "topic": stage.topic,
            "ledger": str(self.ledger.path),
            "ends": False,
            "operations": OPERATIONS,
            **options,
        }
        self._open = ExitStack()

    def start(self, **options: Any) -> Member:
        return self._open.enter_context(Member(**(self._options | options)))

    def has(self, count: int) -> bool:
        """Whether so many members have all partitions among them."""
        described = self._stage.admin.describe_group(self._stage.group)
        return len(described.members) == count and sum(len(one.assignment) for one in described.members) == PARTITIONS

    def done(self) -> Counter[int]:
        """How often handlers succeeded, by partition."""
        times: Counter[int] = Counter()
        for (_, partition, _), count in self.ledger.done_times().items():
            times[partition] += count
        return times

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def operate(capsys: pytest.CaptureFixture[str], stage: Stage, verb: str, *more: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    found = main(["operate", verb, stage.group, *more, "--bootstrap", stage.servers, "--json"])
    said = capsys.readouterr()
    assert found == code, said
    shown: dict[str, Any] = json.loads(said.out)
    return shown


def refused(capsys: pytest.CaptureFixture[str], stage: Stage, verb: str, *more: str) -> str:
    capsys.readouterr()
    assert main(["operate", verb, stage.group, *more, "--bootstrap", stage.servers]) == 2
    return capsys.readouterr().err


def are_heard(capsys: pytest.CaptureFixture[str], stage: Stage, count: int) -> bool:
    """Whether so many members have reported, with all partitions among them."""
    if topics_of_operations(stage.group)[1] not in stage.admin.topics():
        return False
    heard = [one for one in operate(capsys, stage, "show")["members"] if not one["silent"]]
    return len(heard) == count and sum(len(one["snapshot"]["partitions"]) for one in heard) == PARTITIONS


def report_of(group: str, topic: str, number: int, turn: int) -> Any:
    """Of one of the hundred members, with ten partitions."""
    now_ms = int(time.time() * 1000)
    mine = range(10 * number, 10 * number + 10)
    parts = [
        PartitionSnapshot(topic, one, turn, turn, turn + 90, 20, turn + 200, turn + 500, in_handlers=turn % 5)
        for one in mine
    ]
    snapshot = kl.Snapshot(processed=turn * 1_000, in_flight=turn % 16, concurrency=16, partitions=tuple(parts))
    work = {"lane": None, "topic": topic, "why": "running", "attempt": 1, "due_in_ms": None, "behind": 3, "key": None}
    in_hand = [work | {"partition": one, "offset": turn, "age_ms": turn} for one in mine]
    return {
        "version": 1, "group": group, "member": f"member-{number:02}", "runs": "process", "client_id": None,
        "host": f"host-{number}", "pid": number, "keylane": __version__, "started_ms": 0, "reported_ms": now_ms,
        "interval_ms": 2_000, "takes_commands": True, "command": 0, "holding": Holding().to_dict(),
        "snapshot": snapshot.to_dict(), "lanes": [], "in_hand": in_hand, "waiting": [], "queues": in_hand,
    }  # fmt: skip
