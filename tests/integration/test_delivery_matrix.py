"""The crash matrix: each guarantee against each point at which a process can end, and what else can go wrong.

The idea: what is expected is stated first, as data; a cell then measures what was lost and what was done twice, from
outside. docs/delivery.md shows the same table, and a test compares the two.
"""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import peers
import pytest
from peers.committed_reader import committed_records
from peers.postgres import PostgresServer, find_postgres

from keylane import Retries
from keylane.broker.process import BrokerProcess
from keylane.options import ExactlyOnce, Threads
from keylane.pipeline import Commit
from kit.crash_points import Plan, Worker, effects_in
from kit.engine_points import Point
from kit.stage import Stage, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


PAGE = Path(__file__).parents[2] / "docs" / "delivery.md"

POINTS: dict[Point, str] = {
    "dispatched": "before the handler",
    "inside": "inside it",
    "done": "after its effect",
    "requested": "after the commit request",
    "acknowledged": "after its acknowledgement",
}
"""Where a process is killed."""

TROUBLES = ("broker killed and restarted", "rebalance in the middle")
DATABASE_TROUBLES = ("database killed and restarted", "database slow")

NONE, ONE, SOME, MAYBE = "0", "1", "some", "0 or some"
"""Records: none; exactly one; at least one, at most what was in flight or uncommitted; the same, or none."""

GUARANTEES: dict[str, tuple[dict[str, Any], dict[str, tuple[str, str]]]] = {
    "at_most_once": (
        {"delivery": "at_most_once"},
        {
            "before the handler": (SOME, NONE),
            "inside it": (SOME, NONE),
            "after its effect": (MAYBE, NONE),
            "after the commit request": (SOME, NONE),
            "after its acknowledgement": (SOME, NONE),
            "broker killed and restarted": (MAYBE, NONE),
            "rebalance in the middle": (NONE, NONE),
        },
    ),
    "at_least_once": (
        {"delivery": "at_least_once", "commit": Commit(every_records=10)},
        {
            "before the handler": (NONE, MAYBE),
            "inside it": (NONE, MAYBE),
            "after its effect": (NONE, SOME),
            "after the commit request": (NONE, MAYBE),
            "after its acknowledgement": (NONE, MAYBE),
            "broker killed and restarted": (NONE, MAYBE),
            "rebalance in the middle": (NONE, NONE),
        },
    ),
    "almost_once": (
        {"delivery": "almost_once", "max_concurrency": 1},
        {
            "before the handler": (NONE, NONE),
            "inside it": (NONE, NONE),
            "after its effect": (NONE, ONE),
            "after the commit request": (NONE, NONE),
            "after its acknowledgement": (NONE, NONE),
            "broker killed and restarted": (NONE, MAYBE),
            "rebalance in the middle": (NONE, NONE),
        },
    ),
    "transactional": (
        {"delivery": "transactional", "commit": Commit(every_records=10)},
        dict.fromkeys([*POINTS.values(), *TROUBLES], (NONE, NONE)),
    ),
    "exactly_once": (
        {"commit": Commit(every_records=10)},
        dict.fromkeys([*POINTS.values(), *TROUBLES, *DATABASE_TROUBLES], (NONE, NONE)),
    ),
}
"""Options, and of each trouble what is expected: (lost, done twice). In transactions the effects are the outputs that a
reader of committed records sees, in another client library."""

RECORDS = 60
PARTITIONS = 2
DATABASES = ("sqlite", "postgres")


