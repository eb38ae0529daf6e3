"""Brings the demo's own broker back when it ends in the middle of a run: on its data, on its port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.errors import KeylaneError, PeerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.broker.process import BrokerProcess
    from keylane.demo.stop import StopRequest

MAX_RESTARTS = 10
"""A broker that ends more often than this is not being tested but broken."""


class BrokerGuard:
    """`look` is called now and then, by one thread; a broker that cannot be brought back ends the run."""

    def __init__(self, broker: BrokerProcess, say: Callable[[str], None], stop: StopRequest) -> None:
        self._broker = broker
        self._say = say
        self._stop = stop
        self._failure: KeylaneError | None = None
        self.restarts = 0

    def look(self) -> None:
        """Start the broker again when it has ended."""
        if self._failure is not None or self._broker.is_running:
            return
        try:
            if self.restarts == MAX_RESTARTS:
                raise PeerError(f"the broker ended {MAX_RESTARTS + 1} times (log: {self._broker.log})")
            self._broker.restart()
        except KeylaneError as error:
            self._failure = error
            self._stop.request()
        else:
            self.restarts += 1
            self._say(f"the broker had ended; it is up again on its data at {self._broker.bootstrap}")

    def raise_failure(self) -> None:
        """Raises why the broker could not be brought back, if so."""
        if self._failure is not None:
            raise self._failure
