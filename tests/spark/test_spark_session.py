"""`keylane.spark.session`: what it leaves of the process around it, and what it refuses."""

from __future__ import annotations

import os
import signal
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

import keylane as kl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_runs_this_interpreter_in_a_fair_scheduler(spark: SparkSession) -> None:
    context = spark.sparkContext
    assert context.parallelize([0], 1).map(lambda _: sys.executable).collect() == [sys.executable]
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert context.getConf().get("spark.scheduler.mode") == "FAIR"


def test_workers_of_tests_have_pyspark_with_its_bytecode(spark: SparkSession) -> None:
    """And not out of Spark's archive, which each process would compile: `tests/sitecustomize.py`."""
    import pyspark

    found = spark.sparkContext.parallelize([0], 1).map(lambda _: pyspark.__file__).collect()
    assert found == [pyspark.__file__]


def test_workers_of_tests_have_no_pandas(spark: SparkSession) -> None:
    """So no test passes only where pandas is."""
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: str(find_spec("pandas"))).collect()
    assert [str(find_spec("pandas")), *found] == ["None", "None"]


def test_ctrl_c_stays_pythons(spark: SparkSession) -> None:
    """PySpark's own handler cancels every job, and so would kill lanes that should drain."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_same_session_comes_again_and_another_master_is_refused(spark: SparkSession) -> None:
    assert kl.spark.session("local[4]").sparkContext is spark.sparkContext
    with pytest.raises(kl.UsageError, match=r"already has a Spark session on 'local\[4\]'"):
        kl.spark.session("local[2]")


def test_a_setting_without_its_full_name_is_refused() -> None:
    with pytest.raises(kl.UsageError, match=r"spark\.ui\.enabled"):
        kl.spark.session(ui_enabled=False)


def test_a_python_that_only_executors_have_is_refused_where_spark_would_run_it_here(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "./environment/bin/python")
    with pytest.raises(kl.UsageError, match=r"executors, \./environment/bin/python, which is not in .*: start in the"):
        spark.read.format("keylane")
    assert spark.read.format("csv")
