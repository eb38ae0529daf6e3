"""The crash matrix on lanes: each guarantee against each point at which a lane's Python worker can end, and the rest.

Cells, points and judge are those of one process (`kit.crash_matrix`, `integration/test_delivery_matrix.py`); here the
handler travels to a lane, its process kills itself there, and the query starts the lane again by itself. What takes a
cluster, the death of executors and nodes, is in `test_lanes_deaths.py`.
"""

from __future__ import annotations

import re
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.crash_matrix import (
    BROKERS,
    OPTIONS,
    PAGE,
    PARTITIONS,
    POINTS,
    RECORDS,
    Cell,
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
from kit.lane_cells import AVAILABLE_NOW, BROKER, EXPECTED, REBALANCE, TROUBLES, finish, shares, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from peers.postgres import PostgresServer
    from pyspark.sql import SparkSession

    from keylane.spark import LaneQuery
    from kit.engine_points import Point

SLOTS = 4
"""Of the tests' session."""
KILLS = 110
"""Of each guarantee, in the soak."""
QUICK = ("at_least_once", "exactly_once")
"""The guarantees that `make test` kills lanes of; `make test-full` has all five."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer | None]:
    with database_server() as made:
        yield made


@pytest.fixture(scope="module", params=BROKERS)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with started(request.param, tmp_path_factory.mktemp("matrix")) as made:
        yield made.bootstrap


def test_the_page_shows_what_is_expected() -> None:
    assert table(EXPECTED, [*POINTS.values(), *TROUBLES]) in PAGE.read_text()


@pytest.mark.parametrize("guarantee", OPTIONS)
def test_the_page_names_the_test_behind_each_yes(guarantee: str) -> None:
    name = "ExactlyOnce(store)" if guarantee == "exactly_once" else f'"{guarantee}"'
    test = f"spark/{Path(__file__).name}::{test_a_kill_at_each_point.__name__}[keylane-{guarantee}]"
    assert re.search(rf"\n\| `{re.escape(name)}` \| yes \| yes.*: `{re.escape(test)}` \| ", PAGE.read_text())


def crash(spark: SparkSession, cell: Cell, kill: tuple[Point, int]) -> None:
    """One lane, killed at this point; then to the end."""
    query = start(spark, cell.prepare([kill], kafka=cell.stage.kafka), trigger=AVAILABLE_NOW)
    finish(query, cell.stage.topic)
    assert cell.kills() == 1, f"{cell.stage.topic}: it was not killed"
    assert query.lanes[0].launches > 1, "the query has started it again"
    assert cell.stage.all_is_committed()


@pytest.mark.parametrize(
    "guarantee", [one if one in QUICK else pytest.param(one, marks=pytest.mark.full) for one in OPTIONS]
)
def test_a_kill_at_each_point(
    spark: SparkSession, servers: str, tmp_path: Path, server: PostgresServer | None, guarantee: str
) -> None:
    cells: dict[tuple[str, str], Cell] = {}
    jobs: list[Callable[[], None]] = []
    for row in rows(server):
        for point, name in POINTS.items() if row[0] == guarantee else ():
            cell = cell_of(row, name, servers, tmp_path, server)
            cells[cell.stage.topic, name] = cell
            after = 2 if point in ("requested", "acknowledged") else RECORDS // 3
            jobs.append(partial(crash, spark, cell, (point, after)))
    at_once(jobs, SLOTS)
    assert wrong_ones(cells, EXPECTED) == []
    assert too_mild(cells, EXPECTED) == []


def some_at_once(server: PostgresServer | None, lanes: int) -> Iterator[list[tuple[str, str | None]]]:
    """As many rows as there are slots for, with so many lanes each."""
    left = rows(server)
    size = SLOTS // lanes
    while left:
        yield left[:size]
        left = left[size:]


@pytest.mark.full
@pytest.mark.parametrize("kind", BROKERS)
def test_the_broker_is_killed_and_restarted(
    spark: SparkSession, tmp_path: Path, server: PostgresServer | None, kind: str
) -> None:
    with started(kind, tmp_path) as own:
        cells: dict[tuple[str, str], Cell] = {}
        for some in some_at_once(server, 1):
            ours = [cell_of(row, "restart", own.bootstrap, tmp_path, server) for row in some]
            cells |= {(cell.stage.topic, BROKER): cell for cell in ours}
            plans = [cell.prepare(kafka=cell.stage.kafka, work_ms=20) for cell in ours]
            queries = [start(spark, plan, trigger=AVAILABLE_NOW) for plan in plans]
            for cell in ours:
                cell.wait_until_begun()
            own.kill()
            own.start()
            for cell, query in zip(ours, queries, strict=True):
                finish(query, cell.stage.topic)
                assert query.lanes[0].launches == 1, "it rides it out"
        assert wrong_ones(cells, EXPECTED) == []


@pytest.mark.full
def test_a_rebalance_in_the_middle(
    spark: SparkSession, servers: str, tmp_path: Path, server: PostgresServer | None
) -> None:
    """A second lane comes, and goes, while records come."""
    cells: dict[tuple[str, str], Cell] = {}

    def come_and_go(cell: Cell) -> None:
        query = start(spark, cell.prepare(kafka=cell.stage.kafka, work_ms=5), members="dynamic")
        try:
            cell.wait_until_begun()
            for lanes in (2, 1):
                query.set_lanes(lanes)
                add_until_shared(cell, query, lanes)
            deadline = time.monotonic() + 60
            while not cell.stage.all_is_committed():
                assert time.monotonic() < deadline, query.lanes
                time.sleep(0.05)
        finally:
            query.stop()
        assert query.exception() is None

    for some in some_at_once(server, 2):
        ours = [cell_of(row, "rebalance", servers, tmp_path, server) for row in some]
        cells |= {(cell.stage.topic, REBALANCE): cell for cell in ours}
        at_once([partial(come_and_go, cell) for cell in ours])
    assert wrong_ones(cells, EXPECTED) == []


def add_until_shared(cell: Cell, query: LaneQuery, lanes: int) -> None:
    """Records, until so many lanes share the partitions."""
    deadline = time.monotonic() + 60
    while shares(query) != [PARTITIONS // lanes] * lanes:
        assert time.monotonic() < deadline, query.lanes
        cell.add(10)
        time.sleep(0.05)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(6))
def test_a_hundred_kills(
    spark: SparkSession,
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
    cell.records = 16_000
    plan = cell.prepare(drawn(number, KILLS), kafka=cell.stage.kafka, work_ms=2)
    query = start(spark, plan, lanes=2, trigger=AVAILABLE_NOW)
    assert query.awaitTermination(1_800), f"{cell.kills()} kills, {query.lanes}"
    assert sum(lane.launches for lane in query.lanes) >= KILLS + 2
    check_soak(cell, plan, record_property)
