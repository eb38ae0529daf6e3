"""An owner of a log of steps on a broker, for tests that want one answer after the other."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Self

from keylane.delivery.steps.log import StepLog
from keylane.delivery.steps.table import StepTable
from keylane.kafka.fenced_log import FencedLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.delivery.steps.formats import Step
    from keylane.delivery.steps.log import Lost, Told

WAIT_S = 60.0


class StepOwner:
    """Of partition 0, whose records are those of the topic with the id "id". Thread safety: one thread."""

    def __init__(self, bootstrap: str, topic: str, *, piece_bytes: int = 500_000, give_up_s: float = 30.0) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._logs: list[FencedLog] = []

        def connect() -> FencedLog:
            settings = {"bootstrap.servers": bootstrap}
            log = FencedLog(settings, topic, 0, f"{topic}-0", self._calls.put, give_up_s=give_up_s)
            self._logs.append(log)
            return log

        self.steps = StepLog(connect, StepTable("id", 0), "a test", lambda: int(time.time() * 1000), piece_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.steps.close()
        for log in self._logs:
            assert log.join(WAIT_S), "its threads have not ended"

    def open(self) -> Lost | None:
        return self._answer(self.steps.open)

    def keep(self, step: Step, answer: bytes) -> Lost | None:
        return self._answer(lambda told: self.steps.keep(step, answer, told))

    def keep_many(self, steps: list[Step], answer: bytes) -> None:
        """At once; all are acknowledged."""
        found: list[Lost | None] = []
        for step in steps:
            self.steps.keep(step, answer, found.append)
        self._serve(lambda: len(found) == len(steps))
        assert set(found) == {None}

    def _answer(self, ask: Callable[[Told], None]) -> Lost | None:
        found: list[Lost | None] = []
        ask(found.append)
        self._serve(lambda: bool(found))
        return found[0]

    def _serve(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._calls.get(timeout=WAIT_S)()
