"""The carry-over lists that tasks go by: the driver tells them, by a local property of Spark's.

The idea: a local property travels with each task, to any executor. So tasks need no folder: one that the executors do
not share would show them no list, and they would try, keep and leave out other rows than the driver wrote down. The
newest two lists are told, when the query starts and when one is written, and a task takes those of its batch: under
adaptive execution Spark runs what is in front of a shuffle before it calls `foreachBatch`.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.spark.structured.carry_lists import CarryList, Lists
from keylane.spark.structured.query_events import QueryListener

if TYPE_CHECKING:
    from pyspark import SparkContext, TaskContext


def tell(context: SparkContext, folder: str, carry_over: str) -> None:
    """The tasks of jobs that this thread starts from now on; `carry_over` is the id of the one that they have."""
    lists = Lists(folder)
    newest = lists.newest()
    told = [] if newest is None else [one for one in (newest, lists.newest(before=newest.batch)) if one is not None]
    text = json.dumps([one.to_json() for one in told]).encode()
    context.setLocalProperty(_property(carry_over), b64encode(zlib.compress(text)).decode())


def heard(context: TaskContext, carry_over: str, batch: int) -> tuple[CarryList | None, CarryList | None]:
    """The list of a batch, once it is written, and that of the batch before. Raises `UsageError` when none was told."""
    text = context.getLocalProperty(_property(carry_over))
    if text is None:
        raise UsageError(
            "carry_over: nobody told this task what is carried: apply parallel_map to the stream before it starts, and "
            "start threads that run its rows with pyspark.InheritableThread"
        )
    told = [CarryList.from_json(one) for one in json.loads(zlib.decompress(b64decode(text)))]
    frozen = next((one for one in told if one.batch == batch), None)
    return frozen, next((one for one in told if one.batch < batch), None)


class TellsAtStart(QueryListener):
    """Tells the thread of each query that starts: Spark calls this in it, before the first batch."""

    wants_progress = False

    def __init__(self, context: SparkContext, folder: str, carry_over: str) -> None:
        self._told = context, folder, carry_over

    def onQueryStarted(self, event: Any) -> None:  # noqa: ARG002, N802 - Spark's names
        tell(*self._told)


def _property(carry_over: str) -> str:
    return f"keylane.carried.{carry_over}"
