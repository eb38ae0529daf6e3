"""`Admin`: questions to a broker about topics, groups, committed offsets and log ends, and topic creation.

The idea: each question is one method with one timeout and plain typed answers, and every way in which the client can
fail is mapped here: a broker that does not answer is `BrokerUnavailableError`, one that refuses is `PeerError`. Only
APIs that Apache Kafka and the embedded broker both have are used (no DescribeTopics).
"""

from __future__ import annotations

import logging
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined] # exported untyped

from keylane.errors import BrokerUnavailableError, PeerError, UsageError
from keylane.kafka.faults import describe, error_of
from keylane.kafka.settings import CONSUMER_ONLY, PRODUCER_ONLY
from keylane.options import TRACKING_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Future

logger = logging.getLogger("keylane.kafka")

TIMEOUT_MS = 10_000
"""How long one question waits for its answer: a broker that starts, or elects a leader, is waited for."""

_GRACE_S = 1.0
"""What the client may take beyond its own timeout before its future is given up."""

_LOG_CRITICAL = "2"
"""librdkafka's log level: what goes wrong is in the errors; its lines about each attempt to connect are not wanted."""

_NO_ANSWER = frozenset(
    {
        KafkaError._TIMED_OUT,  # noqa: SLF001 - the client's names for its own errors begin with an underscore
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
    }
)
_NO_PARTITION = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC}  # noqa: SLF001
)

Partition = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A consumer group as the list of groups has it."""

    group: str
    state: str
    """Kafka's name in lower case: stable, empty, preparing_rebalancing, completing_rebalancing, dead, unknown."""
    protocol: str
    """`classic` or `consumer` (KIP-848)."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group and what it is assigned."""

    member_id: str
    client_id: str
    host: str
    group_instance_id: str | None
    """Of a static member; None for a dynamic one."""
    assignment: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, its coordinator and its members. `state` is `dead` for a group that does not exist."""

    group: str
    state: str
    protocol: str
    assignor: str
    """The partition assignor that the members agreed on; empty without members."""
    coordinator: str
    """`host:port`."""
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group has committed for a partition."""

    offset: int
    metadata: str
    """As it was committed; `keylane.offsets.decode` reads an offset map."""


