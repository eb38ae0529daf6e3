"""`RowProcesses`: rows through worker processes, without Spark around them."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from keylane.errors import Fatal, WorkerProcessError
from keylane.flow.workers.timeouts import HandlerTimeoutError
from keylane.records import Context

pytest.importorskip("pyspark", reason="pyspark is not installed")
from pyspark.sql import Row

from keylane.spark.structured.row_processes import RowProcesses

if TYPE_CHECKING:
    from collections.abc import Iterator


def function(row: Any, context: Context) -> Any:
    if row.id == "dies":
        os._exit(3)
    if row.id == "wrong":
        raise Fatal("no such row")
    while row.id == "hangs":
        pass
    return {"id": row.id, "pid": os.getpid(), "attempt": context.attempt}


@pytest.fixture(scope="module")
def calls() -> Iterator[RowProcesses]:
    made = RowProcesses(function, None, 1.0)
    yield made
    made.close()


def test_a_process_is_used_again_until_it_dies_or_takes_too_long(calls: RowProcesses) -> None:
    first = calls(Row(id=1), Context(attempt=3))
    assert first == {"id": 1, "pid": first["pid"], "attempt": 3}
    assert first["pid"] != os.getpid()
    with pytest.raises(Fatal, match="no such row"):
        calls(Row(id="wrong"), Context())
    assert calls(Row(id=None), Context())["pid"] == first["pid"]
    with pytest.raises(HandlerTimeoutError, match="took longer than 1000 ms"):
        calls(Row(id="hangs"), Context())
    second = calls(Row(id=2), Context())
    assert second["pid"] != first["pid"]
    with pytest.raises(WorkerProcessError, match="ended with exit code 3 while it ran this row"):
        calls(Row(id="dies"), Context())
    assert calls(Row(id=3), Context())["pid"] != second["pid"]


def test_what_runs_at_the_end_is_killed() -> None:
    calls = RowProcesses(function, None, None)
    raised: list[BaseException] = []

    def call() -> None:
        try:
            calls(Row(id="hangs"), Context())
        except WorkerProcessError as error:
            raised.append(error)

    calls(Row(id=1), Context())
    thread = threading.Thread(target=call)
    thread.start()
    while not calls._busy:
        time.sleep(0.001)
    calls.close()
    thread.join()
    assert "SIGKILL" in str(raised)
    with pytest.raises(WorkerProcessError, match="are closed"):
        calls(Row(id=1), Context())
