"""Cells of the crash matrix on lanes: what is expected of them, and how a `Plan` runs there.

The handler travels to the lane, whose Python worker kills itself at the plan's point; the query starts the lane again
by itself, so that one query goes through all of a plan's kills.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keylane as kl
from kit.crash_matrix import MAYBE, NONE, ONE, PERHAPS_ONE, POINTS, SOME, Row
from kit.crash_points import Sent, pipeline_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keylane.spark import LaneQuery
    from kit.crash_points import Plan

AVAILABLE_NOW = {"availableNow": True}
WAIT_S = 180.0
"""For what takes two seconds on an idle machine."""

BROKER, REBALANCE = "broker killed and restarted", "rebalance in the middle"
EXECUTOR, NODE = "executor killed", "node killed"
TROUBLES = (EXECUTOR, NODE, BROKER, REBALANCE)

EXPECTED: dict[str, Row] = {
    "at_most_once": {
        "before the handler": (SOME, NONE),
        "inside it": (SOME, NONE),
        "after its effect": (MAYBE, NONE),
        "after the commit request": (SOME, NONE),
        "after its acknowledgement": (SOME, NONE),
        EXECUTOR: (NONE, NONE),
        NODE: (MAYBE, NONE),
        BROKER: (MAYBE, NONE),
        REBALANCE: (NONE, NONE),
    },
    "at_least_once": {
        "before the handler": (NONE, MAYBE),
        "inside it": (NONE, MAYBE),
        "after its effect": (NONE, SOME),
        "after the commit request": (NONE, MAYBE),
        "after its acknowledgement": (NONE, MAYBE),
        EXECUTOR: (NONE, NONE),
        NODE: (NONE, MAYBE),
        BROKER: (NONE, MAYBE),
        REBALANCE: (NONE, NONE),
    },
    "almost_once": {
        "before the handler": (NONE, NONE),
        "inside it": (NONE, NONE),
        "after its effect": (NONE, ONE),
        "after the commit request": (NONE, NONE),
        "after its acknowledgement": (NONE, NONE),
        EXECUTOR: (NONE, NONE),
        NODE: (NONE, PERHAPS_ONE),
        BROKER: (NONE, MAYBE),
        REBALANCE: (NONE, NONE),
    },
    "transactional": dict.fromkeys([*POINTS.values(), *TROUBLES], (NONE, NONE)),
    "exactly_once": dict.fromkeys([*POINTS.values(), *TROUBLES], (NONE, NONE)),
}
"""Of each guarantee, by what goes wrong: records lost, and effects done twice. Lanes drain when their executor dies."""


def start(spark: SparkSession, plan: Plan, lanes: int = 1, **options: Any) -> LaneQuery:
    """On lanes that may have every slot, and that start again after a quarter of a second however often they die."""
    again = {"max_lane_failures": 1_000, "lane_failure_window_ms": 1}
    pipeline = pipeline_of(plan, Sent(plan))
    return kl.spark.start(pipeline, spark, lanes=lanes, allow_all_slots=True, **(again | options))


def shares(query: LaneQuery) -> list[int]:
    """How many partitions each running lane has."""
    return [len(lane.partitions) for lane in query.lanes if lane.state == "running"]


def finish(query: LaneQuery, what: str) -> None:
    """Wait for its end."""
    if not query.awaitTermination(WAIT_S):
        seen = f"{query.snapshot()}, lanes {query.lanes}"
        query.stop()
        raise AssertionError(f"{what} does not end: {seen}")
