"""Where people start lanes from: a notebook, spark-submit, `keylane run`; and a signal to all of its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kit.outputs import covered

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 300
"""Many times what it takes on an idle machine."""

NOTEBOOK = """
import asyncio
import keylane as kl
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()

async def copy(record: kl.Record) -> kl.Output:
    return kl.Output({output!r}, record.key, record.value)

kafka = {{"bootstrap.servers": {servers!r}, "group.id": {group!r}}}
pipeline = kl.Pipeline(kafka=kafka, topics=[{topic!r}], handler=copy, offset_reset="earliest")
query = kl.spark.start(pipeline, spark, trigger={{"availableNow": True}})
await asyncio.to_thread(query.awaitTermination)
print("processed", query.snapshot().processed)
spark.stop()
"""

PIPELINE = """
import asyncio
import keylane as kl
from kit.outputs import source_of

async def copy(record):
    await asyncio.sleep(0.05)
    return kl.Output({output!r}, record.key, record.value, headers=[source_of(record)], partition=record.partition)

pipeline = kl.Pipeline(
    kafka={{"bootstrap.servers": {servers!r}, "group.id": {group!r}}}, topics=[{topic!r}], handler=copy,
    offset_reset="earliest", max_concurrency=8, commit=kl.Commit(interval_ms=300),
)
"""


def places(work: Any) -> dict[str, str]:
    return {"servers": work.servers, "group": work.group, "topic": work.topic, "output": work.output}


@pytest.mark.soak
def test_a_notebook_with_a_session_of_its_own(java: None, work: Any) -> None:
    """Python's asyncio console is what a notebook is: cells, functions of `__main__`, a loop that runs. The session is
    a plain one, and so in FIFO mode."""
    work.fill(200)
    done = subprocess.run(
        [sys.executable, "-m", "asyncio"],
        input=NOTEBOOK.format(**places(work)),
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert "processed 200" in done.stdout, done.stderr
    assert work.lag() == 0


@pytest.mark.soak
def test_sigterm_to_the_driver_and_its_jvm_drains_lanes_and_is_no_crash(java: None, work: Any, tmp_path: Path) -> None:
    """What a container's or a service's end is: one signal to every process. The JVM ends at once."""
    work.fill(3_000)
    (tmp_path / "copying.py").write_text(PIPELINE.format(**places(work)))
    command = [sys.executable, "-m", "keylane", "run", "copying.py", "--spark", "local[3]", "--lanes", "2", "--json"]
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [*command, "--conf", "spark.ui.enabled=false"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["processed"] > 100:
                break
        os.killpg(process.pid, signal.SIGTERM)
        last = json.loads(process.stdout.read().splitlines()[-1])
        assert process.wait(TIMEOUT_S) == 0, (tmp_path / "stderr").read_text()
    assert (last["event"], last["stopped"]) == ("summary", True)
    assert "Traceback" not in (tmp_path / "stderr").read_text()
    seen, known = work.outputs(), covered(work.admin, work.group)
    assert seen.lost, "it was stopped in the middle"
    assert seen.repeated == set()
    assert {source for source in seen.inputs if source in known} == set(seen.outputs), "what ran is committed"
    assert last["processed"] == len(seen.outputs), "the driver heard of it all"
