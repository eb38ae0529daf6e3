"""How a pipeline travels to its lanes (`keylane.flow.workers.cargo`): executors need the installed packages only."""

from __future__ import annotations

import pickle
import socket
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.flow.workers import cargo
from keylane.foreign_errors import line_of
from keylane.spark.lanes import LaneTask, run_lane
from keylane.spark.outcome import LaneFailure, LaneOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.pipeline import Pipeline
    from keylane.spark.lanes import MakeRunner


def pack(pipeline: Pipeline, make_runner: MakeRunner) -> bytes:
    """The cargo of every lane. Raises `UsageError` when something in the pipeline cannot travel."""
    return cargo.pack((pipeline, make_runner), "Spark's executors")


def lane_body(shipment: bytes, version: str) -> Callable[[Any], list[Any]]:
    """The function that Spark runs, for `shipment = pickle.dumps(task)`.

    It travels as code, not as a name, so that it can look before it trusts: it checks that the executor has the
    driver's version of keylane before it unpickles anything of keylane's.
    """

    def body(rows: Any) -> list[Any]:
        for _ in rows:  # an input left undrained would cost the worker its reuse
            pass
        try:
            from keylane.version import __version__
        except ImportError as error:
            return ["missing", repr(error)]
        if __version__ != version:
            return ["version", __version__]
        from keylane.spark.shipping import open_and_run

        return ["outcome", open_and_run(shipment)]

    return body


def arrow_body(shipment: bytes, version: str) -> Callable[[Any], Any]:
    """The same for `mapInArrow`: one row with one column, `result`, which is the list, pickled."""
    run = lane_body(shipment, version)

    def body(batches: Any) -> Any:
        import pickle

        import pyarrow as pa

        found = pa.array([pickle.dumps(run(batches))], pa.binary())
        yield pa.RecordBatch.from_arrays([found], ["result"])

    return body


def open_and_run(shipment: bytes) -> LaneOutcome:
    """The executor's side: runs the lane in the current Spark task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "a lane runs inside a Spark task"
    task = pickle.loads(shipment)  # from the driver, through Spark
    assert isinstance(task, LaneTask)
    try:
        pipeline, make_runner = pickle.loads(task.cargo)
    except Exception as error:  # by value, as every failure of a lane: a module that the executor lacks
        missing = UsageError(
            f"the pipeline does not load on {socket.gethostname()} ({line_of(error)}): "
            "install the packages that it uses on the executors, with the versions of the driver"
        )
        return LaneOutcome("failed", None, LaneFailure.of(missing))
    return run_lane(task, pipeline, make_runner, context.attemptNumber())