class Admin:
    """Asks the brokers at `kafka["bootstrap.servers"]`; settings of consumers and producers in the dict are left out.

    Raises `UsageError` for settings that librdkafka refuses. Every method raises `BrokerUnavailableError` when no
    broker answers within the timeout, and `PeerError`, with the broker's words, when one refuses.
    """

    def __init__(self, kafka: Mapping[str, Any], *, timeout_ms: int = TIMEOUT_MS) -> None:
        self._timeout_s = timeout_ms / 1000
        self._last_error: str | None = None
        self._servers = str(kafka.get("bootstrap.servers") or "")
        if not self._servers:
            raise UsageError("kafka['bootstrap.servers'] is missing: give HOST:PORT")
        dropped = CONSUMER_ONLY | PRODUCER_ONLY | TRACKING_SETTINGS.keys()
        settings: dict[str, Any] = {"client.id": "keylane", "log_level": _LOG_CRITICAL, "logger": logger}
        settings |= {name: value for name, value in kafka.items() if name not in dropped}
        settings |= {"error_cb": self._remember}
        try:
            self._client = AdminClient(settings)
        except (KafkaException, TypeError, ValueError) as error:
            text = describe(error_of(error)) if isinstance(error, KafkaException) else str(error)
            raise UsageError(f"librdkafka refuses these client settings: {text}") from None

    # --- topics ---

    def topics(self) -> dict[str, int]:
        """The partition count of every topic, internal ones included."""
        try:
            known = self._client.list_topics(timeout=self._timeout_s).topics
        except KafkaException as error:
            raise self._mapped("list the topics", error_of(error)) from None
        return {name: len(topic.partitions) for name, topic in known.items() if topic.error is None}

    def create_topics(
        self,
        partitions: Mapping[str, int],
        *,
        replication_factor: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> set[str]:
        """Create the topics that do not exist, with so many partitions each; returns the names of those created.

        A topic that exists is left as it is, whatever its partition count.
        """
        if not partitions:
            return set()
        wanted = [
            NewTopic(name, count, replication_factor, config=dict(config or {})) for name, count in partitions.items()
        ]
        futures = self._client.create_topics(wanted, request_timeout=self._timeout_s)
        created = set()
        for name, future in futures.items():
            try:
                self._result(f"create the topic {name!r}", future)
            except _RefusedError as refused:
                if refused.code != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
            else:
                created.add(name)
        return created

    def delete_topics(self, topics: Iterable[str]) -> None:
        """Delete topics, and what groups have committed in them; one that does not exist is passed over."""
        names = list(topics)
        if not names:
            return
        for name, future in self._client.delete_topics(names, request_timeout=self._timeout_s).items():
            try:
                self._result(f"delete the topic {name!r}", future)
            except _RefusedError as refused:
                if refused.code not in _NO_PARTITION:
                    raise

    def log_ends(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        """The log end offset of each partition (the next offset to be written); None for one that does not exist."""
        return self._offsets(partitions, OffsetSpec.latest(), "log end")  # type: ignore[no-untyped-call]

    def log_starts(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        """The log start offset of each partition (the first that can be read); None for one that does not exist."""
        return self._offsets(partitions, OffsetSpec.earliest(), "log start")  # type: ignore[no-untyped-call]

    def _offsets(self, partitions: Iterable[Partition], spec: OffsetSpec, what: str) -> dict[Partition, int | None]:
        asked = {TopicPartition(*partition): spec for partition in partitions}
        if not asked:
            return {}
        found: dict[Partition, int | None] = {}
        for one, future in self._client.list_offsets(asked, request_timeout=self._timeout_s).items():
            try:
                found[one.topic, one.partition] = self._result(
                    f"read the {what} of {one.topic}-{one.partition}", future
                ).offset
            except _RefusedError as refused:
                if refused.code not in _NO_PARTITION:
                    raise
                found[one.topic, one.partition] = None
        return found

    # --- groups ---

    def groups(self) -> list[GroupListing]:
        """Every consumer group that the brokers know, by name. Raises `PeerError` when one of the brokers fails."""
        listing = self._result("list the groups", self._client.list_consumer_groups(request_timeout=self._timeout_s))
        if listing.errors:
            raise self._mapped("list the groups", listing.errors[0])
        found = [GroupListing(one.group_id, _name(one.state), _name(one.type)) for one in listing.valid]
        return sorted(found, key=lambda one: one.group)

    def describe_group(self, group: str) -> GroupDescription:
        """State, coordinator and members of a group; `dead`, without members, when it does not exist."""
        _check_name(group)
        futures = self._client.describe_consumer_groups([group], request_timeout=self._timeout_s)
        try:
            found = self._result(f"describe the group {group!r}", futures[group])
        except _RefusedError as refused:
            if refused.code != KafkaError.GROUP_ID_NOT_FOUND:
                raise
            return GroupDescription(group, "dead", "unknown", "", "", ())
        coordinator = f"{found.coordinator.host}:{found.coordinator.port}" if found.coordinator else ""
        members = sorted((_member(one) for one in found.members), key=lambda one: (one.assignment, one.member_id))
        return GroupDescription(
            group, _name(found.state), _name(found.type), found.partition_assignor or "", coordinator, tuple(members)
        )

    def committed_offsets(self, group: str) -> dict[Partition, CommittedOffset]:
        """What the group has committed, for every partition that it has a commit for."""
        _check_name(group)
        asked = [ConsumerGroupTopicPartitions(group)]
        futures = self._client.list_consumer_group_offsets(asked, request_timeout=self._timeout_s)
        found: dict[Partition, CommittedOffset] = {}
        for one in self._result(f"read the committed offsets of the group {group!r}", futures[group]).topic_partitions:
            if one.error is not None:
                what = f"read the committed offset of {one.topic}-{one.partition} in the group {group!r}"
                raise self._mapped(what, one.error)
            if one.offset >= 0:
                found[one.topic, one.partition] = CommittedOffset(one.offset, one.metadata or "")
        return dict(sorted(found.items()))

    # --- failures ---

    def _result(self, what: str, future: Future[Any]) -> Any:
        try:
            return future.result(self._timeout_s + _GRACE_S)
        except KafkaException as error:
            raise self._mapped(what, error_of(error)) from None
        except FutureTimeoutError:
            raise self._no_answer("no answer") from None

    def _mapped(self, what: str, error: KafkaError) -> PeerError:
        if error.code() in _NO_ANSWER:
            return self._no_answer(describe(error))
        return _RefusedError(f"cannot {what} at {self._servers!r}: {describe(error)}", error.code())

    def _no_answer(self, reason: str) -> BrokerUnavailableError:
        self._client.poll(0)  # serves the error callback, which knows more
        why = self._last_error or reason
        return BrokerUnavailableError(
            f"no Kafka broker answered at {self._servers!r} within {self._timeout_s:g} s ({why}): "
            "check the address, and that the broker runs"
        )

    def _remember(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._last_error is None:  # noqa: SLF001 - see above
            self._last_error = describe(error)


class _RefusedError(PeerError):
    """A broker's refusal, with Kafka's code for it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def _check_name(group: str) -> None:
    if not group:
        raise UsageError("the group's id is empty: give the group.id of a consumer group")


def _name(kind: Any) -> str:
    """An enum of the client's as Kafka's name in lower case."""
    return str(kind.name).lower()


def _member(found: Any) -> Member:
    assigned = found.assignment.topic_partitions if found.assignment else []
    return Member(
        found.member_id,
        found.client_id,
        found.host.removeprefix("/"),  # Apache Kafka shows Java's notation
        found.group_instance_id,
        tuple(sorted((one.topic, one.partition) for one in assigned)),
    )
