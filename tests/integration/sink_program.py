"""What Spark asks of the sink `keylane` with `delivery=exactly_once`, without Spark: a test starts it to kill it.

Arguments: SERVERS OUTPUT FOLDER ROWS. `FOLDER/rows` says how many rows there are to be; a batch has ROWS of them. The
commit log is `FOLDER/commits`. `KEYLANE_DIES_AT` says at which step of its work the process ends itself.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from keylane.errors import PeerError
from keylane.kafka.open_transaction_producer import OpenTransaction
from keylane.spark.structured.exact import driver, protocol
from keylane.spark.structured.exact.digest import Digest
from keylane.spark.structured.exact.record import Entry, task_prefix
from keylane.spark.structured.exact.task_ids import TaskIds
from keylane.spark.structured.sink_rows import SinkRows

QUERY = "query"
TASKS = 3
TIMEOUT_MS = 30_000
_left = int(os.environ.get("KEYLANE_DIES_AT", "0"))


def step() -> None:
    global _left
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def watch() -> None:
    """Every request of the driver is two steps: before it, and before its answer is known."""
    ask = driver._asked

    def watched(request: Any, sink: Any, client: Any) -> Any:
        step()
        answer = ask(request, sink, client)
        step()
        return answer

    driver._asked = watched


def task(sink: driver.Sink, plan: protocol.Plan, batch: int, partition: int, rows: range, ids: TaskIds) -> Entry | None:
    if not protocol.writes(plan, QUERY, batch, partition):
        return None
    digest, name = Digest(), ids.take(task_prefix(sink.name), QUERY, batch)
    with OpenTransaction(sink.settings["bootstrap.servers"], {}, name, TIMEOUT_MS, sink.name) as transaction:
        numbers = [b"%d" % number for number in rows[partition::TASKS]]
        made = SinkRows(sink.name, numbers, numbers)
        for row in made.outputs():
            transaction.produce(row)
        digest.add(made)
        transaction.flush()
        step()
    held = driver.described(sink, name)
    return Entry(partition, name, *held.producer, digest.rows, digest.sum, held.started_ms)


def main() -> None:
    servers, output, place, size = sys.argv[1:]
    folder, rows_a_batch = Path(place), int(size)
    sink = driver.Sink(output, {"bootstrap.servers": servers})
    ids = TaskIds(lambda: uuid4().hex)
    log = folder / "commits"
    watch()
    while (batch := int(log.read_text()) if log.exists() else 0) * rows_a_batch < int((folder / "rows").read_text()):
        rows = range(batch * rows_a_batch, (batch + 1) * rows_a_batch)
        plan = driver.start(sink)
        made = [task(sink, plan, batch, partition, rows, ids) for partition in range(TASKS)]
        try:
            driver.commit(sink, plan, QUERY, batch, [one for one in made if one is not None])
        except PeerError:
            driver.abort(sink, plan)
            raise
        step()
        part = log.with_suffix(".part")
        part.write_text(str(batch + 1))
        part.rename(log)


if __name__ == "__main__":
    main()
