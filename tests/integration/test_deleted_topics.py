"""A topic that is deleted while it is read: told once, by name; what reads to an end comes to it, and others go on."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.errors import TopicDeletedError
from keylane.testing.embedded import EmbeddedBroker
from kit.processes import Stopwatch
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


RECORDS = 100


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A topic of 100 records in each of two partitions, on a broker that nobody else deletes topics of."""
    monkeypatch.setattr("keylane.kafka.membership.DELETED_S", 0.3)
    monkeypatch.setattr("keylane.kafka.membership.LOOK_AGAIN_S", 0.2)
    monkeypatch.setattr("keylane.kafka.logs.MISSING_S", 0.5)
    with EmbeddedBroker(settings={"group.initial.rebalance.delay.ms": "0"}) as broker:
        stage = Stage(broker.bootstrap_servers, "deleted")
        stage.create(2)
        fill(stage, stage.topic)
        yield stage


def fill(stage: Stage, topic: str) -> None:
    stage.fill(((None, number % 2) for number in range(2 * RECORDS)), topic)


class Running:
    """A consumer whose handlers go on when they are let."""

    def __init__(self, stage: Stage, *, ends: bool, free: int, **options: Any) -> None:
        self.ran: list[tuple[str, int, int]] = []
        self._left = threading.Semaphore(free)
        self._closed = threading.Event()
        chosen: dict[str, Any] = {
            "ordering": "partition",
            "commit": kl.Commit(interval_ms=50),
            "revoke_timeout_ms": 1_000,
        }
        pipeline = stage.pipeline(self._handler, **(chosen | options))
        self.member = ThreadMember(pipeline, "reader", ending_offsets="latest" if ends else None)
        self.consumer = self.member.consumer

    def _handler(self, record: kl.Record) -> None:
        while not self._left.acquire(timeout=0.05):
            if self._closed.is_set():
                return
        self.ran.append((record.topic, record.partition, record.offset))

    def let(self, count: int) -> None:
        self._left.release(count)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self.consumer.stop("now")
        self.member.thread.join()


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once", "transactional"])
def test_a_run_to_the_end_ends_and_says_what_it_left(stage: Stage, delivery: str) -> None:
    with Running(stage, ends=True, free=40, delivery=delivery) as running:
        until(lambda: len(running.ran) == 40, "some are processed")
        stage.admin.delete_topics([stage.topic])
        running.let(4)  # completes some, so that there is something to commit
        with pytest.raises(
            TopicDeletedError, match=rf"^topic '{stage.topic}' was deleted before all of it was proc"
        ) as told:
            running.member.end()
    # Where a transaction was aborted meanwhile, its member asks the group from where to go on.
    assert re.search(rf"{stage.topic}-0 from (offset \d+|an offset that .*) up to {RECORDS}", str(told.value))
    assert len(running.ran) < 2 * RECORDS


def test_a_run_to_the_end_of_which_nothing_is_left_ends_well(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    with Running(stage, ends=True, free=2 * RECORDS - 1, commit=kl.Commit(interval_ms=60_000)) as running:
        until(lambda: len(running.ran) == 2 * RECORDS - 1, "all but one are processed")
        stage.admin.delete_topics([stage.topic])
        running.let(1)
        running.member.end()
    assert f"topic '{stage.topic}' was deleted after all of it was processed" in caplog.text


def test_what_waits_for_another_members_partitions_ends_too(stage: Stage) -> None:
    with Running(stage, ends=False, free=0) as other:
        until(lambda: other.member.assigned == 2, "another member has them")
        with Running(stage, ends=True, free=RECORDS) as running:
            until(lambda: len(running.ran) == RECORDS, "it is through with its own")
            stage.admin.delete_topics([stage.topic])
            with pytest.raises(
                TopicDeletedError, match=r"left: in-deleted-\d from an offset that this member does not know up to 100$"
            ):
                running.member.end()


def test_others_go_on_and_a_topic_that_is_made_anew_is_read(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.create(2, "other")
    with Running(stage, ends=False, free=20, topics=[stage.topic, "other"]) as running:
        until(lambda: len(running.ran) == 20, "some are processed")
        stage.admin.delete_topics([stage.topic])
        running.let(4)
        until(lambda: "was deleted: " in caplog.text, "it is told")
        before = len(running.ran)
        running.let(10_000)
        fill(stage, "other")
        others = {("other", partition): RECORDS for partition in (0, 1)}
        until(lambda: sum(topic == "other" for topic, *_ in running.ran) == 2 * RECORDS, "the other topic goes on")
        in_handlers = 2
        assert sum(topic == stage.topic for topic, *_ in running.ran) <= before + in_handlers
        # One commit at a time is on its way: the last one of the old topic, which librdkafka repeats, is over then.
        until(lambda: {one: found.base for one, found in stage.committed().items()} == others, "others are committed")
        stage.create(2)
        fill(stage, stage.topic)
        again = {(stage.topic, partition, offset) for partition in (0, 1) for offset in range(RECORDS)}
        seen = len(running.ran)
        until(lambda: again <= set(running.ran[seen - 1 :]) | set(running.ran[before:]), "the new topic is read")
        until(stage.all_is_committed, "and committed")
    assert caplog.text.count(f"topic '{stage.topic}' was deleted") == 1


def test_a_stop_does_not_wait_for_a_commit_that_cannot_be_made(stage: Stage) -> None:
    with Running(stage, ends=False, free=20) as running:
        until(lambda: len(running.ran) == 20, "some are processed")
        stage.admin.delete_topics([stage.topic])
        running.let(10)
        watch = Stopwatch()
        running.consumer.stop()
        running.member.end()
        assert watch.took_s() < 8, "the last commit alone would be waited for 10 s"


PIPELINE = """
import time
import keylane as kl

pipeline = kl.Pipeline(
    kafka={kafka!r}, topics=[{topic!r}], handler=lambda record: time.sleep(0.1), offset_reset="earliest",
    workers=kl.Threads(2), commit=kl.Commit(interval_ms=100),
)
"""


@pytest.mark.parametrize(("options", "code"), [(["--available-now"], 1), ([], 0)])
def test_the_command_ends_with_a_sentence(stage: Stage, tmp_path: Path, options: list[str], code: int) -> None:
    file = tmp_path / "pipeline.py"
    file.write_text(PIPELINE.format(kafka=stage.kafka, topic=stage.topic))
    command = [sys.executable, "-m", "keylane", "run", str(file), *options]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        until(lambda: any(one.base > 4 for one in stage.committed().values()), "some are processed")
        stage.admin.delete_topics([stage.topic])
        assert run.stdout is not None
        said = next(line for line in run.stdout if "was deleted" in line)
        watch = Stopwatch()
        run.send_signal(signal.SIGTERM)
        said += run.communicate(timeout=30)[0]
        assert watch.took_s() < 8
    finally:
        run.kill()
        run.wait()
    assert run.returncode == code, said
    if code:
        last = said.splitlines()[-1]
        assert last.startswith(
            f"keylane: error: topic '{stage.topic}' was deleted before all of it was processed; left: "
        )
    else:
        assert f"  {stage.topic}: deleted" in said
