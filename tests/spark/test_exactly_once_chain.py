"""The chain of docs/exactly-once.md: the stages of `examples/exactly_once_chain.py` are killed (SIGKILL) at random.

The verdict is SQL on the database, and another client library (aiokafka) on each topic. KEYLANE_CHAIN_KILLS says how
many kills the long form has (35).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import runpy
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from peers.postgres import PostgresServer, find_postgres

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from kit.committed import committed_values
from kit.processes import of_session, parent, words
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLE = Path(__file__).parents[2] / "examples" / "exactly_once_chain.py"
STAGES = ("produce", "score", "price", "book")
GROUPS = {"pricing": "orders.scored", "booking": "orders.priced"}
TABLES = ("scored", "booked")
STEP = 700
"""Orders that come before each kill: more than Spark takes into a batch."""
PATIENCE_S = 240.0
"""Spark's start on a busy machine, and what a broker that was killed makes its clients wait for."""
KILLS = int(os.environ.get("KEYLANE_CHAIN_KILLS", "35"))
SEED = 20261124


class Chain:
    """The example's stages in sessions of their own. `changes` are made in its text."""

    def __init__(self, folder: Path, servers: str, database: str, changes: dict[str, str] | None = None) -> None:
        self.folder, self.servers, self.database = folder, servers, database
        self.orders = 0
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.failed: Counter[str] = Counter()
        """Stages that ended by themselves, and were started again."""
        self._sessions: list[int] = []
        self._admin = Admin({"bootstrap.servers": servers})
        text = EXAMPLE.read_text()
        for old, new in (changes or {}).items():
            assert text.count(old) == 1, f"the example has {old!r} {text.count(old)} times"
            text = text.replace(old, new)
        self._program = folder / EXAMPLE.name
        self._program.write_text(text)
        prepare = runpy.run_path(str(self._program))["prepare"]
        prepare(argparse.Namespace(bootstrap=servers, database=database))

    # --- what runs ---

    def start(self, stage: str) -> None:
        options = {"records": self.orders, "bootstrap": self.servers, "database": self.database, "checkpoint": "check"}
        command = [sys.executable, str(self._program), *(f"--{name}={value}" for name, value in options.items()), stage]
        with (self.folder / f"{stage}.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)
        self.running[stage] = process
        self._sessions.append(process.pid)

    def order(self, count: int) -> None:
        """So many more orders are to be sent, by a new run of the first stage."""
        self.until(lambda: "produce" not in self.running, "the orders before are sent")
        self.orders += count
        self.start("produce")

    def tend(self) -> None:
        """Starts what has ended, except the first stage when it has sent everything."""
        for stage, process in list(self.running.items()):
            if (code := process.poll()) is not None:
                del self.running[stage]
                if stage != "produce" or code != 0:
                    self.failed[stage] += 1
                    self.start(stage)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Tends the stages meanwhile."""

        def tended() -> bool:
            time.sleep(0.04)
            self.tend()
            return condition()

        try:
            until(tended, what, PATIENCE_S)
        except AssertionError as error:
            logs = {path.name: path.read_text(errors="replace")[-1_500:] for path in self.folder.glob("*.log")}
            raise AssertionError(f"{error}; {self.failed}, {logs}") from None

    def kill(self, stage: str) -> None:
        """A stage with all that it has started, and starts it again."""
        process = self.running.pop(stage)
        _kill(of_session(process.pid))
        process.wait()
        self.start(stage)

    def kill_driver(self) -> None:
        """The program alone: its JVM sees that it is gone, and ends later."""
        process = self.running.pop("score")
        process.kill()
        process.wait()
        self.start("score")

    def kill_worker(self, chance: random.Random) -> None:
        """One of Spark's Python processes: of a task, of the source or of the sink."""
        pythons = {pid for pid in of_session(self.running["score"].pid) if any(b"daemon" in one for one in words(pid))}
        workers = []
        for pid in sorted(pythons):
            with contextlib.suppress(OSError):
                workers += [pid] if parent(pid) in pythons else []
        if workers:
            _kill({chance.choice(workers)})

    def close(self) -> None:
        for session in self._sessions:
            _kill(of_session(session))
        for process in self.running.values():
            process.wait()

    # --- what is seen ---

    def select(self, text: str) -> list[tuple[Any, ...]]:
        """By a client of its own."""
        if "://" not in self.database:
            with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=60)) as database:
                return database.execute(text).fetchall()
        import psycopg

        with psycopg.connect(self.database) as database:
            return database.execute(text.encode()).fetchall()

    def rows(self, table: str) -> int:
        return int(self.select(f"SELECT count(*) FROM {table}")[0][0])

    def length(self, topic: str) -> int:
        """Of its logs, with what was aborted."""
        names = [(topic, partition) for partition in range(self._admin.topics()[topic])]
        return sum(end or 0 for end in self._admin.log_ends(names).values())

    def is_idle(self) -> bool:
        """No stage has anything left to do, as Spark's checkpoint and the groups' commits say."""
        if "produce" in self.running or self.rows("booked") < self.orders:
            return False
        return self.is_spark_idle() and all(self._lag(group, topic) == 0 for group, topic in GROUPS.items())

    def is_spark_idle(self) -> bool:
        """It has planned batches, and has done them."""
        logs = [(self.folder / "check" / one).glob("[0-9]*") for one in ("offsets", "commits")]
        planned, done = ({path.name for path in log} for log in logs)
        return len(planned) > 0 and planned == done

    def _lag(self, group: str, topic: str) -> int:
        ends = self._admin.log_ends([(topic, partition) for partition in range(self._admin.topics()[topic])])
        committed = self._admin.committed_offsets(group)
        return sum((end or 0) - (committed[name].offset if name in committed else 0) for name, end in ends.items())

    def faults(self) -> list[str]:
        """Each place where an order is missing, or is more than once."""
        places: dict[str, Callable[[], Counter[int]]] = {
            "topic orders": lambda: self._in_topic("orders"),
            "table scored": lambda: self._in_table("scored"),
            "topic orders.scored": lambda: self._in_topic("orders.scored"),
            "topic orders.priced": lambda: self._in_topic("orders.priced"),
            "table booked": lambda: self._in_table("booked"),
        }
        expected = Counter(range(self.orders))
        found = {place: look() for place, look in places.items()}
        return [
            f"{place}: {(expected - seen).total()} missing, {(seen - expected).total()} too many"
            for place, seen in found.items()
            if seen != expected
        ]

    def _in_topic(self, topic: str) -> Counter[int]:
        return Counter(map(int, committed_values(self.servers, topic)))

    def _in_table(self, table: str) -> Counter[int]:
        return Counter(number for (number,) in self.select(f"SELECT number FROM {table}"))


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it went with another one
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def chain_on(*arguments: Any) -> Iterator[Chain]:
    chain = Chain(*arguments)
    try:
        yield chain
    finally:
        chain.close()


