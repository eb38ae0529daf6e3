"""`keylane topics list | describe | create | delete`, on the embedded broker and on Apache Kafka."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient

from keylane.broker.process import BrokerProcess
from keylane.cli import main
from keylane.kafka.admin import Admin
from keylane.records import Output
from kit.either_broker import either_broker
from kit.filling import filling
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=["keylane", pytest.param("apache", marks=pytest.mark.soak)])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with either_broker(request.param, tmp_path_factory.mktemp("broker"), {"num.partitions": "3"}) as broker:
        yield broker.bootstrap


class Topics:
    """The command line on one broker."""

    def __init__(self, servers: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.servers = servers
        self._capsys = capsys

    def run(self, *arguments: str, code: int = 0) -> str:
        found = main(["topics", *arguments, "--bootstrap-server", self.servers])
        output = self._capsys.readouterr()
        assert found == code, output.err
        return output.err if code else output.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))


@pytest.fixture
def topics(servers: str, capsys: pytest.CaptureFixture[str]) -> Topics:
    return Topics(servers, capsys)


def new_name() -> str:
    return f"orders-{next(NUMBERS)}"


def test_topics_are_created_as_asked_for(topics: Topics) -> None:
    first, second = new_name(), new_name()
    made = topics.run(
        "create", first, second, "--partitions", "2", "--replication-factor", "1",
        "--config", "retention.ms=86400000", "--config", "cleanup.policy=compact",
    )  # fmt: skip
    assert made == f"topic {first}: created\ntopic {second}: created\n"
    rows = {one["topic"]: one for one in topics.json("list")["topics"]}
    assert rows[first] == {"topic": first, "partitions": 2, "replication_factor": 1}
    assert f"{second} " in topics.run("list")
    for topic in topics.json("describe", first, second)["topics"]:
        assert topic["configs"] == {"cleanup.policy": "compact", "retention.ms": "86400000"}
        assert [one["partition"] for one in topic["partitions"]] == [0, 1]


def test_what_is_not_said_is_the_brokers(topics: Topics) -> None:
    name = new_name()
    assert topics.json("create", name) == {"topics": [{"topic": name, "created": True}]}
    (found,) = topics.json("describe", name)["topics"]
    assert (len(found["partitions"]), found["configs"]) == (3, {})


def test_one_that_exists_is_told_and_nothing_is_made(topics: Topics) -> None:
    first, second = new_name(), new_name()
    topics.run("create", first, "--partitions", "2")
    assert f"topic {first!r} exists already, with 2 partitions" in topics.run("create", second, first, code=2)
    assert second not in Admin({"bootstrap.servers": topics.servers}).topics()
    answer = topics.json("create", second, first, "--if-not-exists")
    assert answer["topics"] == [{"topic": second, "created": True}, {"topic": first, "created": False}]


def test_what_the_broker_refuses_is_told_in_its_words(topics: Topics) -> None:
    name = new_name()
    assert "retention.ms" in topics.run("create", name, "--config", "retention.ms=soon", code=1)
    assert "REPLICATION_FACTOR" in topics.run("create", name, "--replication-factor", "9", code=1)
    assert "--partitions 0: give a whole number" in topics.run("create", name, "--partitions", "0", code=2)
    assert "'a': give NAME=VALUE" in topics.run("create", name, "--config", "a", code=2)
    assert name not in Admin({"bootstrap.servers": topics.servers}).topics()


def test_describe_counts_and_delete_says_first_what_it_would_do(topics: Topics) -> None:
    name = new_name()
    topics.run("create", name, "--partitions", "2")
    with filling(topics.servers) as producer:
        for number in range(30):
            producer.produce(Output(name, value=b"x", partition=number % 3 % 2))
    (found,) = topics.json("describe", name)["topics"]
    assert [(one["leader"], one["replicas"], one["isr"]) for one in found["partitions"]] == [(1, [1], [1])] * 2
    assert [(one["log_start_offset"], one["log_end_offset"]) for one in found["partitions"]] == [(0, 20), (0, 10)]
    assert topics.run("describe", name).splitlines()[0] == f"topic {name}: 2 partitions, configs: the defaults"
    assert topics.json("delete", name) == {
        "executed": False,
        "topics": [{"topic": name, "partitions": 2, "records": 30}],
    }
    assert "nothing was changed: add --execute" in topics.run("delete", name)
    assert f"the topic '{name}x' does not exist: did you mean {name}?" in topics.run(
        "delete", name, f"{name}x", "--execute", code=2
    )
    assert "1 topics deleted" in topics.run("delete", name, "--execute")
    until(lambda: name not in Admin({"bootstrap.servers": topics.servers}).topics(), "it is gone")


def test_a_broker_that_is_slow_to_answer_is_asked_again_and_what_it_made_meanwhile_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request is given up after a third of the time, so that another node can be asked."""
    with BrokerProcess(tmp_path / "data") as broker:
        admin = Admin({"bootstrap.servers": broker.bootstrap}, timeout_ms=4_500)
        assert admin.create_topics({"there": 1}) == {"there"}

        create = AdminClient.create_topics

        def freeze_and_create(client: AdminClient, topics: Any, **options: Any) -> Any:
            monkeypatch.undo()  # the first time alone
            os.kill(broker.pid, signal.SIGSTOP)
            threading.Timer(3.0, os.kill, [broker.pid, signal.SIGCONT]).start()
            return create(client, topics, **options)

        monkeypatch.setattr(AdminClient, "create_topics", freeze_and_create)
        assert admin.create_topics({"there": 1, "new": 2}) == {"new"}
        assert admin.topics() == {"there": 1, "new": 2}
