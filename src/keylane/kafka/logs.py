"""`Logs`: what a consumer asks brokers about topics and logs, with patience for a broker that restarts.

The idea: at the start nobody's answer is an error within seconds; later the same question is asked again until the
answer comes, or cannot come, or took so long that something is wrong. No attempt takes all of the time: the node that
was asked may be the one that has died.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import OFFSET_INVALID, KafkaException, TopicPartition

from keylane.errors import BrokerUnavailableError, PeerError, UsageError
from keylane.kafka.faults import NO_PARTITION, PASSING, describe, error_of
from keylane.kafka.leaders import learn_leaders
from keylane.kafka.missing_topics import way_out
from keylane.kafka.topics import check_may_see
from keylane.patterns import is_pattern, matches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Sequence

    from confluent_kafka import KafkaError

    from keylane.kafka.clients import Consumer
    from keylane.kafka.faults import Faults

T = TypeVar("T")

FIRST_ANSWER_S = 10.0
"""How long the first question to a broker waits: longer means that there is none."""

ANSWER_S = 5.0
"""How long one question to a broker waits before it is asked again."""

LEAST_ANSWER_S = 1.0
"""How long the first question about a log waits: its leader may be a node that has died. Later ones wait for a quarter
of the time that it took so far, for the sake of a leader that is slow."""

MISSING_S = 10.0
"""A partition that no broker knows for so long is not there: longer than a new one takes to be known to all."""

ASK_AGAIN_S = 0.2
"""Pause between two questions, while a broker restarts."""

RESOLVE_S = 60.0
"""How long an assignment may take to learn its start: a broker's restart, and well below max.poll.interval.ms."""


class MissingError(PeerError):
    """There is no such partition: its topic was deleted."""

    def __init__(self, text: str, topic: str) -> None:
        super().__init__(text)
        self.topic = topic


class Patience:
    """Decides whether a question is asked again. Thread safety: any thread; `close` ends what waits."""

    def __init__(self, servers: str, setting: str = "bootstrap.servers") -> None:
        """`setting`: of which the servers are."""
        self.servers = servers
        self.setting = setting
        self._closing = threading.Event()

    def close(self) -> None:
        self._closing.set()

    def give_up_at(self) -> float:
        """The end of a new question's patience."""
        return monotonic() + RESOLVE_S

    def ask_again(self, error: KafkaError, give_up_at: float, what: str) -> None:
        """Wait a moment before the same question; raises when it cannot help, or took too long already."""
        text = f"{what} cannot be read: {describe(error)}"
        if error.code() not in PASSING and not error.retriable():
            raise PeerError(text)
        self.wait(give_up_at, text)

    def wait(self, give_up_at: float, text: str) -> None:
        """Wait a moment; raises `BrokerUnavailableError` with `text` when the time is up or the consumer closes."""
        if self._closing.is_set():
            raise BrokerUnavailableError(f"{text}; closed while waiting for the broker at {self.servers!r}")
        if monotonic() >= give_up_at:
            raise BrokerUnavailableError(
                f"{text}; gave up after {RESOLVE_S:.0f} s; check the broker at {self.servers!r}"
            )
        self.pause()

    def pause(self) -> bool:
        """Wait a moment, or until the consumer closes; returns whether it does."""
        return self._closing.wait(ASK_AGAIN_S)


