"""The client of conditional commits against a broker: conditions, contention, and brokers that go away."""

from __future__ import annotations

import re
import socket
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keylane.broker.process import BrokerProcess
from keylane.errors import BrokerUnavailableError, UsageError
from keylane.kafka.admin import Admin
from keylane.kafka.conditional import (
    Change,
    CommitRefusedError,
    ConditionalCommits,
    ConditionalCommitUnsupportedError,
    ConditionFailedError,
    OutcomeUnknownError,
)
from keylane.wire.conditional_commit import OUTCOME_UNKNOWN, Response, encode_response

if TYPE_CHECKING:
    from collections.abc import Iterator

A, B = ("flights", 0), ("weather", 1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        Admin({"bootstrap.servers": process.bootstrap}).create_topics({"flights": 1, "weather": 2})
        yield process


def committed(broker: BrokerProcess, group: str) -> dict[tuple[str, int], tuple[int, str]]:
    found = Admin({"bootstrap.servers": broker.bootstrap}).committed_offsets(group)
    return {name: (one.offset, one.metadata) for name, one in found.items()}


def test_conditions(broker: BrokerProcess) -> None:
    with ConditionalCommits(f"127.0.0.1:1,{broker.bootstrap}", "cas") as commits:
        commits.commit({A: Change(None, 5, "mäp"), B: Change(None, 0)})
        assert committed(broker, "cas") == {A: (5, "mäp"), B: (0, "")}
        commits.commit({A: Change(5, 9)})
        with pytest.raises(
            ConditionFailedError, match=r"flights-0 is at 9 where 5 was expected; nothing was"
        ) as raised:
            commits.commit({A: Change(5, 11), B: Change(0, 1)})
        assert raised.value.current == {A: 9, B: 0}
        with pytest.raises(ConditionFailedError, match="weather-1 is at 0 where no offset was expected"):
            commits.commit({B: Change(None, 1)})
        with pytest.raises(ConditionFailedError, match="weather-0 is at no offset where 0 was expected"):
            commits.commit({("weather", 0): Change(0, 1)})
        with pytest.raises(CommitRefusedError, match=r"error code 3 for flights-7; nothing was committed") as refused:
            commits.commit({A: Change(9, 10), ("flights", 7): Change(None, 1)})
        assert refused.value.code == 3
        assert committed(broker, "cas") == {A: (9, ""), B: (0, "")}


def test_counting_together(broker: BrokerProcess) -> None:
    """Many clients add one, each many times: none is lost."""
    clients, times = 4, 25
    failures: list[BaseException] = []

    def count() -> None:
        try:
            with ConditionalCommits(broker.bootstrap, "counted") as commits:
                for _ in range(times):
                    expected: int | None = None
                    while True:
                        change = Change(expected, (expected or 0) + 1)
                        try:
                            commits.commit({A: change, B: change})
                            break
                        except ConditionFailedError as error:
                            expected = error.current[A]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=count) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert committed(broker, "counted") == dict.fromkeys([A, B], (clients * times, ""))


