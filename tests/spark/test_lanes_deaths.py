"""The crash matrix on lanes of a standalone cluster of real processes: an executor dies, a node dies.

All guarantees run at once, two lanes each: the first lanes are where the kill comes, the second ones on another node.
What a Python worker's death comes to at each point is in `test_lanes_matrix.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import pytest

import keylane as kl
from kit.cluster import StandaloneCluster
from kit.crash_matrix import PARTITIONS, cell_of, database_server, rows, started, wrong_ones
from kit.lane_cells import EXECUTOR, EXPECTED, NODE, WAIT_S, shares, start
from kit.processes import is_alive, of_session, parent
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from peers.postgres import PostgresServer
    from pyspark.sql import SparkSession

    from keylane.spark import LaneQuery

CORES = 5
"""Of each node: one lane of each guarantee fills it."""
RECORDS = 600


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer | None]:
    with database_server() as made:
        yield made


@pytest.fixture
def cluster(java: None, tmp_path: Path) -> Iterator[StandaloneCluster]:
    """Of one node; another one comes."""
    with StandaloneCluster(tmp_path / "cluster", workers=1, cores=CORES) as made:
        yield made


@pytest.fixture
def session(jvm: None, cluster: StandaloneCluster) -> Iterator[SparkSession]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.executor.cores": CORES,
        "spark.cores.max": 3 * CORES,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    made = kl.spark.session(cluster.url, "keylane cluster tests", **settings)
    yield made
    made.stop()


@pytest.mark.parametrize(
    "kind", [pytest.param("keylane", marks=pytest.mark.cluster), pytest.param("apache", marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("victim", [EXECUTOR, NODE])
def test_what_a_lane_runs_on_is_killed(
    session: SparkSession,
    cluster: StandaloneCluster,
    tmp_path: Path,
    server: PostgresServer | None,
    kind: str,
    victim: str,
) -> None:
    with started(kind, tmp_path) as broker:
        chosen = [row for row in rows(server) if "sqlite" not in row]  # which a cluster's nodes could not share
        cells = {(row[0], victim): cell_of(row, victim, broker.bootstrap, tmp_path, server) for row in chosen}
        ours = list(cells.values())
        for cell in ours:
            cell.records = 0
        plans = [cell.prepare(kafka=cell.stage.kafka, work_ms=20) for cell in ours]
        queries = [start(session, plan) for plan in plans]
        until(lambda: all(shares(query) == [PARTITIONS] for query in queries), "lanes run", WAIT_S)
        cluster.add_worker()
        for query in queries:
            query.set_lanes(2)
        until(lambda: all(shares(query) == [1, 1] for query in queries), "lanes share", WAIT_S)
        for cell in ours:
            cell.add(RECORDS)
        for cell in ours:
            cell.wait_until_begun()
        killed = kill(cluster, victim, queries)
        if victim == NODE:
            cluster.add_worker()  # in its place: the other one is full
        until(lambda: all(cell.stage.all_is_committed() for cell in ours), "all is committed", WAIT_S)
        until(lambda: all(query.lanes[0].failures for query in queries), "first lanes are started again", WAIT_S)
        for query in queries:
            query.stop()
            assert query.exception() is None
            assert query.lanes[1].failures == 0, "the others do not notice"
        until(lambda: not any(map(is_alive, killed)), "nothing of it is left")
        assert wrong_ones(cells, EXPECTED) == []


def kill(cluster: StandaloneCluster, victim: str, queries: list[LaneQuery]) -> set[int]:
    """What the first lane of each query runs on; the processes that are gone with it, or end by themselves."""
    pids = {lane.pid for query in queries for lane in query.lanes[:1] if lane.pid is not None}
    (executor,) = {parent(parent(pid)) for pid in pids}  # of the workers' daemon
    if victim == EXECUTOR:
        os.kill(executor, signal.SIGKILL)
        return {executor, *pids}
    (node,) = (one for one in cluster.workers if one.pid == parent(executor))
    processes = of_session(node.pid)
    assert pids < processes
    for how in (signal.SIGSTOP, signal.SIGKILL):  # at one moment, as when the power fails
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(pid, how)
    cluster.workers.remove(node)
    node.wait()
    return processes
