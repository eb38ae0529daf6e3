"""`keylane.spark.session`: what it leaves of the process around it, and what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS = ".".join(map(str, sys.version_info[:2]))


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

    def imported(_: int) -> str:
        with pytest.raises(ImportError) as raised:
            import_module("pandas")
        return str(raised.value)

    told = "No module named 'pandas' in tests"
    assert [imported(0), *spark.sparkContext.parallelize([0], 1).map(imported).collect()] == [told, told]


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


def test_a_python_of_executors_with_another_version_is_refused_where_spark_would_run_it_here(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 3.9\n")
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    with pytest.raises(
        kl.UsageError, match=rf"Python, {python}, is 3\.9, and the driver's is {OURS}: .* PYSPARK_PYTHON"
    ):
        spark.read.format("keylane")


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ("pythonExec", r"the executors cannot run 3\.9 as their Python \(there is no such file\): name one"),
        ("pythonVer", rf"the executors' Python, {sys.executable}, is {OURS}, and the driver's is 3\.9: Spark needs"),
    ],
)
def test_lanes_whose_executors_have_another_python_or_none_end_with_a_sentence(
    spark: SparkSession, work: Any, monkeypatch: pytest.MonkeyPatch, attribute: str, says: str
) -> None:
    """Spark itself is told of another interpreter than this one, and of another version of this one."""
    monkeypatch.setattr(spark.sparkContext, attribute, "3.9")
    query = kl.spark.start(work.pipeline(), spark, lanes=1, trigger={"availableNow": True})
    with pytest.raises(kl.UsageError, match=says) as caught:
        work.finish(query)
    assert "\n" not in str(caught.value)


def test_spark_starts_where_its_path_is_beyond_ascii_under_the_locale_c(java: None, tmp_path: Path) -> None:
    """Java opens files by the locale of its environment, and Spark's own are there."""
    import pyspark

    home = tmp_path / "Prüfstand"
    home.symlink_to(Path(pyspark.__file__).parent)
    program = (
        "import keylane.spark as s; print(s.session('local[1]', **{'spark.ui.enabled': 'false'}).range(7).count())"
    )
    environment = os.environ | {"LC_ALL": "C", "SPARK_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
