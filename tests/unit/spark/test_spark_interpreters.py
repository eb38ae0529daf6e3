"""What Spark says of an executor's Python that is missing, or is another version: in one line, with the way out."""

from __future__ import annotations

import pytest

from keylane.spark.interpreters import wrong_python

ABORTED = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: "
    "Lost task 0.3 in stage 3.0 (TID 7) (10.0.0.3 executor 2): "
)
WORKER = f"{ABORTED}org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n  File worker.py\n"
MISMATCH = "pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version"
PYTHON = "/opt/venv/bin/python"


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (f'"{PYTHON}": error=2, No such file or directory', "there is no such file"),
        (f'"{PYTHON}" (in directory "/srv/app-1/0"): error=13, Permission denied', "it may not be run"),
        (f'"{PYTHON}": Exec failed, error: 2 (No such file or directory) ', "there is no such file"),  # Java 23
        (f'"{PYTHON}": Exec failed, error: 13 (Permission denied) ', "it may not be run"),
    ],
)
def test_a_python_that_is_not_there_is_named(says: str, reason: str) -> None:
    error = wrong_python(f"{ABORTED}java.io.IOException: Cannot run program {says}\n\tat java.base", "python")
    assert str(error) == (
        f"the executors cannot run {PYTHON} as their Python ({reason}): name one that they have with "
        "spark.pyspark.python or PYSPARK_PYTHON, for example ./environment/bin/python out of --archives "
        "(docs/clusters.md)"
    )


@pytest.mark.parametrize(
    "says",
    [
        ": 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.",
        " (3, 12) than that in driver 3.11, PySpark cannot run with different minor versions.",  # before 4.0
    ],
)
def test_another_version_is_named_with_both(says: str) -> None:
    assert str(wrong_python(WORKER + MISMATCH + says, "python3")) == (
        "the executors' Python, python3, is 3.12, and the driver's is 3.11: Spark needs the same minor version; "
        "name a Python 3.11 that they have with spark.pyspark.python or PYSPARK_PYTHON, or start the driver with "
        "Python 3.12"
    )


@pytest.mark.parametrize(
    "says",
    [
        "Python worker exited unexpectedly (crashed)",
        'java.io.IOException: Cannot run program "python3": error=11, Resource temporarily unavailable',  # may pass
    ],
)
def test_what_a_new_start_may_mend_is_no_such_error(says: str) -> None:
    assert wrong_python(ABORTED + says, "python3") is None
