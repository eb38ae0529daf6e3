"""The crash matrix: each guarantee against each point at which a process can end, and what else can go wrong.

The idea: what is expected is stated first, as data; a cell then measures what was lost and what was done twice, from
outside. docs/delivery.md shows the same table, and a test compares the two.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from multiprocessing import forkserver, resource_tracker
from typing import TYPE_CHECKING, get_args

import pytest
from peers.postgres import PostgresServer, find_postgres

from kit.crash_matrix import (
    BROKERS,
    DATABASES,
    MAYBE,
    NONE,
    ONE,
    PAGE,
    POINTS,
    RECORDS,
    SOME,
    Cell,
    Row,
    at_once,
    cell_of,
    check_soak,
    database_server,
    drawn,
    rows,
    started,
    table,
    too_mild,
    wrong_ones,
)
from kit.crash_points import Plan, Worker
from kit.engine_points import Point
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TROUBLES = ("broker killed and restarted", "rebalance in the middle")
KILLS = 110
"""Of each guarantee, in the soak."""
DATABASE_TROUBLES = ("database killed and restarted", "database slow")

EXPECTED: dict[str, Row] = {
    "at_most_once": {
        "before the handler": (SOME, NONE),
        "inside it": (SOME, NONE),
        "after its effect": (MAYBE, NONE),
        "after the commit request": (SOME, NONE),
        "after its acknowledgement": (SOME, NONE),
        "broker killed and restarted": (MAYBE, NONE),
        "rebalance in the middle": (NONE, NONE),
    },
    "at_least_once": {
        "before the handler": (NONE, MAYBE),
        "inside it": (NONE, MAYBE),
        "after its effect": (NONE, SOME),
        "after the commit request": (NONE, MAYBE),
        "after its acknowledgement": (NONE, MAYBE),
        "broker killed and restarted": (NONE, MAYBE),
        "rebalance in the middle": (NONE, NONE),
    },
    "almost_once": {
        "before the handler": (NONE, NONE),
        "inside it": (NONE, NONE),
        "after its effect": (NONE, ONE),
        "after the commit request": (NONE, NONE),
        "after its acknowledgement": (NONE, NONE),
        "broker killed and restarted": (NONE, MAYBE),
        "rebalance in the middle": (NONE, NONE),
    },
    "transactional": dict.fromkeys([*POINTS.values(), *TROUBLES], (NONE, NONE)),
    "exactly_once": dict.fromkeys([*POINTS.values(), *TROUBLES, *DATABASE_TROUBLES], (NONE, NONE)),
}
"""Of each guarantee, by what goes wrong: records lost, and effects done twice."""


def run(plan: Plan, wait_s: float = 60.0) -> int:
    worker = Worker(plan)
    try:
        return worker.wait(wait_s)
    finally:
        worker.end()


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    """The server that workers are forked from ends with this module."""
    yield
    for server in (forkserver._forkserver, resource_tracker._resource_tracker):
        server._stop()  # type: ignore[union-attr] # what CPython's own tests use


@pytest.fixture(scope="module", params=BROKERS)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with started(request.param, tmp_path_factory.mktemp("matrix")) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer | None]:
    with database_server() as made:
        yield made


def test_the_page_shows_what_is_expected() -> None:
    assert table(EXPECTED, [*POINTS.values(), *TROUBLES, *DATABASE_TROUBLES]) in PAGE.read_text()
    assert list(POINTS) == list(get_args(Point))


def crash(cell: Cell, point: Point, after: int) -> None:
    """Be killed at this point, then run to the end."""
    plan = cell.prepare([(point, after)])
    assert run(plan) == -9, f"{cell.stage.topic}: it was not killed"
    assert run(plan) == 0
    assert cell.stage.all_is_committed()


def test_a_kill_at_each_point(servers: str, tmp_path: Path, server: PostgresServer | None) -> None:
    cells = {}
    jobs: list[Callable[[], None]] = []
    for row in rows(server):
        for point, name in POINTS.items():
            cell = cell_of(row, name, servers, tmp_path, server)
            cells[cell.stage.topic, name] = cell
            after = 2 if point in ("requested", "acknowledged") else RECORDS // 3
            jobs.append(partial(crash, cell, point, after))
    at_once(jobs)
    assert wrong_ones(cells, EXPECTED) == []
    assert too_mild(cells, EXPECTED) == []


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
        assert wrong_ones(cells, EXPECTED) == []


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
    assert wrong_ones(cells, EXPECTED) == []


@pytest.mark.full
@pytest.mark.parametrize("database", DATABASES)
def test_members_that_are_killed_leave_no_identities(
    servers: str, tmp_path: Path, server: PostgresServer | None, database: str
) -> None:
    if database == "postgres" and server is None:
        pytest.skip("PostgreSQL is not installed (/usr/lib/postgresql)")
    name = "left" + servers.rpartition(":")[2]  # brokers of two runs share the database, and each knows its own
    cell = cell_of(("exactly_once", database), name, servers, tmp_path, server)
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
@pytest.mark.full
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
        assert (
            wrong_ones({("refused", DATABASE_TROUBLES[0]): refused, ("slow", DATABASE_TROUBLES[1]): slow}, EXPECTED)
            == []
        )


@pytest.mark.soak
@pytest.mark.parametrize("number", range(6))
def test_a_hundred_kills(
    servers: str,
    tmp_path: Path,
    server: PostgresServer | None,
    number: int,
    record_property: Callable[[str, object], None],
) -> None:
    chosen = rows(server)
    if number >= len(chosen):
        pytest.skip("PostgreSQL is not installed (/usr/lib/postgresql)")
    row = chosen[number]
    cell = cell_of(row, "soak", servers, tmp_path, server)
    cell.records = 9_000
    plan = replace(cell.prepare(drawn(number, KILLS)), work_ms=2)  # else the log is read before its third commit
    for _ in plan.kills:
        assert run(plan) == -9, "the log is too short"
    assert run(replace(plan, work_ms=0), 300.0) == 0  # thousands of records, of which almost once waits for each
    check_soak(cell, plan, record_property)
