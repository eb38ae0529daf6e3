"""SIGKILL of a consumer, and of the broker: nothing acknowledged runs again, nothing is lost, order holds."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from kit.ledger import Ledger
from kit.stage import Member, Stage, until

if TYPE_CHECKING:
    from pathlib import Path

PARTITIONS = 2
RECORDS = 800
KEYS = 40
THREADS = 16  # of a pipeline, by default


def filled(stage: Stage) -> None:
    stage.create(PARTITIONS)
    keys = [None if number % 11 == 0 else b"%d" % (number % KEYS) for number in range(RECORDS)]
    stage.fill((key, number % PARTITIONS) for number, key in enumerate(keys))


@pytest.mark.parametrize("ordering", ["key", "unordered"])
def test_after_a_sigkill_only_what_no_acknowledged_commit_covers_runs_again(tmp_path: Path, ordering: str) -> None:
    # Until its session times out, the killed member keeps the next one waiting.
    with BrokerProcess(tmp_path / "data", settings={"group.min.session.timeout.ms": "1000"}) as broker:
        stage = Stage(broker.bootstrap, ordering)
        filled(stage)
        ledger = Ledger(tmp_path / "ledger")
        options = {
            "kafka": stage.kafka | {"session.timeout.ms": 3_000},
            "topic": stage.topic,
            "ledger": str(ledger.path),
            "ordering": ordering,
            "slow": [5, 17],  # held in both partitions: everything behind them is in the map
            "hold_s": 20,
        }
        with Member(**options) as child:
            until(
                lambda: sum(found.span for found in stage.committed().values()) > 200 and len(stage.covered()) > 100,
                "a map with many records above a base that a held record keeps",
            )
            child.kill()
            ledger.died(child.name)
        # A commit that it sent just before may reach the broker's hands after the kill, but not after its session.
        until(lambda: not stage.admin.describe_group(stage.group).members, "the killed member's session ends")
        covered = stage.covered()
        assert len(covered) > 100
        first = ledger.done_times()
        assert first.keys() >= covered
        with Member(**options | {"hold_s": 0}) as child:
            assert child.end() == f"processed {RECORDS - len(covered)}\n"
        again = set(ledger.begun_after_deaths())
        assert again & covered == set(), "acknowledged, and run again"
        done = ledger.done_times()
        assert set(done) == {source for source, _ in stage.sources()}, "lost"
        assert all(times == 1 or source in first for source, times in done.items())
        assert ledger.disorders(ordering, stage.sources()) == []  # type: ignore[arg-type]
        assert stage.all_is_committed()
        ledger.close()


def test_a_member_that_was_frozen_starts_nothing_when_it_wakes(tmp_path: Path) -> None:
    """SIGSTOP for longer than its session; the other member has taken over and has run everything."""
    with BrokerProcess(tmp_path / "data", settings={"group.min.session.timeout.ms": "1000"}) as broker:
        stage = Stage(broker.bootstrap, "frozen")
        filled(stage)
        ledger = Ledger(tmp_path / "ledger")
        options = {
            "kafka": stage.kafka | {"session.timeout.ms": 1_500},
            "topic": stage.topic,
            "ledger": str(ledger.path),
            "work_s": 0.05,
        }
        with Member(**options) as frozen:
            until(lambda: len(ledger.done_times()) > 50, "it works")
            freeze_in_handlers(frozen, ledger)
            with Member(**options) as other:
                other.end()
            frozen.wake()
            frozen.end()
        begun = [entry.member for entry in ledger.after_deaths() if entry.what == "began"]
        assert set(begun) == {other.name}, "it began with something although its partitions were another's"
        assert set(ledger.done_times()) == {source for source, _ in stage.sources()}, "lost"
        assert stage.all_is_committed()
        ledger.close()


@pytest.mark.soak
def test_nor_does_an_answer_from_before_it_was_frozen_let_it_start(tmp_path: Path) -> None:
    """It reads the answer to a heartbeat of before when it wakes, and the broker says nothing more for a while."""
    heartbeat_s = 0.3
    with BrokerProcess(tmp_path / "data") as broker:
        stage = Stage(broker.bootstrap, "old-answer")
        filled(stage)
        ledger = Ledger(tmp_path / "ledger")
        kafka = stage.kafka | {"session.timeout.ms": 6_000, "heartbeat.interval.ms": int(heartbeat_s * 1000)}
        options = {"kafka": kafka, "topic": stage.topic, "ledger": str(ledger.path), "work_s": 0.1}
        with Member(**options) as frozen:
            until(lambda: len(ledger.done_times()) > 50, "it works")
            broker.pause()
            time.sleep(2 * heartbeat_s)  # a heartbeat goes out
            freeze_in_handlers(frozen, ledger)
            broker.resume()
            with Member(**options) as other:
                other.end()
            broker.pause()
            frozen.wake()
            time.sleep(5 * heartbeat_s)  # several statistics tell of the answer
            broker.resume()
            frozen.end()
        begun = [entry.member for entry in ledger.after_deaths() if entry.what == "began"]
        assert set(begun) == {other.name}
        ledger.close()


def freeze_in_handlers(member: Member, ledger: Ledger) -> None:
    """Freeze it while each of its threads is in a handler; not between having been allowed to start one and the
    handler's first word. Its handlers may end after this, but none may begin."""

    def is_frozen() -> bool:
        member.freeze()
        if ledger.running() == THREADS:
            return True
        member.wake()
        return False

    until(is_frozen, "each thread is in a handler")
    ledger.died(member.name)


