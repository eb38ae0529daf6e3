"""Commits do not overtake one another: librdkafka sends one again that a coordinator refused while it loads."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

import keylane as kl
from keylane import testing
from keylane.kafka import exact
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keylane.testing import EmbeddedBroker

NAME = ("order", 0)
LOADING = "COORDINATOR_LOAD_IN_PROGRESS"
REFUSED_AFTER_MS = 500
"""So a commit is refused while the next one is due; librdkafka sends it again 0.1 s later."""
ANSWER_S = 30


class Entry(NamedTuple):
    offset: int
    name: tuple[str, int] = NAME
    metadata: str = ""
    leader_epoch: int = -1


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with testing.broker() as running:
        running.create_topics({"order": 1})
        yield running


@pytest.fixture
def client(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Iterator[Consumer]:
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": request.node.name,
        "enable.auto.commit": False,
    }
    with closing(Consumer(settings)) as client:
        yield client


def committed(client: Consumer) -> int:
    return exact.committed(client, [NAME], ANSWER_S)[0].offset


def test_a_commit_comes_behind_what_was_sent_before_and_is_sent_again(broker: EmbeddedBroker, client: Consumer) -> None:
    with closing(exact.CommitQueue(client)) as commits:
        fault = broker.fault("OffsetCommit", delay_ms=REFUSED_AFTER_MS, error=LOADING)
        commits.send([Entry(5)])
        until(lambda: fault.met == 1, "it has come")
        asker = threading.Thread(target=commits.answer, args=(ANSWER_S,))
        asker.start()
        commits.commit_now([Entry(9)], ANSWER_S)
        asker.join()
        assert committed(client) == 9


def test_a_commit_comes_behind_one_whose_answer_was_late(broker: EmbeddedBroker, client: Consumer) -> None:
    with closing(exact.CommitQueue(client)) as commits:
        broker.fault("OffsetCommit", delay_ms=REFUSED_AFTER_MS, error=LOADING)
        with pytest.raises(KafkaException, match="no answer in time: an answer"):
            commits.commit_now([Entry(5)], 0.01)
        with pytest.raises(KafkaException, match="no answer in time: the answer to the commit before") as raised:
            commits.commit_now([Entry(7)], 0.01)
        assert raised.value.args[0].code() == KafkaError._TIMED_OUT
        commits.commit_now([Entry(9)], ANSWER_S)
        assert committed(client) == 9


def test_a_seek_is_not_undone_by_a_commit_of_before(broker: EmbeddedBroker) -> None:
    """Nor what a revoke commits: both go the same way."""
    stage = Stage(broker.bootstrap_servers, "sought")
    stage.create(1)
    stage.fill((b"k", 0) for _ in range(11))
    stage.admin.commit_offsets(stage.group, {(stage.topic, 0): 0})  # else where it starts is the first commit
    may_run = threading.Semaphore(10)

    def handler(_: kl.Record) -> None:
        may_run.acquire()

    pipeline = stage.pipeline(handler, commit=kl.Commit(interval_ms=50))
    fault = broker.fault("OffsetCommit", group=stage.group, delay_ms=REFUSED_AFTER_MS, error=LOADING)
    counted = broker.fault("OffsetCommit", group=stage.group, times=None, delay_ms=1)
    member = ThreadMember(pipeline, "sought")
    until(lambda: fault.met == 1, "a commit has come")
    member.consumer.seek({(stage.topic, 0): 3})
    may_run.release()  # the one in the handler
    until(lambda: counted.met >= 3, "the commit of before, what the handler has done, and where it was sought")
    # Each commit waits for the answer to the one before: the last one may have arrived, and not be answered yet.
    until(lambda: stage.committed()[stage.topic, 0].base == 3, lambda: f"the last one holds: {stage.committed()}")
    assert counted.met == 3, "nothing is committed after it"
    may_run.release(100)
    member.consumer.stop()
    member.end()
