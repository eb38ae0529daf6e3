"""The demo's broker is brought back when it ends, but not for ever, and what prevents it ends the run."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from keylane.demo.guard import MAX_RESTARTS, BrokerGuard
from keylane.demo.stop import StopRequest
from keylane.errors import PeerError


@dataclass
class Broker:
    """A broker that ends whenever the test says so."""

    is_running: bool = True
    refusal: str | None = None
    restarts: int = 0
    log: Path = field(default_factory=lambda: Path("broker.log"))
    bootstrap: str = "127.0.0.1:9092"

    def restart(self) -> None:
        if self.refusal is not None:
            raise PeerError(self.refusal)
        self.restarts += 1
        self.is_running = True


def guard_of(broker: Broker) -> tuple[BrokerGuard, list[str], StopRequest]:
    said: list[str] = []
    stop = StopRequest()
    return BrokerGuard(broker, said.append, stop), said, stop  # type: ignore[arg-type]


def test_a_broker_that_ended_is_started_again_once_and_said_so() -> None:
    broker = Broker(is_running=False)
    guard, said, stop = guard_of(broker)
    guard.look()
    guard.look()
    guard.raise_failure()
    assert (broker.restarts, guard.restarts, stop.requested) == (1, 1, False)
    assert said == ["the broker had ended; it is up again on its data at 127.0.0.1:9092"]


def test_a_broker_that_cannot_start_ends_the_run_with_its_words() -> None:
    guard, said, stop = guard_of(Broker(is_running=False, refusal="the journal is damaged"))
    guard.look()
    guard.look()
    assert (guard.restarts, stop.requested, said) == (0, True, [])
    with pytest.raises(PeerError, match="the journal is damaged"):
        guard.raise_failure()


def test_a_broker_that_ends_again_and_again_ends_the_run() -> None:
    broker = Broker()
    guard, _, stop = guard_of(broker)
    for _ in range(MAX_RESTARTS + 1):
        assert not stop.requested
        broker.is_running = False
        guard.look()
    assert stop.requested
    with pytest.raises(PeerError, match=r"the broker ended 11 times \(log: broker\.log\)"):
        guard.raise_failure()
