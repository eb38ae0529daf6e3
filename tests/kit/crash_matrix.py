"""The crash matrix: each guarantee against each point at which a process can end, wherever it runs.

The idea: what is expected is stated first, as data, and docs/delivery.md shows it; a `Cell` then measures what was lost
and what was done twice, from outside: effects and input are read by another client library, from a file, or by SQL.
Its `Plan` runs in a process of its own (tests/integration) or on a lane (tests/spark).
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peers
import pytest
from peers.committed_reader import committed_records
from peers.postgres import PostgresServer, find_postgres

from keylane import Retries
from keylane.broker.process import BrokerProcess
from keylane.options import ExactlyOnce, Threads
from keylane.pipeline import Commit
from kit.crash_points import Plan, effects_in
from kit.stage import Stage, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kit.engine_points import Point

PAGE = Path(__file__).parents[2] / "docs" / "delivery.md"

POINTS: dict[Point, str] = {
    "dispatched": "before the handler",
    "inside": "inside it",
    "done": "after its effect",
    "requested": "after the commit request",
    "acknowledged": "after its acknowledgement",
}
"""Where a process is killed."""

NONE, ONE, PERHAPS_ONE, SOME, MAYBE = "0", "1", "0 or 1", "some", "0 or some"
"""Records: none; one; one or none; at least one, at most what was in flight or uncommitted; the same, or none."""

BROKERS = ["keylane", pytest.param("apache", marks=pytest.mark.soak)]

Row = dict[str, tuple[str, str]]
"""Of one guarantee, by what goes wrong: records lost, and effects done twice."""

OPTIONS: dict[str, dict[str, Any]] = {
    "at_most_once": {"delivery": "at_most_once"},
    "at_least_once": {"delivery": "at_least_once", "commit": Commit(every_records=10)},
    "almost_once": {"delivery": "almost_once", "max_concurrency": 1},
    "transactional": {"delivery": "transactional", "commit": Commit(every_records=10)},
    "exactly_once": {"commit": Commit(every_records=10)},
}
"""Of each guarantee's pipeline. In transactions the effects are the outputs that a reader of committed records sees."""

TOO_WEAK = [
    ("at_most_once", "inside it", "at_least_once"),
    ("at_least_once", "after its effect", "exactly_once"),
    ("almost_once", "after its effect", "transactional"),
]
"""A guarantee, what goes wrong, and a stronger guarantee that this is too little for."""

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
        records, self.records = self.records, 0
        self.add(records)
        if self.database is not None:
            self.query(f"DROP TABLE IF EXISTS {self.table}")  # of the same cell on another broker
            self.query(f"CREATE TABLE {self.table} (part integer, at integer)")

    def add(self, records: int) -> None:
        """So many more, of five keys."""
        ours = range(self.records, self.records + records)
        self.stage.fill((b"%d" % (n % 5), n % PARTITIONS) for n in ours)
        self.records += records

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
            **OPTIONS[self.guarantee],
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
            ends = self.stage.admin.log_ends(
                [(self.out, partition) for partition in range(PARTITIONS)], read_committed=False
            )
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
        every = {(one.partition, one.offset) for one in committed_records(self.stage.servers, self.stage.ends())}
        assert len(every) == self.records
        assert done.keys() <= every
        return len(every - done.keys()), sum(done.values()) - len(done)

    def identities_left(self) -> int:
        """Of records below the group's committed offset, which nobody can ask for again; samples of purges aside."""
        left = 0
        for (topic, partition), committed in self.stage.committed().items():
            below = f"scope LIKE '%/{self.stage.group}/{topic}/%' AND part = {partition} AND at < {committed.base}"
            purged = "LEFT JOIN keylane_purged USING (scope, part) WHERE at >= coalesce(below, 0)"
            left += self.query(f"SELECT count(*) FROM keylane_processed {purged} AND {below}")[0][0]
        return left

    def prepare(self, kills: Iterable[tuple[Point, int]] = (), **more: Any) -> Plan:
        """Fill it, and plan to be killed at these points."""
        self.fill()
        marks = self.folder / f"{self.stage.topic}.kills"
        marks.mkdir()
        return self.plan(kills=tuple(kills), marks=str(marks), **more)

    def kills(self) -> int:
        """How many of those that were planned were made."""
        return len(list((self.folder / f"{self.stage.topic}.kills").iterdir()))


def fits(count: int, expected: str, most: int) -> bool:
    least, highest = {NONE: (0, 0), ONE: (1, 1), PERHAPS_ONE: (0, 1), SOME: (1, most), MAYBE: (0, most)}[expected]
    return least <= count <= highest


