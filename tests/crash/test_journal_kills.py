"""SIGKILL of a broker under commits, conditional commits, expiry and snapshots.

What was acknowledged is there, each commit whole or absent, no condition was passed over, and what has expired does not
come back.

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
from keylane.errors import BrokerUnavailableError
from keylane.kafka.conditional import Change, ConditionalCommits, ConditionFailedError, OutcomeUnknownError
from kit.protocol import ProtocolClient, decode_answer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# kio's types tell Kafka's integers and names apart; plain ones do here.
commit_schema: Any = importlib.import_module("kio.schema.offset_commit.v7.request")
short_schema: Any = importlib.import_module("kio.schema.offset_commit.v4.request")
fetch_schema: Any = importlib.import_module("kio.schema.offset_fetch.v5.request")
create_schema: Any = importlib.import_module("kio.schema.create_topics.v2.request")

TOPIC = "flights"
PARTITIONS = 40
IN_FLIGHT = 20
COMMITS_BEFORE_A_KILL = 150
LOAD_S = 60.0
COUNTED = "counted"
SEGMENT_BYTES = 64 * 1024
"""So small that a broker writes snapshots all the time."""
LOOKED_AT = 60
"""Groups of those that expire, the last ones, that are asked for in the end."""


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


def committed(bootstrap: str, group: str, partitions: int = PARTITIONS) -> list[int]:
    """Waits, as clients do, until the broker has loaded what it has."""
    topic = fetch_schema.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=tuple(range(partitions)))
    deadline = time.monotonic() + LOAD_S
    with ProtocolClient(bootstrap) as client:
        while True:
            answer = client.ask("offset_fetch", 5, group_id=group, topics=(topic,))
            if answer.error_code != ErrorCode.coordinator_load_in_progress:
                break
            assert time.monotonic() < deadline, "loading takes too long"
    assert answer.error_code == ErrorCode.none
    return [row.committed_offset for row in answer.topics[0].partitions]


class Counter(threading.Thread):
    """One of two that add one to the same offset, again and again, on the condition that the other did not meanwhile:
    if that is passed over, two of them count as one."""

    def __init__(self, bootstrap: str, seen: int) -> None:
        super().__init__(name="counter")
        self.added = 0
        self.error: BaseException | None = None
        self._seen = seen
        self._client = ConditionalCommits(bootstrap, COUNTED, timeout_ms=2_000)

    def run(self) -> None:
        try:
            with self._client, contextlib.suppress(OutcomeUnknownError, BrokerUnavailableError):  # the broker is killed
                while True:
                    self._add_one()
        except BaseException as error:
            self.error = error

    def _add_one(self) -> None:
        try:
            self._client.commit({(TOPIC, 0): Change(self._seen or None, self._seen + 1)})
        except ConditionFailedError as refused:
            self._seen = refused.current[TOPIC, 0] or 0
        else:
            self._seen += 1
            self.added += 1


class ShortLived(threading.Thread):
    """Commits for one group after the other offsets that are to be kept for a millisecond."""

    def __init__(self, bootstrap: str, first: int) -> None:
        super().__init__(name="short-lived")
        self.sent = first
        self.error: BaseException | None = None
        self._client = ProtocolClient(bootstrap)

    def run(self) -> None:
        try:
            with self._client, contextlib.suppress(EOFError, OSError):
                while True:
                    row = short_schema.OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=self.sent, committed_metadata=None
                    )
                    topic = short_schema.OffsetCommitRequestTopic(name=TOPIC, partitions=(row,))
                    answer = self._client.ask(
                        "offset_commit",
                        4,
                        group_id=f"short-{self.sent}",
                        generation_id_or_member_epoch=-1,
                        member_id="",
                        retention_time=datetime.timedelta(milliseconds=1),
                        topics=(topic,),
                    )
                    assert answer.topics[0].partitions[0].error_code == ErrorCode.none
                    self.sent += 1
        except BaseException as error:
            self.error = error


@pytest.mark.parametrize("kills", [4, pytest.param(200, marks=pytest.mark.soak)])
def test_commits_under_kills(tmp_path: Path, kills: int, record_property: Callable[[str, object], None]) -> None:
    groups = ["a", "b", "c"]
    reached = dict.fromkeys([*groups, COUNTED, "short"], 0)
    settings = {"offsets.topic.segment.bytes": str(SEGMENT_BYTES), "offsets.retention.check.interval.ms": "20"}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        make_topic(broker.bootstrap)
        for _ in range(kills):
            committers = [Committer(broker.bootstrap, group, reached[group]) for group in groups]
            counters = [Counter(broker.bootstrap, reached[COUNTED]) for _ in range(2)]
            short = ShortLived(broker.bootstrap, reached["short"])
            threads: list[Committer | Counter | ShortLived] = [*committers, *counters, short]
            for thread in threads:
                thread.start()
            for committer in committers:
                assert committer.has_enough.wait(60)
            broker.kill()
            for thread in threads:
                thread.join()
                assert thread.error is None, thread.error
            broker.start()
            acknowledged = reached[COUNTED] + sum(counter.added for counter in counters)
            (counted,) = committed(broker.bootstrap, COUNTED, partitions=1)
            reached[COUNTED] = max(counted, 0)
            assert acknowledged <= reached[COUNTED] <= acknowledged + len(counters), "each may have one without answer"
            reached["short"] = short.sent + 1
            for committer in committers:
                (offset,) = set(committed(broker.bootstrap, committer.group))
                assert committer.acknowledged <= offset <= committer.sent
                reached[committer.group] = offset
        assert list((tmp_path / "data" / "coordinator").glob("*.snapshot")), "snapshots were written meanwhile"
        for name, value in reached.items():
            record_property(f"commits of {name}", value)
        await_expiry(broker.bootstrap, reached["short"])
        broker.kill()
        broker.start()
        for number in range(max(reached["short"] - LOOKED_AT, 0), reached["short"]):
            assert committed(broker.bootstrap, f"short-{number}", partitions=1) == [-1], "it came back"


def await_expiry(bootstrap: str, count: int) -> None:
    deadline = time.monotonic() + LOAD_S
    last = range(max(count - LOOKED_AT, 0), count)
    while any(committed(bootstrap, f"short-{number}", partitions=1) != [-1] for number in last):
        assert time.monotonic() < deadline, "expired offsets stay"


def make_topic(bootstrap: str) -> None:
    wanted = create_schema.CreatableTopic(
        name=TOPIC, num_partitions=PARTITIONS, replication_factor=1, assignments=(), configs=()
    )
    with ProtocolClient(bootstrap) as client:
        answer = client.ask(
            "create_topics", 2, topics=(wanted,), timeout=datetime.timedelta(seconds=10), validate_only=False
        )
    assert answer.topics[0].error_code == ErrorCode.none
