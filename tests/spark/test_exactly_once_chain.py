"""The chain of docs/exactly-once.md: the stages of `examples/exactly_once_chain.py` are killed (SIGKILL) at random.

The verdict is SQL on the database, and another client library (aiokafka) on each topic. KEYLANE_CHAIN_KILLS says how
many kills the long form has (35).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
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
from keylane.kafka.open_transactions import TransactionsClient
from keylane.wire import codes
from kit.committed import committed_values
from kit.processes import of_session, parent, words
from kit.sink_kills import APACHE, EMBEDDED, place
from kit.stages import PATIENCE_S, Stages, kill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLE = Path(__file__).parents[2] / "examples" / "exactly_once_chain.py"
STAGES = ("produce", "score", "price", "book")
GROUPS = {"pricing": "orders.scored", "booking": "orders.priced"}
TABLES = ("scored", "booked")
ORDERED = 5_000
"""Ten batches of Spark, so that it is in one when a signal comes."""
STEP = 400
"""Orders that come before each kill: some transactions of the producer."""
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
        self.stages.start(stage, *self.command(self.orders), stage)

    def command(self, orders: int) -> list[str]:
        """Of all stages."""
        options = {"records": orders, "bootstrap": self.servers, "database": self.database, "checkpoint": "check"}
        return [sys.executable, str(self._program), *(f"--{name}={value}" for name, value in options.items())]

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

    def is_database_in_use(self) -> bool:
        """Whether others are connected to PostgreSQL, or hold a lock of the SQLite file."""
        if "://" in self.database:
            others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
            return self.select(f"SELECT count(*) FROM pg_stat_activity WHERE {others}") != [(0,)]
        with closing(sqlite3.connect(self.database, timeout=0, isolation_level=None)) as database:
            try:
                database.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                return True
        return False

    def rows(self, table: str) -> int:
        return int(self.select(f"SELECT count(*) FROM {table}")[0][0])

    def length(self, topic: str) -> int:
        """Of its logs, with what was aborted."""
        names = [(topic, partition) for partition in range(self._admin.topics()[topic])]
        return sum(end or 0 for end in self._admin.log_ends(names, read_committed=False).values())

    def finish(self) -> None:
        """However long it takes, as long as something is done."""
        while not self.is_idle():
            before = self._done()
            self.until(lambda seen=before: self._done() != seen or self.is_idle(), "it goes on")  # type: ignore[misc]

    def _done(self) -> list[int]:
        return [self.rows("scored"), self.length("orders.scored"), self.length("orders.priced"), self.rows("booked")]

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
        ends = self._admin.log_ends(
            [(topic, partition) for partition in range(self._admin.topics()[topic])], read_committed=False
        )
        committed = self._admin.committed_offsets(group)
        return sum((end or 0) - (committed[name].offset if name in committed else 0) for name, end in ends.items())

    def faults(self) -> list[str]:
        """Each place where an order is missing, or is more than once."""
        places: dict[str, Callable[[], Counter[int]]] = {
            "topic orders": lambda: self.seen_in_topic("orders"),
            "table scored": lambda: self.seen("scored"),
            "topic orders.scored": lambda: self.seen_in_topic("orders.scored"),
            "topic orders.priced": lambda: self.seen_in_topic("orders.priced"),
            "table booked": lambda: self.seen("booked"),
        }
        expected = Counter(range(self.orders))
        found = {place: look() for place, look in places.items()}
        return [
            f"{place}: {(expected - seen).total()} missing, {(seen - expected).total()} too many"
            for place, seen in found.items()
            if seen != expected
        ]

    def seen_in_topic(self, topic: str) -> Counter[int]:
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
    chain.finish()
    return done


VICTIMS = ("produce", "Spark", "price", "worker", "book", "broker", "driver")


@pytest.fixture
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
@pytest.mark.parametrize(
    ("where", "database"), [(EMBEDDED, "sqlite"), (EMBEDDED, "postgres"), (APACHE, "sqlite")], indirect=["database"]
)
def test_a_storm(
    java: None, tmp_path: Path, where: str, database: str, record_property: Callable[[str, object], None]
) -> None:
    with place(where, tmp_path) as brokers, chain_on(tmp_path, brokers.servers, database) as chain:
        record_property("kills", storm(chain, chosen(), lambda: brokers.kill(random.Random(SEED))()))
        record_property("failures", chain.stages.failed)
        assert chain.faults() == []


@pytest.mark.cluster
@pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
def test_sigterm_ends_every_stage_and_leaves_nothing_open(java: None, tmp_path: Path, database: str) -> None:
    """In the middle of the work; what is started again goes on."""
    with BrokerProcess(tmp_path / "data") as broker, chain_on(tmp_path, broker.bootstrap, database) as chain:
        program = subprocess.Popen(
            chain.command(ORDERED), cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            chain.until(lambda: chain.rows("booked") > 0, "orders are booked")
            program.send_signal(signal.SIGTERM)
            told, _ = program.communicate(timeout=PATIENCE_S)
            left = of_session(program.pid)
        finally:
            kill(of_session(program.pid))
        assert program.returncode == 130, told
        found = re.fullmatch(
            rf"stopped: (\d+) of {ORDERED} orders are booked; started again, it .*", told.splitlines()[-1]
        )
        assert found is not None, told
        assert {pid: words(pid) for pid in left} == {}
        assert int(found[1]) == chain.rows("booked") < ORDERED
        with TransactionsClient({"bootstrap.servers": broker.bootstrap}) as client:
            assert client.open_ids("", "orders") == (codes.NONE, [])
        chain.until(lambda: not chain.is_database_in_use(), "nobody is in the database")
        chain.order(max(chain.seen_in_topic("orders")) + 1)
        for stage in STAGES[1:]:
            chain.start(stage)
        chain.finish()
        assert chain.faults() == []


def chosen() -> list[str]:
    """Each as often, in an order of the seed's."""
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(KILLS)]
    random.Random(SEED).shuffle(victims)
    return victims