def wrong_ones(cells: Mapping[tuple[str, str], Cell], expected: Mapping[str, Row]) -> list[str]:
    """Where what was measured is not what is expected; a cell is named by a text of its own, and by what went wrong."""
    wrong = []
    for (_, trouble), cell in cells.items():
        lost, twice = expected[cell.guarantee][trouble]
        measured, most = cell.measured(), cell.records - 1
        if not (fits(measured[0], lost, most) and fits(measured[1], twice, most)):
            wrong.append(f"{cell.stage.topic} × {trouble}: lost {measured[0]} ({lost}), twice {measured[1]} ({twice})")
        if cell.database is not None and (left := cell.identities_left()):
            wrong.append(f"{cell.stage.topic} × {trouble}: {left} identities of committed records are left")
    return wrong


def too_mild(cells: Mapping[tuple[str, str], Cell], expected: Mapping[str, Row]) -> list[str]:
    """Cells of a guarantee that would pass for a stronger one, though that promises more: how the judge could fail."""
    mild = []
    for (name, trouble), cell in cells.items():
        for weak, what, strong in TOO_WEAK:
            if (cell.guarantee, trouble) == (weak, what):
                judged = wrong_ones({(name, trouble): cell}, {weak: expected[strong]})
                mild += [] if judged else [f"{name} × {trouble}: right for {strong}"]
    return mild


def check_soak(cell: Cell, plan: Plan, record: Callable[[str, object], None]) -> None:
    """Record and judge what many kills came to."""
    lost, twice = cell.measured()
    figures = {"kills": cell.kills(), "lost": lost, "done twice": twice}
    for name, value in {"guarantee": cell.guarantee, "database": cell.database, **figures}.items():
        record(name, value)
    assert cell.kills() == len(plan.kills), "the log is too short"
    assert lost == 0 or cell.guarantee == "at_most_once"
    assert twice == 0 or cell.guarantee in ("at_least_once", "almost_once")
    assert cell.guarantee != "almost_once" or twice == sum(point == "done" for point, _ in plan.kills)
    assert cell.stage.all_is_committed()
    assert cell.database is None or cell.identities_left() == 0


def table(expected: Mapping[str, Row], troubles: Iterable[str]) -> str:
    """As docs/delivery.md has it; a dash where a guarantee has nothing to do with what goes wrong."""
    heads = ["`delivery=`", *troubles]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for guarantee, row in expected.items():
        cells = [" / ".join(row[trouble]) if trouble in row else "–" for trouble in heads[1:]]
        name = "ExactlyOnce(store)" if guarantee == "exactly_once" else f'"{guarantee}"'
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def drawn(seed: int, how_many: int) -> list[tuple[Point, int]]:
    """Kills at random points."""
    chance = random.Random(seed)
    kills: list[tuple[Point, int]] = []
    for _ in range(how_many):
        point = chance.choice(list(POINTS))
        kills.append((point, 3 if point in ("requested", "acknowledged") else chance.randint(1, 60)))
    return kills


def started(kind: str, folder: Path) -> BrokerProcess | peers.ApacheKafka:
    """Our broker, or Apache Kafka: to be entered."""
    if kind == "keylane":
        return BrokerProcess(folder / "data")
    if missing := peers.missing():
        pytest.skip(missing)
    return peers.ApacheKafka()


@contextmanager
def database_server() -> Iterator[PostgresServer | None]:
    """PostgreSQL, where it is installed."""
    if find_postgres() is None:
        yield None
        return
    with PostgresServer() as server:
        yield server


def rows(server: PostgresServer | None) -> list[tuple[str, str | None]]:
    """Guarantees, exactly once on each database that is there."""
    databases = [one for one in DATABASES if one == "sqlite" or server is not None]
    plain: list[tuple[str, str | None]] = [(one, None) for one in OPTIONS if one != "exactly_once"]
    return [*plain, *(("exactly_once", database) for database in databases)]


def at_once(jobs: list[Callable[[], None]], how_many: int = 25) -> None:
    with ThreadPoolExecutor(how_many) as pool:
        for done in [pool.submit(job) for job in jobs]:
            done.result()


def cell_of(row: tuple[str, str | None], name: str, servers: str, folder: Path, server: PostgresServer | None) -> Cell:
    guarantee, database = row
    stage = Stage(servers, f"{guarantee}-{database or 'file'}-{name}".replace(" ", "-"))
    return Cell(guarantee, database, stage, folder, server if database == "postgres" else None)