@dataclass
class Cell:
    """One guarantee with a topic, a group and effects of its own."""

    guarantee: str
    database: str | None
    stage: Stage
    folder: Path
    server: PostgresServer | None
    records: int = RECORDS

    def fill(self) -> None:
        """Make topic, records and what effects go to."""
        self.stage.create(PARTITIONS)
        if self.is_transactional:
            self.stage.create(PARTITIONS, self.out)
        self.stage.fill((b"%d" % (n % 5), n % PARTITIONS) for n in range(self.records))
        if self.database is not None:
            self.query(f"DROP TABLE IF EXISTS {self.table}")  # of the same cell on another broker
            self.query(f"CREATE TABLE {self.table} (part integer, at integer)")

    @property
    def is_transactional(self) -> bool:
        return self.guarantee == "transactional"

    @property
    def out(self) -> str:
        return f"out-{self.stage.topic}"

    @property
    def table(self) -> str:
        return "effects_" + re.sub(r"\W", "_", self.stage.topic)

    @property
    def store(self) -> str:
        return str(self.folder / f"{self.stage.topic}.db") if self.server is None else self.server.conninfo

    def query(self, sql: str) -> list[Any]:
        if self.server is None:
            with sqlite3.connect(self.store) as connection:
                return connection.execute(sql).fetchall()
        import psycopg

        with psycopg.connect(self.store) as connection:
            found = connection.execute(sql)
            return found.fetchall() if found.description else []

    def plan(self, **more: Any) -> Plan:
        # Handlers that take no time may all be through before the engine hears of the first: not all are polled then.
        options: dict[str, Any] = {
            "workers": Threads(2),
            "max_buffered_records": RECORDS // 2,
            **GUARANTEES[self.guarantee][0],
        }
        if self.database is not None:
            options |= {
                "delivery": ExactlyOnce(self.store),
                "retries": Retries(max_attempts=None, delay_ms=50, max_delay_ms=200),
            }
        effects = self.table if self.database else str(self.folder / f"{self.stage.topic}.effects")
        effects = self.out if self.is_transactional else effects
        kafka = self.stage.kafka | {"group.instance.id": "one"}  # a restart need not wait for its session to end
        return replace(Plan(kafka, self.stage.topic, effects, options), **more)

    def effects(self) -> Counter[tuple[int, int]]:
        if self.is_transactional:
            ends = self.stage.admin.log_ends([(self.out, partition) for partition in range(PARTITIONS)])
            seen = [one.value.split() for one in committed_records(self.stage.servers, ends)]
            return Counter((int(part), int(at)) for part, at in seen)
        if self.database is None:
            return effects_in(self.plan().effects)
        return Counter((part, at) for part, at in self.query(f"SELECT part, at FROM {self.table}"))

    def wait_until_begun(self) -> None:
        """Until it is in the middle."""

        def done() -> int:
            if self.is_transactional:  # what is open holds readers up
                return sum(one.base for one in self.stage.committed().values())
            return self.effects().total()

        until(lambda: done() >= 5, f"effects of {self.stage.topic}")

    def measured(self) -> tuple[int, int]:
        """Records lost, and effects too many."""
        done = self.effects()
        every = {(partition, offset) for (_, partition), end in self.stage.ends().items() for offset in range(end)}
        assert done.keys() <= every
        return len(every - done.keys()), sum(done.values()) - len(done)

    def identities_left(self) -> int:
        """Of records below the group's committed offset, which nobody can ask for again."""
        left = 0
        for (topic, partition), committed in self.stage.committed().items():
            below = f"scope LIKE '%/{self.stage.group}/{topic}/%' AND part = {partition} AND at < {committed.base}"
            left += self.query(f"SELECT count(*) FROM keylane_processed WHERE {below}")[0][0]
        return left

    def crash(self, point: Point, after: int) -> None:
        """Be killed at this point, then run to the end."""
        self.fill()
        assert run(self.plan(point=point, after=after)) == -9, f"{self.stage.topic}: it was not killed"
        assert run(self.plan()) == 0
        assert self.stage.all_is_committed()


def run(plan: Plan) -> int:
    worker = Worker(plan)
    try:
        return worker.wait()
    finally:
        worker.end()


def fits(count: int, expected: str, most: int) -> bool:
    least, highest = {NONE: (0, 0), ONE: (1, 1), SOME: (1, most), MAYBE: (0, most)}[expected]
    return least <= count <= highest


