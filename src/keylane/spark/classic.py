"""`ClassicSession`: what lanes need of a session in this process: jobs, task slots, addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.spark.checks import check_session
from keylane.spark.jobs import SparkLaneJobs
from keylane.spark.slots import Slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ClassicSession:
    """What `start` needs of a session."""

    def __init__(self, spark: SparkSession) -> None:
        """Raises `UsageError` for a session that cannot run lanes."""
        self._context = check_session(spark)
        self.master = self._context.master
        self.ui: str | None = self._context.uiWebUrl
        """Where Spark's own pages are; None without them."""

    def slots(self, *, allow_all: bool, task_cpus: float | None) -> Slots:
        """Raises `UsageError` for `task_cpus` that cannot be."""
        return Slots(self._context, allow_all, task_cpus)

    def jobs(self, run_id: str, group: str, task_cpus: float | None) -> SparkLaneJobs:
        """Of one query."""
        return SparkLaneJobs(self._context, run_id, group, task_cpus)

    def addresses(self) -> tuple[str, str]:
        """Where the driver listens for lanes, and under which host they reach it: Spark's own settings for its
        driver."""
        if (self.master or "").split("[")[0] == "local":
            return "127.0.0.1", "127.0.0.1"
        settings = dict(self._context.getConf().getAll())
        host = settings["spark.driver.host"]
        return settings.get("spark.driver.bindAddress", host), host
