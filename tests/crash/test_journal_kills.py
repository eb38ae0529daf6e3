"""SIGKILL of a broker under commits: what was acknowledged is there, and each commit whole or absent.

The kernel lives on, so this shows the order of answers and writes in the real process; lost power is simulated in
test_journal_crashes.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.broker.process import BrokerProcess
from keylane.testing.protocol import ProtocolClient, decode_answer

if TYPE_CHECKING:
    from pathlib import Path

# kio's types tell Kafka's integers and names apart; plain ones do here.
commit_schema: Any = importlib.import_module("kio.schema.offset_commit.v7.request")
fetch_schema: Any = importlib.import_module("kio.schema.offset_fetch.v5.request")
create_schema: Any = importlib.import_module("kio.schema.create_topics.v2.request")

TOPIC = "flights"
PARTITIONS = 40
IN_FLIGHT = 20
COMMITS_BEFORE_A_KILL = 150
LOAD_S = 60.0


class Committer(threading.Thread):
    """One client with many commits in flight: number n commits offset n for every partition."""

    def __init__(self, bootstrap: str, group: str, first: int) -> None:
        super().__init__(name=group)
        self.group = group
        self.acknowledged = self.sent = first
        self.has_enough = threading.Event()
        self.error: BaseException | None = None
        self._first = first
        self._client = ProtocolClient(bootstrap)

    def run(self) -> None:
        try:
            with self._client, contextlib.suppress(EOFError, OSError):  # the broker is killed
                while True:
                    while self.sent - self.acknowledged < IN_FLIGHT:
                        self._send()
                    self._read()
        except BaseException as error:
            self.error = error
        finally:
            self.has_enough.set()

    def _send(self) -> None:
        self.sent += 1
        rows = tuple(
            commit_schema.OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=self.sent, committed_metadata=None
            )
            for partition in range(PARTITIONS)
        )
        topic = commit_schema.OffsetCommitRequestTopic(name=TOPIC, partitions=rows)
        request = commit_schema.OffsetCommitRequest(group_id=self.group, member_id="", topics=(topic,))
        self._client.send("offset_commit", request)

    def _read(self) -> None:
        _, answer = decode_answer("offset_commit", 7, self._client.receive())
        assert all(row.error_code == ErrorCode.none for row in answer.topics[0].partitions)
        self.acknowledged += 1
        if self.acknowledged - self._first >= COMMITS_BEFORE_A_KILL:
            self.has_enough.set()


def committed(bootstrap: str, group: str) -> list[int]:
    """Waits, as clients do, until the broker has loaded what it has."""
    topic = fetch_schema.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=tuple(range(PARTITIONS)))
    deadline = time.monotonic() + LOAD_S
    with ProtocolClient(bootstrap) as client:
        while True:
            answer = client.ask("offset_fetch", 5, group_id=group, topics=(topic,))
            if answer.error_code != ErrorCode.coordinator_load_in_progress:
                break
            assert time.monotonic() < deadline, "loading takes too long"
    assert answer.error_code == ErrorCode.none
    return [row.committed_offset for row in answer.topics[0].partitions]


@pytest.mark.parametrize("kills", [4, pytest.param(200, marks=pytest.mark.soak)])
def test_commits_under_kills(tmp_path: Path, kills: int) -> None:
    groups = ["a", "b", "c"]
    reached = dict.fromkeys(groups, 0)
    with BrokerProcess(tmp_path / "data") as broker:
        make_topic(broker.bootstrap)
        for _ in range(kills):
            committers = [Committer(broker.bootstrap, group, reached[group]) for group in groups]
            for committer in committers:
                committer.start()
            for committer in committers:
                assert committer.has_enough.wait(60)
            broker.kill()
            for committer in committers:
                committer.join()
                assert committer.error is None, committer.error
            broker.start()
            for committer in committers:
                (offset,) = set(committed(broker.bootstrap, committer.group))
                assert committer.acknowledged <= offset <= committer.sent
                reached[committer.group] = offset


def make_topic(bootstrap: str) -> None:
    wanted = create_schema.CreatableTopic(
        name=TOPIC, num_partitions=PARTITIONS, replication_factor=1, assignments=(), configs=()
    )
    with ProtocolClient(bootstrap) as client:
        answer = client.ask(
            "create_topics", 2, topics=(wanted,), timeout=datetime.timedelta(seconds=10), validate_only=False
        )
    assert answer.topics[0].error_code == ErrorCode.none