@pytest.mark.parametrize("workers", ["threads", "asyncio"])
def test_a_broker_that_is_killed_and_restarted_is_ridden_out(tmp_path: Path, workers: str) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        stage = Stage(broker.bootstrap, workers)
        filled(stage)
        stage.create(1, "out")
        ledger = Ledger(tmp_path / "ledger")

        def work(record: kl.Record) -> kl.Output:
            ledger.began(record)
            ledger.done(record)
            return kl.Output("out", key=record.key, value=b"%d-%d" % (record.partition, record.offset))

        def in_thread(record: kl.Record) -> kl.Output:
            time.sleep(0.01)
            return work(record)

        async def in_task(record: kl.Record) -> kl.Output:
            await asyncio.sleep(0.01)
            return work(record)

        handler: Any = in_thread if workers == "threads" else in_task
        # However long the restarts take, the session outlasts them: a member that loses its partitions runs again what
        # it had not committed.
        kafka = stage.kafka | {"session.timeout.ms": 60_000}
        pipeline = stage.pipeline(handler, commit=kl.Commit(interval_ms=100), max_concurrency=8, kafka=kafka)
        with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
            thread = threading.Thread(target=consumer.run)
            thread.start()
            for share in (0.2, 0.5):
                until(lambda: consumer.snapshot().processed > RECORDS * share, "some are through")  # noqa: B023
                broker.restart()
            thread.join(60)
            assert not thread.is_alive(), consumer.snapshot()
        assert ledger.done_times().keys() == {source for source, _ in stage.sources()}
        assert ledger.disorders("key", stage.sources()) == []
        outputs = {record.value for record in stage.read("out")}
        assert len(outputs) == RECORDS
        assert stage.all_is_committed()
        snapshot = consumer.snapshot()
        assert (snapshot.processed, snapshot.in_flight) == (RECORDS, 0)
        ledger.close()


def test_closing_while_the_broker_is_away_ends_within_its_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keylane.consumer.closing.FINAL_COMMIT_S", 1.0)
    with BrokerProcess(tmp_path / "data", settings={"group.min.session.timeout.ms": "1000"}) as broker:
        stage = Stage(broker.bootstrap, "away")
        filled(stage)
        # Leaving waits as long for the coordinator, and so does a request that it did not take any more.
        kafka = stage.kafka | {"session.timeout.ms": 3_000, "socket.timeout.ms": 2_000}
        pipeline = stage.pipeline(lambda _: None, commit=kl.Commit(interval_ms=60_000), kafka=kafka)
        with kl.ParallelConsumer(pipeline) as consumer:
            thread = threading.Thread(target=consumer.run)
            thread.start()
            until(lambda: consumer.snapshot().processed == RECORDS, "all are through")
            broker.kill()
            consumer.stop()
            thread.join(40)
            assert not thread.is_alive()
        # librdkafka sends a commit again and again that was in its queue when the connection broke, and the member's
        # thread, which was left behind, waits for that.
        broker.start()
        for left in [one for one in threading.enumerate() if one.name == "keylane-group"]:
            left.join(60)
            assert not left.is_alive(), "the member's thread ends when its broker is back"