def check(cells: dict[tuple[str, str], Cell], most: int = RECORDS - 1) -> None:
    """Compare what was measured with what is expected."""
    wrong = []
    for (_, trouble), cell in cells.items():
        lost, twice = GUARANTEES[cell.guarantee][1][trouble]
        measured = cell.measured()
        if not (fits(measured[0], lost, most) and fits(measured[1], twice, most)):
            wrong.append(f"{cell.stage.topic} × {trouble}: lost {measured[0]} ({lost}), twice {measured[1]} ({twice})")
        if cell.database is not None and (left := cell.identities_left()):
            wrong.append(f"{cell.stage.topic} × {trouble}: {left} identities of committed records are left")
    assert wrong == []


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    """The server that workers are forked from ends with this module."""
    yield
    for server in (forkserver._forkserver, resource_tracker._resource_tracker):
        server._stop()  # type: ignore[union-attr] # what CPython's own tests use


BROKERS = ["keylane", pytest.param("apache", marks=pytest.mark.soak)]


def started(kind: str, folder: Path) -> BrokerProcess | peers.ApacheKafka:
    """Our broker, or Apache Kafka: to be entered."""
    if kind == "keylane":
        return BrokerProcess(folder / "data")
    if missing := peers.missing():
        pytest.skip(missing)
    return peers.ApacheKafka()


@pytest.fixture(scope="module", params=BROKERS)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with started(request.param, tmp_path_factory.mktemp("matrix")) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer | None]:
    if find_postgres() is None:
        yield None
        return
    with PostgresServer() as server:
        yield server


def rows(server: PostgresServer | None) -> list[tuple[str, str | None]]:
    """Guarantees, exactly once on each database that is there."""
    databases = [one for one in DATABASES if one == "sqlite" or server is not None]
    plain: list[tuple[str, str | None]] = [(one, None) for one in GUARANTEES if one != "exactly_once"]
    return [*plain, *(("exactly_once", database) for database in databases)]


def at_once(jobs: list[Callable[[], None]], how_many: int = 25) -> None:
    with ThreadPoolExecutor(how_many) as pool:
        for done in [pool.submit(job) for job in jobs]:
            done.result()


def cell_of(row: tuple[str, str | None], name: str, servers: str, folder: Path, server: PostgresServer | None) -> Cell:
    guarantee, database = row
    stage = Stage(servers, f"{guarantee}-{database or 'file'}-{name}".replace(" ", "-"))
    return Cell(guarantee, database, stage, folder, server if database == "postgres" else None)


def test_the_page_shows_what_is_expected() -> None:
    heads = ["`delivery=`", *POINTS.values(), *TROUBLES, *DATABASE_TROUBLES]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for guarantee, (_, expected) in GUARANTEES.items():
        cells = [" / ".join(expected[trouble]) if trouble in expected else "–" for trouble in heads[1:]]
        name = "ExactlyOnce(store)" if guarantee == "exactly_once" else f'"{guarantee}"'
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    assert "\n".join(lines) in PAGE.read_text()
    assert list(POINTS) == list(get_args(Point))


def test_a_kill_at_each_point(servers: str, tmp_path: Path, server: PostgresServer | None) -> None:
    cells = {}
    jobs: list[Callable[[], None]] = []
    for row in rows(server):
        for point, name in POINTS.items():
            cell = cell_of(row, name, servers, tmp_path, server)
            cells[cell.stage.topic, name] = cell
            after = 2 if point in ("requested", "acknowledged") else RECORDS // 3
            jobs.append(partial(cell.crash, point, after))
    at_once(jobs)
    check(cells)


@pytest.mark.parametrize("kind", BROKERS)
def test_the_broker_is_killed_and_restarted(tmp_path: Path, server: PostgresServer | None, kind: str) -> None:
    with started(kind, tmp_path) as own:
        cells = {
            (row[0] + str(row[1]), TROUBLES[0]): cell_of(row, "restart", own.bootstrap, tmp_path, server)
            for row in rows(server)
        }
        at_once([cell.fill for cell in cells.values()])
        workers = [Worker(cell.plan(work_ms=20)) for cell in cells.values()]
        try:
            for cell in cells.values():
                cell.wait_until_begun()
            own.kill()
            own.start()
            assert [worker.wait() for worker in workers] == [0] * len(workers)
        finally:
            for worker in workers:
                worker.end()
        check(cells)


