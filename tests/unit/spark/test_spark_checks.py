"""What is refused before lanes start, on sessions that are only described."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from keylane import Pipeline
from keylane.errors import UsageError
from keylane.options import ExactlyOnce
from keylane.spark import slots as slots_module
from keylane.spark.checks import check_session, check_settings, check_store, check_trigger
from keylane.spark.slots import Slots


class Executors:
    def __init__(self, slots: list[int]) -> None:
        self._slots = slots

    def size(self) -> int:
        return len(self._slots)

    def apply(self, index: int) -> Executors:
        return Executors([self._slots[index]])

    def maxTasks(self) -> int:  # noqa: N802 - Spark's name
        return self._slots[0]

    def totalCores(self) -> int:  # noqa: N802
        return self._slots[0]


class Context:
    """The parts of a SparkContext that the checks read: settings, scheduling mode, and executors as they register."""

    def __init__(self, master: str = "local[4]", mode: str = "FAIR", slots: Any = ((4,),), **settings: str) -> None:
        self.master = master
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}
        self._mode = mode
        self._slots = [list(one) for one in slots]
        self._jsc: Any = self
        self.stopped = False

    def getConf(self) -> Context:  # noqa: N802
        return self

    def get(self, name: str, default: str) -> str:
        return self._settings.get(name, default)

    def getAll(self) -> list[tuple[str, str]]:  # noqa: N802
        return list(self._settings.items())

    def sc(self) -> Context:
        return self

    def getTimeAsSeconds(self, name: str, default: str) -> int:  # noqa: N802
        return int(self._settings.get(name, default).rstrip("s"))

    def getSchedulingMode(self) -> str:  # noqa: N802
        return self._mode

    def statusStore(self) -> Context:  # noqa: N802
        return self

    def executorList(self, active: bool) -> Executors:  # noqa: N802
        assert active
        return Executors(self._slots.pop(0) if len(self._slots) > 1 else self._slots[0])


class Session:
    def __init__(self, context: Any) -> None:
        self.sparkContext = context


def session(context: Context) -> Any:
    return Session(context)


def slots(
    context: Any, lanes: int | None, partitions: int = 8, *, all_slots: bool = False, task_cpus: float | None = None
) -> int:
    found = Slots(context, all_slots, task_cpus)
    return found.default(partitions) if lanes is None else found.check(lanes)


def test_a_stopped_session_is_refused() -> None:
    context = Context()
    context._jsc = None
    with pytest.raises(UsageError, match="the Spark session is stopped"):
        check_session(session(context))


def test_speculation_by_duration_is_refused_when_speculation_is_on() -> None:
    threshold = {"spark_speculation_task_duration_threshold": "60s"}
    with pytest.raises(UsageError, match=r"spark\.speculation\.task\.duration\.threshold=60s"):
        check_session(session(Context(spark_speculation="true", **threshold)))
    check_session(session(Context(**threshold)))
    check_session(session(Context(spark_speculation="true")))


def test_workers_that_are_killed_when_quiet_are_refused() -> None:
    kill = {"spark_python_worker_killOnIdleTimeout": "true"}
    with pytest.raises(UsageError, match=r"killOnIdleTimeout=true kills lanes after 60 s"):
        check_session(session(Context(spark_python_worker_idleTimeoutSeconds="60", **kill)))
    check_session(session(Context(**kill)))


def test_those_of_queries_are_refused_where_lanes_are_queries() -> None:
    """Through Spark Connect a lane is one; with a context it is a job of its own."""
    of_queries = {
        "spark.sql.execution.pyspark.udf.idleTimeoutSeconds": "3s",
        "spark.sql.execution.pyspark.udf.killOnIdleTimeout": "true",
    }
    refusal = r"spark\.sql\.execution\.pyspark\.udf\.killOnIdleTimeout=true kills lanes after 3 s"
    with pytest.raises(UsageError, match=refusal):
        check_settings(of_queries)
    of_all = {"spark.python.worker.idleTimeoutSeconds": "60", "spark.python.worker.killOnIdleTimeout": "true"}
    with pytest.raises(UsageError, match="kills lanes after 3 s"):
        check_settings(of_all | of_queries)
    check_settings(of_all | {"spark.sql.execution.pyspark.udf.killOnIdleTimeout": "false"})
    names = {name.replace(".", "_"): value for name, value in of_queries.items()}
    check_session(session(Context(**names)))


def test_fifo_works_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        check_session(session(Context(mode="FIFO")))
    assert "spark.scheduler.mode is FIFO" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        check_session(session(Context(mode="FAIR")))
    assert caplog.text == ""


def test_triggers() -> None:
    assert check_trigger(None) is False
    assert check_trigger({"availableNow": True}) is True
    for trigger in ({"availableNow": False}, {"once": True}, {"continuous": "1 second"}, {}):
        with pytest.raises(UsageError, match="availableNow"):
            check_trigger(trigger)


def test_a_slot_stays_free() -> None:
    assert slots(Context(slots=[[4]]), 3) == 3
    with pytest.raises(
        UsageError, match=r"lanes=4 on local\[4\] would leave no task slot free of 4: run at most 3 lanes"
    ):
        slots(Context(slots=[[4]]), 4)
    assert slots(Context(slots=[[4]]), 4, all_slots=True) == 4


def test_more_lanes_than_slots_are_refused_even_then() -> None:
    with pytest.raises(UsageError, match="lanes=5"):
        slots(Context(slots=[[4]]), 5, all_slots=True)


def test_the_default_is_one_lane_a_partition_within_the_slots() -> None:
    assert slots(Context(slots=[[4]]), None, 8) == 3
    assert slots(Context(slots=[[4]]), None, 2) == 2
    assert slots(Context(slots=[[4]]), None, 8, all_slots=True) == 4
    with pytest.raises(UsageError, match="lanes=1"):
        slots(Context("local[1]", slots=[[1]]), None)


def test_a_clusters_executors_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "EXECUTORS_POLL_S", 0.001)
    registering = Context("spark://master:7077", slots=[[0], [0, 2], [0, 2, 2]])
    assert slots(registering, 3) == 3
    monkeypatch.setattr(slots_module, "EXECUTORS_TIMEOUT_S", 0.01)
    monkeypatch.setattr(slots_module, "SETTLED_S", 0.01)
    with pytest.raises(UsageError, match="of 2"):
        slots(Context("spark://master:7077", slots=[[0, 2]]), 3)


def test_executors_are_waited_for_as_long_as_spark_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXECUTORS_POLL_S", "EXECUTORS_TIMEOUT_S", "SETTLED_S"):
        monkeypatch.setattr(slots_module, name, 0.0)
    patience = {"spark_scheduler_maxRegisteredResourcesWaitingTime": "60s"}
    late = [[0], [0], [0, 2], [0, 2], [0, 2, 2]]
    assert slots(Context("k8s://api", slots=late, **patience), 3) == 3
    with pytest.raises(UsageError, match="lanes=3 on k8s://api would leave no task slot free"):
        slots(Context("k8s://api", slots=late), 3)


def test_a_cluster_that_grows_by_itself_is_not_counted() -> None:
    assert slots(Context("yarn", slots=[[0, 2]], spark_dynamicAllocation_enabled="true"), 6) == 6


@pytest.mark.parametrize(
    ("settings", "registered", "partitions", "lanes"),
    [
        ({"spark_dynamicAllocation_maxExecutors": "2", "spark_executor_cores": "2"}, [0], 8, 3),
        ({"spark_dynamicAllocation_maxExecutors": "2", "spark_executor_cores": "2"}, [0], 2, 2),
        ({"spark_dynamicAllocation_maxExecutors": "2"}, [0, 4], 8, 7),
        ({"spark_dynamicAllocation_maxExecutors": "3"}, [0], 8, 2),
        ({"spark_dynamicAllocation_maxExecutors": "1"}, [0], 8, 1),
        ({}, [0], 8, 8),
    ],
)
def test_lanes_follow_the_executors_that_dynamic_allocation_may_add(
    settings: dict[str, str], registered: list[int], partitions: int, lanes: int
) -> None:
    context = Context("yarn", slots=[registered], spark_dynamicAllocation_enabled="true", **settings)
    assert slots(context, None, partitions) == lanes
    made: Any = context
    assert max(1, Slots(made, allow_all=False).room()) >= lanes, "and so do those between bounds"


def test_lanes_may_ask_for_a_share_of_a_core() -> None:
    cluster = Context("spark://master:7077", slots=[[0, 2, 2]])
    assert slots(cluster, None, 99, task_cpus=0.25) == 12, "16, and one core stays free"
    assert slots(cluster, None, 99, task_cpus=0.1, all_slots=True) == 40
    with pytest.raises(UsageError, match=r"task_cpus=0.25 on local\[4\]: .*spark.task.cpus"):
        slots(Context(), 2, task_cpus=0.25)
    with pytest.raises(UsageError, match="task_cpus=0: give a number above 0"):
        slots(cluster, 2, task_cpus=0)


def test_a_sqlite_file_is_not_shared_by_a_cluster() -> None:
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}

    def exactly_once(store: str) -> Pipeline:
        return Pipeline(kafka=kafka, topics=["t"], handler=print, delivery=ExactlyOnce(store))

    check_store(exactly_once("effects.db").delivery, "local[4]", "lanes")
    check_store(exactly_once("postgresql://db/effects").delivery, "spark://master:7077", "lanes")
    with pytest.raises(UsageError, match="cannot share a SQLite file"):
        check_store(exactly_once("effects.db").delivery, "spark://master:7077", "lanes")
