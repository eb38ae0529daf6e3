"""Callbacks and streams on a real broker, and what a SIGKILL leaves of what was not read."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from kit.ledger import Ledger
from kit.stage import Member, Stage, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORDS = 300
KEYS = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # Until its session times out, a killed member keeps the next one waiting.
    settings = {"group.min.session.timeout.ms": "1000"}
    with BrokerProcess(tmp_path_factory.mktemp("results") / "data", settings=settings) as running:
        yield running


@pytest.fixture
def stage(broker: BrokerProcess, request: pytest.FixtureRequest) -> Stage:
    made = Stage(broker.bootstrap, "".join(c if c.isalnum() else "-" for c in request.node.name))
    made.create(2)
    made.fill((b"%d" % (number % KEYS), number % 2) for number in range(RECORDS))
    return made


def test_on_produced_names_where_each_output_is(stage: Stage) -> None:
    out = "out-" + stage.topic
    stage.create(3, out)
    seen: list[kl.Produced] = []
    threads = set()

    def on_produced(one: kl.Produced) -> None:
        seen.append(one)
        threads.add(threading.current_thread().name)

    def handler(record: kl.Record) -> list[kl.Output]:
        return [kl.Output(out, key=record.key, value=b"%d-%d" % (record.partition, record.offset))] * 2

    stage.run(handler, on_produced=on_produced)
    stored = {(one.partition, one.offset): one.value for one in stage.read(out)}
    assert len(seen) == 2 * RECORDS == len(stored)
    assert {(one.partition, one.offset) for one in seen} == stored.keys()
    for one in seen:
        assert one.topic == out
        assert stored[one.partition, one.offset] == b"%d-%d" % (one.record.partition, one.record.offset)
    assert threads == {"keylane-produced"}
    assert stage.all_is_committed()


@pytest.mark.parametrize("is_async", [False, True])
def test_results_come_as_they_are_ready_in_order_of_their_keys(stage: Stage, is_async: bool) -> None:
    async def handler(record: kl.Record) -> int:
        await asyncio.sleep(0.001)
        return int(record.value or b"")

    def consumer() -> kl.ParallelConsumer:
        return kl.ParallelConsumer(stage.pipeline(handler), ending_offsets="latest")

    async def read() -> list[kl.Result]:
        async with consumer().stream() as results:
            return [result async for result in results]

    if is_async:
        got = asyncio.run(read())
    else:
        with consumer().stream() as results:
            got = list(results)
    assert sorted(result.value for result in got) == list(range(RECORDS))
    for key in range(KEYS):
        own = [result.value for result in got if result.record.key == b"%d" % key]
        assert own == sorted(own)
    assert stage.all_is_committed()


def test_what_cannot_start_is_raised_by_the_block(stage: Stage) -> None:
    pipeline = stage.pipeline(lambda _: None, topics=["nowhere-" + stage.topic])
    with pytest.raises(kl.UsageError, match="does not exist"), kl.ParallelConsumer(pipeline).stream() as results:
        next(results)


@pytest.mark.parametrize(
    ("options", "text"),
    [({"complete": "soon"}, "complete='soon': give one of 'read', 'handled'"), ({"max_unread": 0}, "max_unread=0")],
)
def test_wrong_options_of_a_stream_are_refused(stage: Stage, options: Any, text: str) -> None:
    with pytest.raises(kl.UsageError, match=text):
        kl.ParallelConsumer(stage.pipeline(lambda _: None)).stream(**options)


def test_a_consumer_has_one_stream(stage: Stage) -> None:
    consumer = kl.ParallelConsumer(stage.pipeline(lambda _: None))
    consumer.stream()
    with pytest.raises(kl.UsageError, match="make a new one"):
        consumer.stream()


@pytest.mark.parametrize("complete", ["read", "handled"])
def test_a_sigkill_under_a_stream(stage: Stage, tmp_path: Path, complete: str) -> None:
    """Under "read" no acknowledged commit covers what was not read; under "handled" it does, and that is lost."""
    ledger = Ledger(tmp_path / "ledger")
    options = {
        "kafka": stage.kafka | {"session.timeout.ms": 3_000},
        "topic": stage.topic,
        "ledger": str(ledger.path),
        "work_s": 0,
        "stream": complete,
        "max_unread": 100,
        "read_s": 0.02,
    }
    with Member(**options) as child:
        until(lambda: sum(ledger.done_times().values()) > 30, "some are read")
        until(
            lambda: sum(one.base + one.span - len(one.incomplete) for one in stage.committed().values()) > 20,
            "some are committed",
        )
        child.kill()
    ledger.died(child.name)
    # A commit that it sent just before may reach the broker's hands after the kill, but not after its session.
    until(lambda: not stage.admin.describe_group(stage.group).members, "the killed member's session ends")
    covered = stage.covered()
    read = ledger.done_times().keys()
    assert covered
    lost = covered - read
    assert (lost == set()) == (complete == "read")
    with Member(**options | {"read_s": 0}) as child:
        assert child.end() == f"processed {RECORDS - len(covered)}\n"
    assert set(ledger.begun_after_deaths()) & covered == set(), "acknowledged, and run again"
    assert ledger.done_times().keys() == {source for source, _ in stage.sources()} - lost
    assert stage.all_is_committed()
    ledger.close()