def test_a_rebalance_in_the_middle(servers: str, tmp_path: Path, server: PostgresServer | None) -> None:
    cells = {}
    for row in rows(server):
        cells[row[0] + str(row[1]), TROUBLES[1]] = cell_of(row, "rebalance", servers, tmp_path, server)

    def members(cell: Cell) -> None:
        cell.fill()
        plan = cell.plan(work_ms=20, kafka=cell.stage.kafka)
        first = Worker(plan)
        try:
            cell.wait_until_begun()
            second = Worker(plan)
            try:
                assert [first.wait(), second.wait()] == [0, 0]
            finally:
                second.end()
        finally:
            first.end()

    at_once([partial(members, cell) for cell in cells.values()])
    check(cells)


@pytest.mark.parametrize("database", DATABASES)
def test_members_that_are_killed_leave_no_identities(
    servers: str, tmp_path: Path, server: PostgresServer | None, database: str
) -> None:
    if database == "postgres" and server is None:
        pytest.skip("PostgreSQL is not installed (/usr/lib/postgresql)")
    cell = cell_of(("exactly_once", database), "left", servers, tmp_path, server)
    cell.records = 300
    cell.fill()
    plan = cell.plan(work_ms=5, kafka=cell.stage.kafka)
    forever = replace(plan, to_the_end=False)
    first, second = Worker(forever), Worker(forever)
    workers = [first, second]
    try:
        cell.wait_until_begun()
        first.end()  # its partition, if it has one, comes to the others
        workers.append(Worker(forever))
        until(cell.stage.all_is_committed, "all is committed")
        for worker in workers:
            worker.end()
        assert cell.identities_left() > 0, "what was killed has not purged its last commits"
        assert run(plan) == 0  # everything is committed: it may end before it is given a partition
    finally:
        for worker in workers:
            worker.end()
    assert cell.identities_left() == 0
    assert cell.measured() == (0, 0)


@pytest.mark.skipif(find_postgres() is None, reason="PostgreSQL is not installed (/usr/lib/postgresql)")
def test_a_database_that_refuses_or_is_slow(servers: str, tmp_path: Path) -> None:
    with PostgresServer() as own:
        row = ("exactly_once", "postgres")
        refused, slow = (cell_of(row, name, servers, tmp_path, own) for name in ("refused", "slow"))
        at_once([refused.fill, slow.fill])
        workers = [Worker(cell.plan(work_ms=20)) for cell in (refused, slow)]
        try:
            for cell in (refused, slow):
                cell.wait_until_begun()
            own.kill()
            own.start()
            import psycopg

            with psycopg.connect(own.conninfo) as connection:
                connection.execute(f"LOCK TABLE {slow.table}")
                until(lambda: refused.stage.all_is_committed(), "the other one goes on")
            assert [worker.wait() for worker in workers] == [0, 0]
        finally:
            for worker in workers:
                worker.end()
        check({("refused", DATABASE_TROUBLES[0]): refused, ("slow", DATABASE_TROUBLES[1]): slow})


@pytest.mark.soak
@pytest.mark.parametrize("number", range(6))
def test_a_hundred_kills(
    servers: str,
    tmp_path: Path,
    server: PostgresServer | None,
    number: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = rows(server)
    if number >= len(chosen):
        pytest.skip("PostgreSQL is not installed (/usr/lib/postgresql)")
    row = chosen[number]
    cell = cell_of(row, "soak", servers, tmp_path, server)
    cell.records = 9_000
    cell.fill()
    drawn = random.Random(number)
    kills = 0
    started = time.monotonic()
    while kills < 110:
        point = drawn.choice(list(POINTS))
        after = 3 if point in ("requested", "acknowledged") else drawn.randint(1, 60)
        code = run(cell.plan(point=point, after=after, work_ms=2))  # else the log is read before its third commit
        assert code == -9, "the log is too short"
        kills += 1
    assert run(cell.plan()) == 0
    lost, twice = cell.measured()
    with capsys.disabled():
        print(f"\n{row}: {kills} kills in {time.monotonic() - started:.0f} s, lost {lost}, done twice {twice}")  # noqa: T201
    assert lost == 0 or row[0] == "at_most_once"
    assert twice == 0 or row[0] in ("at_least_once", "almost_once")
    assert row[0] != "almost_once" or twice <= kills
    assert cell.stage.all_is_committed()
    assert cell.database is None or cell.identities_left() == 0
