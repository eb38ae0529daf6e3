"""`format("keylane")` in plain sessions of an interpreter that is not the `python3` of the PATH: a virtual environment
that was not activated, or a notebook's kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keylane.spark.java import find_java, launch_home

if TYPE_CHECKING:
    from keylane.broker.process import BrokerProcess

TIMEOUT_S = 300
"""Many times what it takes on an idle machine."""

BEGINNING = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")

def count(spark):
    from keylane.spark import parallel_map

    options = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": "rows"}
    frame = spark.read.format("keylane").options(**options).load()
    print(frame.transform(parallel_map(lambda row: (row.value,), "value binary")).count(), "rows", flush=True)
"""
IMPORTED_FIRST = """
import keylane.spark

count(builder.getOrCreate())
"""
IMPORTED_LATER = """
spark = builder.getOrCreate()
try:
    spark.read.format("nonsense").load()  # Spark has looked for data sources, and does not look again
except Exception as error:
    print("nonsense" in str(error))
import keylane.spark

count(spark)
count(spark.newSession())
spark.stop()
count(builder.getOrCreate())
"""


@pytest.fixture(scope="module")
def servers(broker: BrokerProcess) -> str:
    from keylane.kafka.admin import Admin
    from keylane.records import Output
    from kit.filling import filling

    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"rows": 1})
    with filling(broker.bootstrap) as producer:
        for number in range(7):
            producer.produce(Output("rows", None, b"%d" % number))
    return broker.bootstrap


LATER = ["True", *["7 rows"] * 3]


@pytest.mark.full
@pytest.mark.parametrize(
    ("program", "says", "driver"),
    [
        pytest.param(IMPORTED_FIRST, ["7 rows"], None, id="imported first", marks=pytest.mark.soak),
        pytest.param(IMPORTED_LATER, LATER, None, id="imported later"),
        pytest.param(IMPORTED_FIRST, ["7 rows"], "jupyter", id="first, in a notebook", marks=pytest.mark.soak),
        pytest.param(IMPORTED_LATER, LATER, "jupyter", id="later, in a notebook", marks=pytest.mark.soak),
    ],
)
def test_the_source_and_the_functions_run_with_this_interpreter(
    java: None, servers: str, tmp_path: Path, program: str, says: list[str], driver: str | None
) -> None:
    venv.create(tmp_path / "other", symlinks=True)  # its python3 has neither keylane nor pyarrow
    taken = {"PATH", "PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
    env = {name: value for name, value in os.environ.items() if name not in taken}
    env |= {"PATH": f"{tmp_path}/other/bin:/usr/bin:/bin", "JAVA_HOME": str(launch_home(find_java()))}
    env |= {"PYTHONPATH": str(Path(__file__).parents[2]), "SPARK_LOCAL_IP": "127.0.0.1"}  # `sitecustomize`, not keylane
    env |= {} if driver is None else {"PYSPARK_DRIVER_PYTHON": driver}
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + program, servers],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == [*says, ""]
    assert "is not known" not in done.stderr