def storm(chain: Chain, victims: list[str], kill_broker: Callable[[], None]) -> Counter[str]:
    """Kills one after another while orders come; returns how often each."""
    chance = random.Random(SEED)
    progress: dict[str, Callable[[], int]] = {
        "produce": lambda: chain.length("orders"),
        "Spark": lambda: chain.rows("scored"),
        "driver": lambda: chain.length("orders.scored"),
        "worker": lambda: chain.rows("scored"),
        "price": lambda: chain.length("orders.priced"),
        "book": lambda: chain.rows("booked"),
        "broker": lambda: chain.length("orders.scored"),
    }
    kills: dict[str, Callable[[], None]] = {
        "produce": lambda: chain.kill("produce"),
        "Spark": lambda: chain.kill("score"),
        "driver": chain.kill_driver,
        "worker": lambda: chain.kill_worker(chance),
        "price": lambda: chain.kill("price"),
        "book": lambda: chain.kill("book"),
        "broker": kill_broker,
    }
    done: Counter[str] = Counter()
    for stage in STAGES[1:]:
        chain.start(stage)
    for number, victim in enumerate(victims):
        before = progress[victim]()
        chain.order(STEP)
        chain.until(lambda look=progress[victim], seen=before: look() > seen, f"{victim} works")  # type: ignore[misc]
        time.sleep(chance.random() * (0.1 if victim == "produce" else 1.0))  # anywhere in what it does next
        if victim != "produce" or "produce" in chain.running:
            kills[victim]()
            done[victim] += 1
        print(f"{number + 1} of {len(victims)}: {victim}; {chain.rows('booked')} of {chain.orders} booked", flush=True)  # noqa: T201
    chain.until(chain.is_idle, "all is done")
    return done


VICTIMS = ("produce", "Spark", "price", "worker", "book", "broker", "driver")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.soak)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "orders.db")
        return
    if find_postgres() is None:
        pytest.skip("PostgreSQL is not installed")
    with PostgresServer() as server:
        yield server.conninfo


@pytest.mark.cluster
def test_each_order_is_everywhere_once_while_each_stage_is_killed(java: None, tmp_path: Path) -> None:
    """Spark once, and everything else."""
    with (
        BrokerProcess(tmp_path / "data") as broker,
        chain_on(tmp_path, broker.bootstrap, str(tmp_path / "orders.db")) as chain,
    ):
        storm(chain, ["produce", "price", "worker", "book", "broker", "Spark"], broker.restart)
        assert chain.faults() == []


