"""`delivery="transactional"` from outside: whatever is killed, each input's output is seen once, and offsets agree.

The reader is another client library (aiokafka) with `read_committed`; the group's offsets and maps are read by the
admin client. The process under test ends itself at a chosen place (`transactional_member.py`).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peers
import pytest
from peers.committed_reader import committed_records

import keylane as kl
from keylane.broker.process import BrokerProcess
from kit.stage import WAIT_S, Stage, until

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMBER = Path(__file__).with_name("transactional_member.py")
PARTITIONS = 2
KEYS = 20
SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "group.min.session.timeout.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
PLACES = (
    "before handler",
    "in handler",
    "after produce",
    "before offsets",
    "after offsets",
    "in commit",
    "after commit",
)


@pytest.fixture(scope="module", params=["keylane", pytest.param("apache", marks=pytest.mark.soak)])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "keylane":
        with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=SETTINGS) as process:
            yield process.bootstrap
        return
    if what := peers.missing():
        pytest.skip(f"Apache Kafka cannot run here: {what}")
    with peers.ApacheKafka(SETTINGS | {"group.initial.rebalance.delay.ms": "0"}) as kafka:
        yield kafka.bootstrap


class Copy:
    """A topic that is copied, by members that come and go."""

    def __init__(self, servers: str, name: str, records: int) -> None:
        self.stage = Stage(servers, name)
        self.stage.create(PARTITIONS)
        self.out, self.dead = f"out-{name}", f"dead-{name}"
        for topic in (self.out, self.dead):
            self.stage.create(PARTITIONS, topic)
        self.stage.fill((b"%d" % (number % KEYS), number % PARTITIONS) for number in range(records))
        self.expected = {f"{one.partition}@{one.offset}": one.key for one in self.stage.read(self.stage.topic)}

    def member(self, at: str | None = None, nth: int = 1, **options: Any) -> subprocess.Popen[str]:
        kafka = self.stage.kafka | {"session.timeout.ms": 2_000, "transaction.timeout.ms": 3_000}
        kafka |= options.pop("kafka", {})
        chosen = {"work_s": 0.003, "interval_ms": 30, "signal": "SIGKILL"} | options
        chosen |= {"kafka": kafka, "topic": self.stage.topic, "at": at, "nth": nth, "out": self.out, "dead": self.dead}
        command = [sys.executable, str(MEMBER), json.dumps(chosen)]
        self.logged = tempfile.TemporaryFile("w+")  # noqa: SIM115 - read once the process has ended
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.logged, text=True)

    def die(self, at: str, nth: int, **options: Any) -> None:
        """Run a member until it ends itself there."""
        with self.member(at, nth, **options) as process:
            process.wait(WAIT_S)
            assert process.returncode == -signal.SIGKILL, f"{at}: it ended with {process.returncode}: {self.log()}"

    def log(self) -> str:
        """The end of what the last member logged."""
        self.logged.seek(0)
        return self.logged.read()[-1_000:]

    def finish(self, **options: Any) -> int:
        """Run one to the end, however long that takes while it does something; how many of its transactions were
        aborted."""
        with self.member(**options) as process:
            while True:
                before = self._length()
                try:
                    said, _ = process.communicate(timeout=WAIT_S)
                    break
                except subprocess.TimeoutExpired:
                    if self._length() == before:
                        process.kill()
                        process.wait()
                        pytest.fail(f"nothing more came within {WAIT_S:.0f} s: {self.log()}")
            assert process.returncode == 0, self.log()
        return int(said.split()[-1])

    def _length(self) -> int:
        """Of the logs of the outputs and the dead letters, with what was aborted."""
        ends = self.stage.admin.log_ends(
            [(topic, p) for topic in (self.out, self.dead) for p in range(PARTITIONS)], read_committed=False
        )
        return sum(end or 0 for end in ends.values())

    def seen(self) -> list[tuple[str, bytes | None]]:
        """Inputs whose outputs readers see once no transaction is open, in the order of each partition; with keys."""
        ends = self.stage.admin.log_ends(
            [(topic, p) for topic in (self.out, self.dead) for p in range(PARTITIONS)], read_committed=False
        )
        return [_source(record) for record in committed_records(self.stage.servers, ends)]

    def check_agreement(self) -> None:
        """What is seen is what the group has complete, and nothing twice."""
        seen = Counter(source for source, _ in self.seen())
        twice = [source for source, count in seen.items() if count > 1]
        assert not twice, f"seen twice: {twice}"
        until(lambda: self._covered() == set(seen), "the group's map and the outputs agree", 10)

    def _covered(self) -> set[str]:
        """Inputs that the group has complete, and that have an output."""
        maps = self.stage.committed()
        found = set()
        for source in self.expected:
            partition, offset = map(int, source.split("@"))
            offsets = maps.get((self.stage.topic, partition))
            if offset % 11 != 7 and offsets is not None and offsets.is_complete(offset):
                found.add(source)
        return found

    def check_end(self) -> None:
        """All is through: once, and in the order of each key."""
        assert self.stage.all_is_committed()
        self.check_agreement()
        last: dict[tuple[bytes | None, str], int] = {}
        seen = self.seen()
        assert len(seen) == sum(int(source.split("@")[1]) % 11 != 7 for source in self.expected)
        for source, key in seen:
            partition, offset = map(int, source.split("@"))
            which = (key, f"{partition} dead {offset % 11 == 3}")
            assert last.get(which, -1) < offset, f"{source} is seen behind {last[which]}"
            last[which] = offset


def _source(record: Any) -> tuple[str, bytes | None]:
    headers = dict(record.headers)
    if "keylane.offset" in headers:
        return f"{headers['keylane.partition'].decode()}@{headers['keylane.offset'].decode()}", record.key
    return record.value.decode(), record.key


@pytest.mark.full
def test_kills_at_every_place(servers: str) -> None:
    """A static member: its successor has the same transactional.id, and ends what it left open."""
    copy = Copy(servers, "places", 700)
    static = {"kafka": {"group.instance.id": "one"}}
    for number, place in enumerate(PLACES):
        copy.die(place, 20 if "handler" in place else 2, **static)
        if number % 3 == 1:
            copy.check_agreement()
    copy.finish(**static)
    copy.check_end()


@pytest.mark.soak
def test_the_broker_is_killed_in_the_middle_of_a_commit(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as own:
        copy = Copy(own.bootstrap, "broker", 600)
        with copy.member("after offsets", 3, signal="SIGSTOP", kafka={"transaction.timeout.ms": 20_000}) as process:
            _wait_until_frozen(process)
            own.kill()
            os.kill(process.pid, signal.SIGCONT)
            own.start()
            process.communicate(timeout=WAIT_S)
            assert process.returncode == 0
        copy.check_end()


@pytest.mark.parametrize("place", ["before offsets", pytest.param("after offsets", marks=pytest.mark.soak)])
def test_a_zombie_is_fenced(servers: str, place: str) -> None:
    """It is frozen in its commit until its session is over and another one has done the work: before its offsets are
    sent, the group's generation fences it; after that, the end of its transaction by its timeout, for which the other
    one waits."""
    copy = Copy(servers, f"zombie-{place.split()[0]}", 300)
    timeout_ms = 30_000 if place == "before offsets" else 3_000
    with copy.member(place, 2, signal="SIGSTOP", kafka={"transaction.timeout.ms": timeout_ms}) as zombie:
        with _frozen(zombie):
            copy.finish()
            assert copy.stage.all_is_committed()
        said, _ = zombie.communicate(timeout=WAIT_S)
        assert zombie.returncode == 0
    assert int(said.split()[-1]) >= 1, "none of the zombie's transactions was aborted"
    copy.check_end()


@pytest.mark.soak
def test_a_rebalance_in_the_middle(servers: str) -> None:
    copy = Copy(servers, "rebalance", 900)
    with copy.member(work_s=0.02) as first:
        until(lambda: bool(copy.stage.committed()), "the first one has begun")
        with copy.member(work_s=0.02) as second:
            for process in (first, second):
                process.communicate(timeout=WAIT_S)
                assert process.returncode == 0
    copy.check_end()


@pytest.mark.soak
def test_an_output_that_the_broker_refuses_ends_in_the_dead_letters_and_nothing_is_seen_twice(tmp_path: Path) -> None:
    """It aborts its transaction at each attempt. What was in a batch with it is refused as well, and is not blamed."""
    with BrokerProcess(tmp_path / "data", settings=SETTINGS | {"message.max.bytes": "2000"}) as own:
        copy = Copy(own.bootstrap, "refused", 200)

        def handler(record: kl.Record) -> kl.Output:
            value = f"{record.partition}@{record.offset}".encode()
            return kl.Output(copy.out, key=record.key, value=b"x" * 5_000 if record.offset == 13 else value)

        snapshot = copy.stage.run(
            handler,
            delivery="transactional",
            retries=kl.Retries(max_attempts=2, delay_ms=50, jitter=1),
            on_exhausted=kl.DeadLetter(copy.dead),
        )
        seen = Counter(source for source, _ in copy.seen())
        dead = {_source(one)[0] for one in copy.stage.read(copy.dead)}
    assert seen == Counter(copy.expected.keys())
    assert dead == {"0@13", "1@13"}
    assert snapshot.transactions_aborted >= 2
    assert snapshot.dead_lettered >= len(dead), "some may have been undone"


@pytest.mark.soak
def test_thirty_kills(servers: str) -> None:
    """On Apache Kafka, too."""
    copy = Copy(servers, "thirty", 4_000)
    static = {"kafka": {"group.instance.id": "one"}}
    for number in range(30):
        copy.die(PLACES[number % len(PLACES)], 1 + number % 3, **static)
        copy.check_agreement()
    copy.finish(**static)
    copy.check_end()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_a_hundred_kills(tmp_path: Path, seed: int) -> None:
    """With dynamic members, too: what they leave open ends by its timeout."""
    chance = random.Random(seed)
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as own:
        copy = Copy(own.bootstrap, f"soak-{seed}", 6_000)
        for _ in range(22):
            kafka = {"group.instance.id": "one"} if chance.random() < 0.7 else {"session.timeout.ms": 1_000}
            place = chance.choice(PLACES)
            copy.die(place, chance.randint(1, 60 if "handler" in place else 3), kafka=kafka)
            if chance.random() < 0.2:
                own.restart()
            copy.check_agreement()
        copy.finish()
        copy.check_end()


def _wait_until_frozen(process: subprocess.Popen[str]) -> None:
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"it ended with {status}"


@contextmanager
def _frozen(process: subprocess.Popen[str]) -> Iterator[None]:
    """Within the block it is frozen, where it froze itself."""
    _wait_until_frozen(process)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)
