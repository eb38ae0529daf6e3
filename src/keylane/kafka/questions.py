"""`Questions`: one question to a broker, with its timeout, its repeats, and its failures as keylane's errors.

The idea: "not now" (a coordinator that loads, a leader that is elected, a broker that starts) is asked again until the
timeout; what is left is no answer, `BrokerUnavailableError`, or a refusal, `RefusedError`.
"""

# ruff: noqa: SLF001 - the client's names for librdkafka's own errors begin with an underscore

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import KafkaError, KafkaException

from keylane.errors import BrokerUnavailableError, PeerError
from keylane.kafka.faults import PASSING, describe, error_of

if TYPE_CHECKING:
    from collections.abc import Callable

ASK_AGAIN_S = 0.1
"""Pause before a question is asked again."""

NO_ANSWER = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
    }
)
"""No broker said anything."""

NO_PARTITION = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC})
"""The broker knows no such topic or partition: an answer, and no failure."""

NOT_NOW = (PASSING | {KafkaError._NOENT, KafkaError._PARTIAL}) - NO_PARTITION
"""Worth asking again. `_NOENT` is "no leaders found", and `_PARTIAL` that one of the brokers did not answer."""

T = TypeVar("T")


class RefusedError(PeerError):
    """A broker's refusal, in its own words, with Kafka's code for it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Questions:
    """Asks on behalf of one client; `remember` is its error callback and `serve` runs its waiting callbacks."""

    def __init__(self, servers: str, timeout_s: float) -> None:
        self.servers = servers
        self.timeout_s = timeout_s
        self.serve: Callable[[], object] = lambda: None
        self._last_error: str | None = None

    def remember(self, error: KafkaError) -> None:
        """The client's error callback: connection errors say more than the timeout that they end in."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._last_error is None:
            self._last_error = describe(error)

    def ask(self, what: str, attempt: Callable[[float], T], *, again: bool = True) -> T:
        """Call `attempt` with the seconds that are left; it raises `KafkaException` for an error of Kafka's.

        `again=False` is for what must not be done twice. `what` completes "cannot ...".
        """
        give_up_at = time.monotonic() + self.timeout_s
        while True:
            left_s = give_up_at - time.monotonic()
            try:
                answer = attempt(max(left_s, 0.001))
            except KafkaException as raised:
                error = error_of(raised)
            else:
                self.serve()
                self._last_error = None  # the connection works: the client reports an error once, not for each question
                return answer
            if not (again and error.code() in NOT_NOW and time.monotonic() + ASK_AGAIN_S < give_up_at):
                raise self._failure(what, error)
            time.sleep(ASK_AGAIN_S)

    def _failure(self, what: str, error: KafkaError) -> PeerError:
        if error.code() in NO_ANSWER:
            self.serve()
            why = self._last_error or describe(error)
            return BrokerUnavailableError(
                f"no Kafka broker answered at {self.servers!r} within {self.timeout_s:g} s ({why}): "
                "check the address, and that the broker runs"
            )
        if error.code() in NOT_NOW:
            return BrokerUnavailableError(
                f"cannot {what} at {self.servers!r} within {self.timeout_s:g} s ({describe(error)}): "
                "the broker is starting or moving; try again"
            )
        return RefusedError(f"cannot {what} at {self.servers!r}: {describe(error)}", error.code())
