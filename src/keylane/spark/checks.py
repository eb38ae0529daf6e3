"""What must hold before lanes start, each refused in one line that names the thing, the figures and the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.options import ExactlyOnce
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark import SparkContext
    from pyspark.sql import SparkSession


logger = logger_of(__name__)

SPECULATION = ("spark.speculation", "spark.speculation.task.duration.threshold")
IDLE_TIMEOUT = ("spark.sql.execution.pyspark.udf.idleTimeoutSeconds", "spark.python.worker.idleTimeoutSeconds")
KILL_WHEN_IDLE = ("spark.sql.execution.pyspark.udf.killOnIdleTimeout", "spark.python.worker.killOnIdleTimeout")
"""For Python workers of queries, and, where that is not set, for all."""
LOOKED_AT = (*SPECULATION, *IDLE_TIMEOUT, *KILL_WHEN_IDLE)
"""The settings that `check_settings` looks at."""


def check_session(spark: SparkSession) -> SparkContext:
    """The session's context. Refuses a stopped session, and speculation that would run a lane twice."""
    context = spark.sparkContext
    if context._jsc is None:  # noqa: SLF001 - None after stop(); there is no public way to ask
        raise UsageError("the Spark session is stopped: start a new one")
    ours = {name: value for name, value in context.getConf().getAll() if not name.startswith("spark.sql.")}
    check_settings(ours)  # here lanes are no queries
    if str(context._jsc.sc().getSchedulingMode()) != "FAIR":  # noqa: SLF001
        logger.info(
            "spark.scheduler.mode is FIFO: lanes start first whenever slots are short; FAIR (set before the session "
            "starts, as keylane.spark.session does) shares them with your other jobs"
        )
    return context


def check_settings(settings: Mapping[str, str]) -> None:
    """Raises `UsageError` for Spark settings (`LOOKED_AT` of them) under which lanes do not live."""
    threshold = settings.get("spark.speculation.task.duration.threshold")
    if threshold is not None and _is_true(settings, "spark.speculation"):
        raise UsageError(
            f"spark.speculation.task.duration.threshold={threshold} makes Spark start each lane twice, since lanes run "
            "long: leave it out, or set spark.speculation=false"
        )
    idle = next((settings[name] for name in IDLE_TIMEOUT if name in settings), "0").strip("s")
    kills = next((name for name in KILL_WHEN_IDLE if name in settings), None)
    if idle != "0" and kills is not None and _is_true(settings, kills):
        raise UsageError(
            f"{kills}=true kills lanes after {idle} s, since they send Spark nothing until they end: set it to false"
        )


def _is_true(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "false").lower() == "true"


def check_trigger(trigger: Mapping[str, Any] | None) -> bool:
    """Whether the query ends when what is there now is done. None is continuous."""
    if trigger is None:
        return False
    if dict(trigger) == {"availableNow": True}:
        return True
    raise UsageError(
        f"trigger={trigger!r}: give {{'availableNow': True}} to end when what is there now is done, or leave it out "
        "to run until stop()"
    )


def check_store(delivery: object, master: str | None, who: str) -> None:
    """Refuses a SQLite file for lanes, or tasks, that may be on several machines."""
    if not isinstance(delivery, ExactlyOnce) or master is None or master.startswith("local[") or master == "local":
        return
    store = delivery.store
    if type(store).__name__ == "SqliteStore" or (isinstance(store, str) and "://" not in store):
        raise UsageError(
            f"store={store!r}: {who} on the cluster {master} may be on several machines, which cannot share a SQLite "
            "file: give a postgresql:// address"
        )