class Logs:
    """Topics, partitions and where their logs start and end.

    Thread safety: the thread that polls the client. A watermark that is asked for while another thread polls the same
    client may never come (librdkafka 2.16).
    """

    def __init__(self, client: Consumer, patience: Patience, faults: Faults, *, is_own: bool = False) -> None:
        """`is_own`: nobody else has the client, which is served and closed here."""
        self._client = client
        self._patience = patience
        self._faults = faults
        self._is_own = is_own

    def serve(self) -> None:
        """Call now and then: a client of its own has errors and logs to tell."""
        if self._is_own:
            self._client.poll(0)

    def close(self) -> None:
        """Ask no more."""
        if self._is_own:
            self._client.close()

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Where the log starts and ends; raises `PeerError` when that cannot be learned."""

        def ask(timeout_s: float) -> tuple[int, int]:
            bounds: tuple[int, int] = self._client.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=timeout_s
            )
            return bounds

        low, high = self._ask_leader(topic, f"the log of {topic}-{partition}", ask)
        if low == OFFSET_INVALID:
            raise PeerError(f"the leader of {topic}-{partition} does not say where its log starts (it ends at {high})")
        return low, high

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        """The first offset of this time on, None where there is none; raises `PeerError` when it cannot be learned."""

        def ask(timeout_s: float) -> int:
            (found,) = self._client.offsets_for_times([TopicPartition(topic, partition, time_ms)], timeout=timeout_s)
            if found.error is not None:
                raise KafkaException(found.error)
            return int(found.offset)

        found = self._ask_leader(topic, f"the offset of {topic}-{partition} by time", ask)
        return found if found >= 0 else None

    def _ask_leader(self, topic: str, what: str, ask: Callable[[float], T]) -> T:
        """Ask until the answer comes. librdkafka asks the leader that it knows of, and goes on asking a dead one."""
        began, give_up_at = monotonic(), self._patience.give_up_at()
        while True:
            try:
                return ask(min(max(LEAST_ANSWER_S, (monotonic() - began) / 4), ANSWER_S))
            except KafkaException as raised:
                error = error_of(raised)
            if error.code() in NO_PARTITION and monotonic() >= began + MISSING_S:
                raise MissingError(f"{what} cannot be read: {describe(error)}", topic)
            self._patience.ask_again(error, give_up_at, what)
            try:
                learn_leaders(self._client, topic, LEAST_ANSWER_S)
            except KafkaException as raised:
                self._patience.ask_again(error_of(raised), give_up_at, what)

    def partitions(self, topics: Iterable[str]) -> list[tuple[str, int]]:
        """All partitions of these topics; an entry that begins with `^` stands for the topics that it matches."""
        known = self.metadata()
        return [(topic, number) for topic in matching(topics, list(known)) for number in known[topic].partitions]

    def metadata(self, topic: str | None = None) -> dict[str, Any]:
        """All topics; `topic` is one that may be told of by name alone: it raises `PeerError` where this user may not
        see it. Raises `BrokerUnavailableError` when no broker answers in time."""
        known = self._known()[0]
        if topic is not None:
            self._check_may_see(topic, known)
        return known

    def cluster_id(self) -> str:
        """The cluster's id. Raises `BrokerUnavailableError` when no broker answers in time."""
        return self._known()[1]

    def _known(self) -> tuple[dict[str, Any], str]:
        began = monotonic()
        give_up_at = began + FIRST_ANSWER_S
        while True:
            now = monotonic()  # a refusal is told after the first attempt; what is slow has more time with each
            timeout_s = max(min(give_up_at - now, max(LEAST_ANSWER_S, now - began)), ASK_AGAIN_S)
            try:
                found = self._client.list_topics(timeout=timeout_s)
            except KafkaException as raised:
                error = error_of(raised)
            else:
                self._faults.refusal = None
                return found.topics, str(found.cluster_id)
            self._client.poll(0)  # serves the error callback, which knows more
            self._faults.raise_failure()
            if self._faults.refusal is not None:
                raise BrokerUnavailableError(f"{self._patience.servers!r}: {self._faults.refusal}")
            if error.code() not in PASSING or monotonic() >= give_up_at or self._patience.pause():
                raise BrokerUnavailableError(
                    f"no Kafka broker answered at {self._patience.servers!r} within {FIRST_ANSWER_S:.0f} s "
                    f"({self._faults.last or describe(error)}): check {self._patience.setting}, and that the broker "
                    "runs"
                )

    def check(self, topics: Collection[str], partitions: Iterable[tuple[str, int]], option: str) -> int:
        """How many partitions these topics have. Raises `UsageError` for what is not there: a topic named, or one of
        `partitions`, which come of `option`."""
        known = self.metadata()
        for topic in topics:
            if is_pattern(topic):
                continue  # topics that match may be made later
            self._check_may_see(topic, known)
            if topic not in known or known[topic].error is not None:
                reason = f" ({describe(known[topic].error)})" if topic in known and known[topic].error else ""
                raise UsageError(
                    f"topic {topic!r} does not exist at {self._patience.servers}{reason}: "
                    "create it, or correct its name"
                )
        for topic, partition in partitions:
            found = known[topic].partitions if topic in known else {}
            if partition not in found:
                raise UsageError(f"{option}: {topic!r} has no partition {partition}; it has {len(found)}")
        return sum(len(known[topic].partitions) for topic in matching(topics, list(known)))

    def _check_may_see(self, topic: str, known: Container[str]) -> None:
        """Raises `PeerError` where the broker does not tell this user whether a topic is there."""
        give_up_at = self._patience.give_up_at()
        is_seen = topic in known
        while not is_seen:
            try:
                check_may_see(self._client, topic, ANSWER_S)
                is_seen = True
            except KafkaException as raised:
                self._patience.ask_again(error_of(raised), give_up_at, f"topic {topic!r} at {self._patience.servers}")

    def check_outputs(self, topics: Iterable[str]) -> None:
        """Raises `UsageError` for a topic to produce to that is not there."""
        known = self.metadata()
        for topic in topics:
            self._check_may_see(topic, known)
            if topic not in known:
                raise UsageError(
                    f"topic {topic!r}, which the pipeline produces to, does not exist at {self._patience.servers}: "
                    f"{way_out(topic)}"
                )


def matching(topics: Iterable[str], known: Sequence[str]) -> list[str]:
    """The names in `topics`, with its regular expressions replaced by the known topics that they match."""
    named = list(topics)
    found = dict.fromkeys(topic for topic in named if not is_pattern(topic))
    for expression in filter(is_pattern, named):
        found |= dict.fromkeys(sorted(name for name in known if matches(expression, name)))
    return list(found)
