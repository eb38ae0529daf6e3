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
import sqlite3
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
from kit.stages import Stages, kill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLE = Path(__file__).parents[2] / "examples" / "exactly_once_chain.py"
STAGES = ("produce", "score", "price", "book")
GROUPS = {"pricing": "orders.scored", "booking": "orders.priced"}
TABLES = ("scored", "booked")
STEP = 700
"""Orders that come before each kill: more than Spark takes into a batch."""
KILLS = int(os.environ.get("KEYLANE_CHAIN_KILLS", "35"))
SEED = 20261124


class Chain:
    """The example's stages. `changes` are made in its text."""

    def __init__(self, folder: Path, servers: str, database: str, changes: dict[str, str] | None = None) -> None:
        self.folder, self.servers, self.database = folder, servers, database
        self.orders = 0
        self.stages = Stages(folder)
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
        given = [f"--{name}={value}" for name, value in options.items()]
        self.stages.start(stage, sys.executable, str(self._program), *given, stage)

    def order(self, count: int) -> None:
        """So many more orders are to be sent, by a new run of the first stage."""
        self.until(lambda: not self.stages.is_running("produce"), "the orders before are sent")
        self.orders += count
        self.start("produce")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        self.stages.until(condition, what)

    def kill_worker(self, chance: random.Random) -> None:
        """One of Spark's Python processes: of a task, of the source or of the sink."""
        session = of_session(self.stages.pid("score"))
        pythons = {pid for pid in session if any(b"daemon" in one for one in words(pid))}
        workers = []
        for pid in sorted(pythons):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                workers += [pid] if parent(pid) in pythons else []
        if workers:
            kill([chance.choice(workers)])

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
        if self.stages.is_running("produce") or self.rows("booked") < self.orders:
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
            "table scored": lambda: self.seen("scored"),
            "topic orders.scored": lambda: self._in_topic("orders.scored"),
            "topic orders.priced": lambda: self._in_topic("orders.priced"),
            "table booked": lambda: self.seen("booked"),
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

    def seen(self, table: str) -> Counter[int]:
        return Counter(number for (number,) in self.select(f"SELECT number FROM {table}"))


@contextlib.contextmanager
def chain_on(*arguments: Any) -> Iterator[Chain]:
    chain = Chain(*arguments)
    try:
        yield chain
    finally:
        chain.stages.close()


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
        "produce": lambda: chain.stages.kill("produce"),
        "Spark": lambda: chain.stages.kill("score"),
        "driver": lambda: chain.stages.kill("score", alone=True),  # its JVM sees that it is gone, and ends later
        "worker": lambda: chain.kill_worker(chance),
        "price": lambda: chain.stages.kill("price"),
        "book": lambda: chain.stages.kill("book"),
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
        if victim != "produce" or chain.stages.is_running("produce"):
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
        record_property("failures", chain.stages.failed)
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
        record_property("failures", chain.stages.failed)
        assert chain.faults() == []


def chosen() -> list[str]:
    """Each as often, in an order of the seed's."""
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(KILLS)]
    random.Random(SEED).shuffle(victims)
    return victims


UNKNOWN = "    once = kl.ExactlyOnce(args.database, identity=lambda _: str(time.time_ns()))\n"
FAILS = """\
        if int(record.value) % 2 == 0 and not Path("{0}.go").exists():
            raise RuntimeError
"""
RARELY = "commit=kl.Commit(interval_ms=60_000), retries=kl.Retries(max_attempts=None),"
"""What fails is in flight, and while anything is, commits come on the interval."""
WEAKER = {
    "    for first in range(orders_sent(args), ": "    for first in range(0, ",
    "    async def price_order(record):\n": "    async def price_order(record):\n" + FAILS.format("price"),
    'delivery="transactional",': RARELY,
    "    def book_order(record, context):\n": "    def book_order(record, context):\n" + FAILS.format("book"),
    "delivery=kl.ExactlyOnce(args.database),\n        offset_reset": (
        f"delivery=kl.ExactlyOnce(args.database, identity=lambda _: str(time.time_ns())), {RARELY} offset_reset"
    ),
    'topics=["orders.scored"]': 'topics=["orders"]',
}
"""The first stage forgets where it was, the third one is at least once, the fourth one knows no record again. The third
one reads what the first one sends, without Spark."""


def test_stages_with_weaker_guarantees_are_noticed(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data") as broker,
        chain_on(tmp_path, broker.bootstrap, str(tmp_path / "orders.db"), WEAKER) as chain,
    ):
        chain.start("price")
        chain.order(200)
        chain.until(lambda: chain.length("orders.priced") >= 100, "half of them are priced")
        (tmp_path / "price.go").touch()
        chain.stages.kill("price")
        chain.start("book")
        chain.until(lambda: len(chain.seen("booked")) == 100, "half of them are booked")
        (tmp_path / "book.go").touch()
        chain.stages.kill("book")
        chain.order(100)
        chain.until(lambda: len(chain.seen("booked")) == 300, "all are booked")
        faults = dict(one.split(": ") for one in chain.faults() if "scored" not in one)
    assert faults.pop("topic orders") == "0 missing, 200 too many"
    for place in ("topic orders.priced", "table booked"):
        assert faults.pop(place).startswith("0 missing, ")
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
        chain.until(lambda: not chain.stages.is_running("produce"), "all is sent")
        chain.stages.close()
        for file in (tmp_path / "check" / "commits").iterdir():  # as after a crash between the sink and Spark's log
            file.unlink()
        chain.start("score")
        chain.until(chain.is_spark_idle, "the batch is done again")
        faults = chain.faults()
    assert [one for one in faults if one.startswith(f"{place}: 0 missing")] != []
