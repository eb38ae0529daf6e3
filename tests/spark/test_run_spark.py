"""The README's pipeline on lanes: from one's own session, and by `keylane run --spark`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORDS = 2_000
TIMEOUT_S = 300
"""Many times what it takes on an idle machine."""


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The examples in a folder of their own, talking to a broker of their own that holds the orders."""
    folder = tmp_path_factory.mktemp("examples")
    with BrokerProcess(folder / "data") as broker:
        Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"orders": 4, "orders.scored": 4})
        for file in EXAMPLES.glob("*.py"):
            (folder / file.name).write_text(file.read_text().replace("127.0.0.1:9092", broker.bootstrap))
        subprocess.run([sys.executable, "produce_orders.py"], cwd=folder, check=True, timeout=TIMEOUT_S)
        yield folder


def test_the_readmes_program_runs_in_a_session_that_is_there(
    spark: SparkSession, examples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark.sparkContext.master == "local[4]", "the program would start another session"
    monkeypatch.syspath_prepend(examples)
    text = (examples / "in_my_spark_session.py").read_text()
    assert text.endswith("\nspark.stop()\n")
    program = compile(text.removesuffix("spark.stop()\n"), "in_my_spark_session.py", "exec")
    exec(program, {"__name__": "__main__"})
    assert capsys.readouterr().out == f"{RECORDS} records processed\n"


def test_keylane_run_on_spark_ends_at_lag_0(examples: Path) -> None:
    pipeline = (examples / "orders.py").read_text().replace('"scoring"', '"scoring again"')
    (examples / "again.py").write_text(pipeline)
    command = [sys.executable, "-m", "keylane", "run", "again.py", "--spark", "local[3]", "--lanes", "2"]
    done = subprocess.run(
        [*command, "--available-now", "--json", "--conf", "spark.ui.enabled=false"],
        cwd=examples,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["event"], summary["processed"], summary["lag"]) == ("summary", RECORDS, 0)