TIME = "lambda _: str(__import__('time').time_ns())"
UNKNOWN = f"    once = kl.ExactlyOnce(args.database, identity={TIME})\n"
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
        f"delivery=kl.ExactlyOnce(args.database, identity={TIME}), {RARELY} offset_reset"
    ),
    'topics=["orders.scored"]': 'topics=["orders"]',
}
"""The first stage forgets where it was, the third one is at least once, the fourth one knows no record again. The third
one reads what the first one sends, without Spark."""


@pytest.mark.full
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
    for one in ("topic orders.priced", "table booked"):
        assert faults.pop(one).startswith("0 missing, ")
    assert faults == {}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        (', "delivery": "exactly_once", "sinkName": "scored"', "", "topic orders.scored"),
        ("    once = kl.ExactlyOnce(args.database)\n", UNKNOWN, "table scored"),
    ],
    ids=["its sink", "its function"],
)
def test_a_query_with_weaker_guarantees_is_noticed(java: None, tmp_path: Path, old: str, new: str, place: str) -> None:
    with (
        BrokerProcess(tmp_path / "data") as broker,
        chain_on(tmp_path, broker.bootstrap, str(tmp_path / "orders.db"), {old: new}) as chain,
    ):
        chain.start("score")
        chain.order(300)
        chain.until(lambda: len(chain.seen("scored")) == 300 and chain.is_spark_idle(), "all is done")
        chain.until(lambda: not chain.stages.is_running("produce"), "all is sent")
        chain.stages.close()
        last = max((tmp_path / "check" / "commits").glob("[0-9]*"), key=lambda one: int(one.name))
        for file in (last, last.with_name(f".{last.name}.crc")):  # as after a crash between the sink and Spark's log
            file.unlink(missing_ok=True)
        chain.start("score")
        chain.until(chain.is_spark_idle, "the batch is done again")
        faults = chain.faults()
    assert [one for one in faults if one.startswith(f"{place}: 0 missing")] != []
