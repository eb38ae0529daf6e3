"""Telling user code: `Callbacks` of what was produced, `CommitCallbacks` of commits. Each on a thread of its own."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic

from keylane.consumer.outputs import AnyShown, ResultsMoved
from keylane.errors import HandlerError, PeerError
from keylane.flow.workers.calls import failure_of
from keylane.foreign_errors import line_of
from keylane.records import Record
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.consumer.commits import Told
    from keylane.consumer.ports import CommitsPort, ResultsPort
    from keylane.records import Produced

logger = logger_of("keylane.consumer")


class Callbacks(Generic[AnyShown]):
    """Calls `on_produced` for each acknowledged output, in order, on a thread of its own.

    What it raises is a failed attempt of the record. Thread safety: `start`, `put` and `close` are the loop's.
    """

    def __init__(
        self,
        callback: Callable[[Produced], Any],
        report: Callable[[ResultsMoved[AnyShown]], None],
        following: ResultsPort[AnyShown] | None,
        name: str,
    ) -> None:
        self._callback = callback
        self._report = report
        self._following = following
        self._queue: SimpleQueue[AnyShown | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"{name}-produced", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if self._following is not None:
            self._following.start()

    def put(self, deliveries: Sequence[AnyShown]) -> None:
        for delivery in deliveries:
            self._queue.put(delivery)

    def close(self, timeout_s: float) -> None:
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                logger.error("closed while on_produced still ran; its thread is left behind")
        if self._following is not None:
            self._following.close(timeout_s)

    def _serve(self) -> None:
        while (delivery := self._queue.get()) is not None:
            try:
                for produced in delivery.produced():
                    self._callback(produced)
            except BaseException as error:  # the callback's failure, whatever it is, must not end the thread
                self._report(ResultsMoved([(delivery, failure_of(error))], passed=(delivery,)))
            else:
                self._pass_on(delivery)

    def _pass_on(self, delivery: AnyShown) -> None:
        if self._following is None:
            self._report(ResultsMoved([(delivery, None)], passed=(delivery,)))
        else:
            self._following.put((delivery,))


class CommitCallbacks:
    """Calls `on_commit` and `on_committed` on a thread of its own, in the order of the answers.

    What they raise ends the consumer. Thread safety: `put` and `close` are the loop's.
    """

    def __init__(
        self,
        on_commit: Callable[..., object] | None,
        on_committed: Callable[[Record], object] | None,
        failed: Callable[[HandlerError], None],
        heard: Callable[[Told], None],
        name: str,
        following: CommitsPort | None = None,
    ) -> None:
        """`heard`: where to tell that user code has heard of one, unless there is somebody `following` who does."""
        self._on_commit = on_commit
        self._on_committed = on_committed
        self._failed = failed
        self._heard = heard
        self._following = following
        self._queue: SimpleQueue[Told | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"{name}-commits", daemon=True)

    def put(self, told: Told) -> None:
        if self._thread.ident is None:
            self._thread.start()
        self._queue.put(told)

    def close(self, timeout_s: float) -> None:
        """Tell what is left, for at most `timeout_s`."""
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                logger.error("closed while on_commit or on_committed still ran; its thread is left behind")
        if self._following is not None:
            self._following.close(timeout_s)

    def _serve(self) -> None:
        while (told := self._queue.get()) is not None:
            if self._on_commit is not None:
                if told.accepted:
                    self._call(self._on_commit, told.accepted, None)
                if told.refused:
                    self._call(self._on_commit, told.refused, PeerError(f"not committed: {told.problem}"))
            if self._on_committed is not None:
                for message in told.records:
                    self._call(self._on_committed, Record(message))
            if self._following is None:
                self._heard(told)
            else:
                self._following.put(told)

    def _call(self, callback: Callable[..., Any], *arguments: Any) -> None:
        try:
            callback(*arguments)
        except BaseException as error:  # reported: the consumer stops with it
            which = "on_commit" if callback is self._on_commit else "on_committed"
            made = HandlerError(f"{which} raised {line_of(error)}")
            made.__cause__ = error
            self._failed(made)
