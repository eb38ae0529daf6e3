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
from keylane.kafka.faults import NO_ANSWER, NO_PARTITION, PASSING, describe, error_of, refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka.admin import AdminClient

ASK_AGAIN_S = 0.1
"""Pause before a question is asked again."""

NOT_NOW = PASSING - NO_PARTITION
"""Worth asking again."""

LOOK_S = 1.0
"""How long a look at the cluster waits."""

FAIL_OVER_S = 20.0
"""So much longer, but not more than three times as long, is asked what no broker answers while others are there: a
cluster takes nine seconds to see that a node is dead, and then another one takes over."""

T = TypeVar("T")


class RefusedError(PeerError):
    """A broker's refusal, in its own words, with Kafka's code for it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class LastError:
    """What a client told last: connection errors say more than the timeout that they end in. It knows no client, so
    that a client that nobody needs goes at once, with its threads and connections, and not with the garbage."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.refusal: str | None = None
        """What is wrong with the login or a certificate, where that is why nobody answers."""

    def forget(self) -> None:
        """The connection works."""
        self.text = self.refusal = None

    def remember(self, error: KafkaError) -> None:
        """The client's error callback."""
        self.refusal = refusal_of(error) or self.refusal
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self.text is None:
            self.text = describe(error)


class Questions:
    """Asks on behalf of one client, which tells its errors to `last_error`, and can be replaced."""

    def __init__(self, client: AdminClient, last_error: LastError, servers: str, timeout_s: float) -> None:
        self.servers = servers
        self.timeout_s = timeout_s
        self.client = client
        self._last_error = last_error

    def ask(self, what: str, attempt: Callable[[float], T]) -> T:
        """Call `attempt` with the seconds that it may take; it raises `KafkaException` for an error of Kafka's.

        `what` completes "cannot ...".
        """
        began = time.monotonic()
        for_s = self.timeout_s
        said: KafkaError | None = None
        while True:
            took_s = time.monotonic() - began
            left_s = max(for_s - took_s, 0.001)
            try:  # a dead node may have been asked: time is left for the living, and more each time for the slow
                answer = attempt(min(left_s, max(self.timeout_s / 3, took_s / 2)))
            except KafkaException as raised:
                error = error_of(raised)
            else:
                self.client.poll(0)
                self._last_error.forget()  # the client tells an error once, not each time
                return answer
            self.client.poll(0)
            if self._last_error.refusal is not None:
                raise BrokerUnavailableError(f"cannot {what} at {self.servers!r}: {self._last_error.refusal}")
            said = said if error.code() in NO_ANSWER else error
            cluster_is_there = error.code() in NOT_NOW and self._look()
            if cluster_is_there:
                for_s = self.timeout_s + min(2 * self.timeout_s, FAIL_OVER_S)
            if error.code() not in NOT_NOW or time.monotonic() + ASK_AGAIN_S >= began + for_s:
                # The last attempt may have had no time for an answer: what a broker has said tells more.
                told = said if said is not None and cluster_is_there else error
                raise self._failure(what, told, time.monotonic() - began, cluster_is_there=cluster_is_there)
            time.sleep(ASK_AGAIN_S)

    def _look(self) -> bool:
        """Whether any broker answers. The client knows then which there are, and what they lead."""
        try:
            self.client.list_topics(timeout=LOOK_S)
        except KafkaException:  # what is told is the question's own error
            return False
        return True

    def _failure(self, what: str, error: KafkaError, took_s: float, *, cluster_is_there: bool) -> PeerError:
        if error.code() in NO_ANSWER and not cluster_is_there:
            self.client.poll(0)
            why = self._last_error.text or describe(error)
            return BrokerUnavailableError(
                f"no Kafka broker answered at {self.servers!r} within {self.timeout_s:g} s ({why}): "
                "check the address, and that the broker runs"
            )
        if error.code() in NOT_NOW:
            return BrokerUnavailableError(
                f"cannot {what} at {self.servers!r} within {took_s:.0f} s ({describe(error)}): "
                "the broker is starting or moving; try again"
            )
        return RefusedError(f"cannot {what} at {self.servers!r}: {describe(error)}", error.code())
