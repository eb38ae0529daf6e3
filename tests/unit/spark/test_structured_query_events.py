"""What a listener asks the JVM for each event."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from keylane.spark.structured.query_events import FromJvm, QueryListener

PROGRESS: dict[str, Any] = {
    "id": "00000000-0000-0000-0000-000000000001",
    "runId": "00000000-0000-0000-0000-000000000002",
    "name": None,
    "timestamp": "2026-01-01T00:00:00.000Z",
    "batchId": 3,
    "batchDuration": 5,
    "stateOperators": [],
    "sources": [],
    "sink": {"description": "noop", "numOutputRows": -1},
}


class Jvm:
    """An event of the JVM that counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def progress(self) -> Jvm:
        self.asked += 1
        return self

    def json(self) -> str:
        self.asked += 1
        return json.dumps(PROGRESS)


@pytest.mark.parametrize(("wants", "asked"), [(True, 2), (False, 0)])
def test_a_progress_is_asked_for_once_if_it_is_wanted(wants: bool, asked: int) -> None:
    heard: list[int] = []

    class Listener(QueryListener):
        wants_progress = wants

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
            heard.append(event.progress.batchId)

    event = Jvm()
    FromJvm(Listener()).onQueryProgress(event)
    assert (heard, event.asked) == ([3] * wants, asked)


def test_the_end_is_told_whether_progress_is_wanted_or_not() -> None:
    heard: list[str] = []

    class Listener(QueryListener):
        wants_progress = False

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
            heard.append(str(event.runId))

    event = SimpleNamespace(
        id=lambda: SimpleNamespace(toString=lambda: PROGRESS["id"]),
        runId=lambda: SimpleNamespace(toString=lambda: PROGRESS["runId"]),
        exception=lambda: SimpleNamespace(isDefined=lambda: False),
        errorClassOnException=lambda: SimpleNamespace(isDefined=lambda: False),
    )
    FromJvm(Listener()).onQueryTerminated(event)
    assert heard == [PROGRESS["runId"]]
