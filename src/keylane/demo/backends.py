"""Where the demo's pipeline runs: in this process, or on Spark lanes. Both drain and commit when asked to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from keylane.telling import logger_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keylane.demo.stop import StopRequest
    from keylane.pipeline import Pipeline

logger = logger_of(__name__)

WAIT_S = 0.25
"""Between two looks for a stop request while lanes run."""


class Backend(Protocol):
    """Runs a pipeline until what was in its topics at the start is done, or until a stop is requested."""

    def run(self, pipeline: Pipeline, stop: StopRequest) -> None: ...


class InProcess:
    """One `ParallelConsumer` in this process."""

    def run(self, pipeline: Pipeline, stop: StopRequest) -> None:
        from keylane.parallel_consumer import ParallelConsumer

        with ParallelConsumer(pipeline, ending_offsets="latest") as consumer, stop.calling(consumer.stop):
            consumer.run()


class OnLanes:
    """Lanes of a Spark session."""

    def __init__(self, spark: SparkSession, lanes: int) -> None:
        self._spark = spark
        self._lanes = lanes

    def run(self, pipeline: Pipeline, stop: StopRequest) -> None:
        import keylane.spark

        query = keylane.spark.start(pipeline, self._spark, lanes=self._lanes, trigger={"availableNow": True})
        try:
            while not query.awaitTermination(WAIT_S):
                if stop.requested:
                    query.stop()
        finally:
            query.stop()


def end_session(spark: SparkSession) -> None:
    """Stop a session of ours; one whose JVM is gone already (somebody ended the whole process group) has stopped."""
    from py4j.protocol import Py4JError

    try:
        spark.stop()
    except (Py4JError, OSError) as error:
        logger.info("Spark had ended before it was stopped: %r", error)