@pytest.mark.soak
def test_a_storm_on_the_embedded_broker(
    java: None, tmp_path: Path, database: str, record_property: Callable[[str, object], None]
) -> None:
    with BrokerProcess(tmp_path / "data") as broker, chain_on(tmp_path, broker.bootstrap, database) as chain:
        record_property("kills", storm(chain, chosen(), broker.restart))
        record_property("failures", chain.failed)
        assert chain.faults() == []


@pytest.mark.soak
def test_a_storm_on_apache_kafka(java: None, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    import peers

    if missing := peers.missing():
        pytest.skip(missing)
    with peers.ApacheKafka({}) as kafka, chain_on(tmp_path, kafka.bootstrap, str(tmp_path / "orders.db")) as chain:

        def again() -> None:
            kafka.kill()
            kafka.start()

        record_property("kills", storm(chain, chosen(), again))
        record_property("failures", chain.failed)
        assert chain.faults() == []


def chosen() -> list[str]:
    """Each as often, in an order of the seed's."""
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(KILLS)]
    random.Random(SEED).shuffle(victims)
    return victims


UNKNOWN = "    once = kl.ExactlyOnce(args.database, identity=lambda _: str(time.time_ns()))\n"
HOLDS = """\
        while record.value == b"199" and not Path("{0}.go").exists():
            {1}time.sleep(0.01)
"""
WEAKER = {
    "    for first in range(orders_sent(args), ": "    for first in range(0, ",
    'delivery="transactional",': "commit=kl.Commit(interval_ms=60_000),",
    "    async def price_order(record):\n": "    def price_order(record):\n" + HOLDS.format("price", ""),
    "delivery=kl.ExactlyOnce(args.database),\n        offset_reset": (
        "delivery=kl.ExactlyOnce(args.database, identity=lambda _: str(time.time_ns())),\n"
        "        commit=kl.Commit(interval_ms=60_000),\n        offset_reset"
    ),
    "    def book_order(record, context):\n": "    def book_order(record, context):\n" + HOLDS.format("book", ""),
    'topics=["orders.scored"]': 'topics=["orders"]',
}
"""The first stage forgets where it was, the third one is at least once, the fourth one knows no record again. The third
and the fourth are busy, and so commit nothing, until a file is there. The third one reads what the first one sends."""


def test_stages_with_weaker_guarantees_are_noticed(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data") as broker,
        chain_on(tmp_path, broker.bootstrap, str(tmp_path / "orders.db"), WEAKER) as chain,
    ):
        chain.start("price")
        chain.order(200)
        chain.until(lambda: chain.length("orders.priced") == 199, "all but one are priced")
        (tmp_path / "price.go").touch()
        chain.kill("price")
        chain.until(lambda: chain.length("orders.priced") == 399, "all are priced again")
        chain.start("book")
        chain.until(lambda: chain.rows("booked") > 0, "some are booked")
        (tmp_path / "book.go").touch()
        chain.kill("book")
        chain.order(100)
        chain.until(lambda: chain.length("orders.priced") == 699, "all are sent and priced again")
        chain.until(lambda: chain.rows("booked") > 699, "all are booked, and some again")
        faults = dict(one.split(": ") for one in chain.faults() if "scored" not in one)
    assert faults.pop("topic orders") == "0 missing, 200 too many"
    assert faults.pop("topic orders.priced") == "0 missing, 399 too many"
    assert faults.pop("table booked").startswith("0 missing, ")
    assert faults == {}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        (', "delivery": "exactly_once", "sinkName": "scored"', "", "topic orders.scored"),
        ("    once = kl.ExactlyOnce(args.database)\n", UNKNOWN, "table scored"),
    ],
)
def test_a_query_with_weaker_guarantees_is_noticed(java: None, tmp_path: Path, old: str, new: str, place: str) -> None:
    with (
        BrokerProcess(tmp_path / "data") as broker,
        chain_on(tmp_path, broker.bootstrap, str(tmp_path / "orders.db"), {old: new}) as chain,
    ):
        chain.start("score")
        chain.order(300)
        chain.until(lambda: chain.rows("scored") == 300 and chain.is_spark_idle(), "all is done")
        chain.until(lambda: "produce" not in chain.running, "all is sent")
        chain.running.pop("score").kill()
        chain.close()
        for file in (tmp_path / "check" / "commits").iterdir():  # as after a crash between the sink and Spark's log
            file.unlink()
        chain.start("score")
        chain.until(chain.is_spark_idle, "the batch is done again")
        faults = chain.faults()
    assert [one for one in faults if one.startswith(f"{place}: 0 missing")] != []