def test_a_broker_that_restarts_between_two_commits(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as own:
        Admin({"bootstrap.servers": own.bootstrap}).create_topics({"flights": 1})
        with ConditionalCommits(own.bootstrap, "g") as commits:
            commits.commit({A: Change(None, 1)})
            own.restart()
            commits.commit({A: Change(1, 2)})
            own.pause()
            try:
                with (
                    ConditionalCommits(own.bootstrap, "g", timeout_ms=300) as late,
                    pytest.raises(BrokerUnavailableError, match=r"within 0\.3 s"),
                ):
                    late.commit({A: Change(2, 3)})
            finally:
                own.resume()


def test_groups_of_other_nodes_are_waited_for(tmp_path: Path) -> None:
    settings = {"offsets.topic.num.partitions": "2", "keylane.owned.offsets.partitions": "1"}
    with BrokerProcess(tmp_path / "data", settings=settings) as own:
        group = "a"  # of partition 1; "b" is of partition 0
        Admin({"bootstrap.servers": own.bootstrap}).create_topics({"flights": 1})
        with ConditionalCommits(own.bootstrap, group) as commits:
            commits.commit({A: Change(None, 1)})
        with (
            ConditionalCommits(own.bootstrap, "b", timeout_ms=2_000) as commits,
            pytest.raises(BrokerUnavailableError, match="has no coordinator at the moment"),
        ):
            commits.commit({A: Change(None, 1)})


class FakeBroker:
    """Answers ApiVersions and FindCoordinator, and closes the connection on anything else, or answers it so."""

    def __init__(self, *, offers: bool, answer: bytes = b"") -> None:
        self._offers = offers
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.keys: list[int] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                while head := connection.recv(4):
                    (size,) = struct.unpack(">i", head)
                    request = connection.recv(size, socket.MSG_WAITALL)
                    key, _, correlation_id = struct.unpack_from(">hhi", request)
                    self.keys.append(key)
                    if key == 18:
                        rows = [(18, 0, 0), (27_500, 0, 0)] if self._offers else [(18, 0, 0), (8, 0, 9)]
                        body = struct.pack(">hi", 0, len(rows)) + b"".join(struct.pack(">hhh", *row) for row in rows)
                    elif key == 10:
                        host, port = self.address.split(":")
                        body = struct.pack(">hih", 0, 1, len(host)) + host.encode() + struct.pack(">i", int(port))
                    elif self._answer:
                        body = self._answer
                    else:
                        break
                    connection.sendall(struct.pack(">ii", 4 + len(body), correlation_id) + body)


def test_a_broker_that_does_not_offer_it_is_asked_for_nothing() -> None:
    other = FakeBroker(offers=False)
    with (
        ConditionalCommits(other.address, "g") as commits,
        pytest.raises(ConditionalCommitUnsupportedError, match="does not offer conditional commits"),
    ):
        commits.commit({A: Change(None, 1)})
    other.close()
    assert other.keys == [18]


@pytest.mark.parametrize("answer", [b"", encode_response(Response(OUTCOME_UNKNOWN))], ids=["none", "not known"])
def test_a_lost_answer_leaves_the_outcome_open(answer: bytes) -> None:
    """And is not tried again: a second try would fail on the first one's success."""
    breaking = FakeBroker(offers=True, answer=answer)
    with (
        ConditionalCommits(breaking.address, "g") as commits,
        pytest.raises(OutcomeUnknownError, match="may have been made, or not; read the offsets"),
    ):
        commits.commit({A: Change(None, 1)})
    breaking.close()
    assert breaking.keys.count(27_500) == 1


@pytest.mark.parametrize("servers", ["", "host", "host:port", "a:1,,b:2"])
def test_wrong_addresses(servers: str) -> None:
    with pytest.raises(UsageError, match="give HOST:PORT"):
        ConditionalCommits(servers, "g")


def test_nobody_there() -> None:
    with socket.socket() as bound:  # a port that is ours and on which nobody listens
        bound.bind(("127.0.0.1", 0))
        with (
            ConditionalCommits(f"127.0.0.1:{bound.getsockname()[1]}", "g", timeout_ms=150) as commits,
            pytest.raises(BrokerUnavailableError, match="refused"),
        ):
            commits.commit({A: Change(None, 1)})


def test_the_example_in_the_docs(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"flights-of-docs": 2})
    page = (Path(__file__).parents[2] / "docs" / "offset-store.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    code = block.replace("127.0.0.1:9092", broker.bootstrap).replace('"flights"', '"flights-of-docs"')
    names: dict[str, object] = {}
    exec(code, names)
    assert names["current"] == 120
    said = capsys.readouterr().out
    assert "flights-of-docs-0 is at 120 where 100 was expected; nothing was committed: " in said
