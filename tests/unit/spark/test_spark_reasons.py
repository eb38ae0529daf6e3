"""What Spark says of a failure, in one line: its own texts, as they were seen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from keylane.errors import PeerError, UsageError
from keylane.spark import acknowledged, versions
from keylane.spark import session as start_session
from keylane.spark.jobs import JobFailure, failure_of_job
from keylane.spark.reasons import reason_of

if TYPE_CHECKING:
    from pathlib import Path

TOO_LITTLE = "java.lang.IllegalArgumentException: System memory 100 must be at least 471859200."
LOST = "Task 0 failed 4 times, most recent failure: Lost task 0.3 (TID 3): org.apache.spark.api.python.PythonException"


def test_the_line_behind_py4js_own_headline() -> None:
    headline = "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext."
    text = f"{headline}\n: {TOO_LITTLE}\n\tat org.apache.spark.memory.Manager.of(Manager.scala:1)\n"
    assert reason_of(text) == TOO_LITTLE


def test_a_sentence_that_begins_on_the_second_line() -> None:
    lines = (
        "Job aborted due to stage failure:",
        "Aborting TaskSet 0.0 because task 0 (partition 0)",
        "cannot run anywhere due to node and executor excludeOnFailure.",
    )
    assert reason_of("\n".join((*lines, "Most recent failure:", "Lost task 0.1 in stage 0.0"))) == " ".join(lines)


def test_what_python_raised_is_the_last_line_of_its_traceback() -> None:
    raised = "ModuleNotFoundError: No module named 'keylane'"
    traceback = f'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n    loads(obj)\n{raised}\n'
    text = f"{LOST}: {traceback}\n\tat org.apache.spark.api.python.Runner.run(Runner.scala:1)\n"
    assert reason_of(text) == f"{LOST}: {raised}"


def test_a_lane_that_may_run_nowhere_says_why() -> None:
    """`spark.excludeOnFailure`: each executor has failed its task once."""
    headline, reason = "Job aborted due to stage failure:", "Aborting TaskSet 0.0: it cannot run anywhere."
    error = RuntimeError(f"{headline}\n{reason}\nMost recent failure:\nLost task 0.1")
    assert failure_of_job(error, lambda: False, "the executors'") == JobFailure("died", f"{headline} {reason}")


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session starts."""

    def refuse(_: object) -> None:
        raise RuntimeError(f"An error occurred while calling None.org.apache.spark.JavaSparkContext.\n: {TOO_LITTLE}\n")

    module = sys.modules["keylane.spark.session"]  # whose function has its name
    monkeypatch.setattr(module, "_launch_environment", lambda local: {})  # noqa: ARG005 - its name
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuse)
    monkeypatch.delenv("SPARK_HOME", raising=False)


@pytest.mark.usefixtures("refusing")
def test_a_setting_that_the_session_refuses_is_named() -> None:
    with pytest.raises(PeerError) as raised:
        start_session("local[2]")
    assert str(raised.value) == f"Spark did not start with master 'local[2]': {TOO_LITTLE}"


@pytest.mark.usefixtures("refusing")
@pytest.mark.parametrize(
    ("there", "hint"),
    [
        (None, "has no Spark"),
        ("2.4.8", "is Spark 2.4.8"),
        (f"{pyspark.__version__}-amzn-0", ""),
    ],
)
def test_a_spark_home_of_another_version_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: str | None, hint: str
) -> None:
    """PySpark starts it in place of its own Spark, and what then fails is a class or a file of it."""
    if there is not None:
        (tmp_path / "jars").mkdir()
        (tmp_path / "jars" / f"spark-core_2.13-{there}.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(PeerError) as raised:
        start_session("local[2]")
    way_out = f"and PySpark is {pyspark.__version__}: unset SPARK_HOME, or install the same version)"
    more = f" (SPARK_HOME={tmp_path} {hint}, {way_out}" if hint else ""
    assert str(raised.value) == f"Spark did not start with master 'local[2]': {TOO_LITTLE}{more}"


def test_one_line_stays() -> None:
    assert reason_of("[CANNOT_MODIFY_CONFIG] It cannot.\nSee more.") == "[CANNOT_MODIFY_CONFIG] It cannot."
    assert reason_of(" \n") == ""


def test_acknowledged_is_refused_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source needs data sources in Python."""
    monkeypatch.setattr(versions, "installed", lambda: "3.5.8")

    def write(*_: Any) -> None:
        """Nothing."""

    with pytest.raises(UsageError, match=r"acknowledged\(…\) needs Spark 4\.0, and this is 3\.5\.8: .*GroupCommits"):
        acknowledged(write)


def test_a_context_that_is_stopped_below_a_call_is_no_attribute_of_none() -> None:
    error = AttributeError("'NoneType' object has no attribute 'setCallSite'")
    told = failure_of_job(error, lambda: True, "the executors'")
    assert told == JobFailure("session stopped", "the SparkContext was stopped")
