"""`Admin`: questions to a broker about topics, groups, committed offsets and log ends; topics are made and deleted.

The idea: each question is one method with one timeout and a plain typed answer; failures are mapped in `questions`.
Only APIs that Apache Kafka and the embedded broker both have are used (no DescribeTopics).

What asks a group's coordinator goes ways around the client's newer calls: when the coordinator's connection drops or
its answer is late, `describe_consumer_groups` and `list_consumer_group_offsets` abort the whole process on an assertion
(librdkafka #4605, #3663; still so in 2.16).
"""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # exported untyped
    AdminClient,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from keylane.errors import UsageError
from keylane.kafka import exact
from keylane.kafka.clients import Consumer
from keylane.kafka.faults import NO_PARTITION, NOT_ALLOWED, client_of, error_of
from keylane.kafka.group_descriptions import described_by_admin, described_by_list, no_group, state_name
from keylane.kafka.logs import matching
from keylane.kafka.places import SERVERS, are_apart, for_groups, for_records
from keylane.kafka.questions import LastError, Questions
from keylane.kafka.questions import RefusedError as RefusedError  # whoever asks has it from here
from keylane.kafka.settings import CONSUMER_ONLY, MEMBER_DEFAULTS, PRODUCER_ONLY
from keylane.kafka.share_groups import share_groups
from keylane.kafka.topics import check_may_see, described
from keylane.pipeline import MAX_TOPIC_NAME, TRACKING_SETTINGS
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping
    from concurrent.futures import Future

    from keylane.kafka.group_descriptions import GroupDescription, Partition
    from keylane.kafka.topics import TopicDescription

logger = logger_of("keylane.kafka")

T = TypeVar("T")

TIMEOUT_MS = 10_000
"""How long one question waits for its answer: a broker that starts, or elects a leader, is waited for; where other
brokers answer, up to three times as long."""

_GRACE_S = 1.0
"""What the client may take beyond its own timeout before its future is given up."""

NO_TOPIC_ID = "A" * 22
"""Kafka's zero id, in its base 64."""

_NO_GROUP = "keylane-admin"
"""A consumer needs a group's name, also one that only asks for offsets by time; it joins nothing."""

_LOG_CRITICAL = "2"
"""librdkafka's log level: what goes wrong is in the errors; its lines about each attempt to connect are not wanted."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A consumer group as the list of groups has it."""

    group: str
    state: str
    """Kafka's name in lower case: stable, empty, preparing_rebalance, completing_rebalance, dead."""
    protocol: str
    """`classic` or `consumer` (KIP-848)."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group has committed for a partition."""

    offset: int
    metadata: str
    """As it was committed; `keylane.offsets.decode` reads an offset map."""
    leader_epoch: int = -1
    """Of the newest record that whoever committed had read; -1 when the commit has none."""


class LedOffset(NamedTuple):
    """An offset of a log, as its leader has told it."""

    offset: int
    leader_epoch: int
    """-1: it did not say."""


@dataclass(frozen=True, slots=True)
class _Offset:
    """An offset to commit."""

    name: Partition
    offset: int
    metadata: str = ""
    leader_epoch: int = -1


ANY = (("__consumer_offsets", 0),)
"""A partition to ask a group's coordinator about, which looks first whether the user may use the group."""


class Admin:
    """Asks the brokers at `kafka["bootstrap.servers"]`; settings of consumers and producers in the dict are left out.
    What is asked about groups is asked at `offsets.servers`, where there are any.

    Raises `UsageError` for settings that librdkafka refuses. Every method raises `BrokerUnavailableError` when no
    broker answers within the timeout, and `PeerError`, with the broker's words, when one refuses. Thread safety: any
    thread.
    """

    def __init__(self, kafka: Mapping[str, Any], *, timeout_ms: int = TIMEOUT_MS) -> None:
        if not kafka.get(SERVERS):
            raise UsageError("kafka['bootstrap.servers'] is missing: give HOST:PORT")
        self._kafka = kafka
        self._timeout_ms = timeout_ms
        self._settings, self._questions = _asker(for_records(kafka), timeout_ms)
        self._ask = self._questions.ask
        self._group_settings, self._group_questions = (
            _asker(for_groups(kafka), timeout_ms) if are_apart(kafka) else (self._settings, self._questions)
        )
        self._ask_group = self._group_questions.ask
        self._consumers: dict[str, Consumer] = {}
        self._consumers_lock = threading.Lock()

    @property
    def _client(self) -> AdminClient:
        return self._questions.client

    @property
    def _group_client(self) -> AdminClient:
        return self._group_questions.client

    @cached_property
    def at_brokers(self) -> Admin:
        """Who asks the brokers about groups too, wherever the offset servers are."""
        return Admin(for_records(self._kafka), timeout_ms=self._timeout_ms) if are_apart(self._kafka) else self

    # --- topics ---

    def topics(self, named: Iterable[str] = ()) -> dict[str, int]:
        """The partition count of every topic, internal ones included. Raises `RefusedError` for one of `named` of which
        the broker does not tell this user whether it is there: a list of all topics leaves such ones out."""
        return {one.name: len(one.partitions) for one in self.describe_topics(named)}

    def describe_topics(self, named: Iterable[str] = ()) -> list[TopicDescription]:
        """Every topic with its partitions, internal ones included, by name. Raises `RefusedError` as `topics` does."""
        known = self._ask("list the topics", lambda timeout_s: self._client.list_topics(timeout=timeout_s)).topics
        for topic in dict.fromkeys(named):
            if topic not in known and len(topic) <= MAX_TOPIC_NAME:  # no longer name is a topic's, or can be asked for
                self._ask(f"look for the topic {topic!r}", partial(check_may_see, self._client, topic))
        return described(known)

    def topic_configs(self, topic: str) -> dict[str, str]:
        """The configs that the topic was given; for others the broker's hold."""
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {name: value for name, value, source in self._topic_settings(topic) if source == own}

    def topic_settings(self, topic: str) -> dict[str, str]:
        """All configs that hold for the topic, wherever they come from."""
        return {name: value for name, value, _ in self._topic_settings(topic)}

    def _topic_settings(self, topic: str) -> list[tuple[str, str, int]]:
        """Name, value and source of each, by name."""

        def attempt(timeout_s: float) -> Any:
            resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
            (future,) = self._client.describe_configs([resource], request_timeout=timeout_s).values()
            return _answer(future, timeout_s)

        found = self._ask(f"describe the configs of topic {topic!r}", attempt).values()
        return sorted((one.name, one.value, one.source) for one in found)

    def cluster_id(self) -> str:
        """The cluster's id; empty where the brokers tell none."""

        def attempt(timeout_s: float) -> Any:
            return self._client.list_topics(timeout=timeout_s).cluster_id

        return str(self._ask("read the cluster's id", attempt) or "")

    def cluster(self, topic: str) -> tuple[str, dict[int, tuple[str, int]]]:
        """The cluster's id, and host and port of the brokers that are alive, by their ids; `topic` is any topic."""
        found = self._ask("list the brokers", lambda timeout_s: self._client.list_topics(topic, timeout=timeout_s))
        return str(found.cluster_id or ""), {id_: (str(one.host), one.port) for id_, one in found.brokers.items()}

    def topic_id(self, topic: str) -> str:
        """The id of a topic, which it keeps until it is deleted, in Base64.
        Kafka's tools write - and _ in it for + and /. Empty where the brokers know none (before KIP-516)."""

        def attempt(timeout_s: float) -> Any:
            futures = self._client.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)
            return _answer(futures[topic], timeout_s)

        found = str(self._ask(f"describe topic {topic!r}", attempt).topic_id)
        return "" if found == NO_TOPIC_ID else found

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The same for several topics in one question, of those that are there and have one."""

        def attempt(timeout_s: float) -> dict[str, str]:
            futures = self._client.describe_topics(TopicCollection(sorted(topics)), request_timeout=timeout_s)
            found = {name: _id_of(future, timeout_s) for name, future in futures.items()}
            return {name: one for name, one in found.items() if one}

        return self._ask("describe the topics", attempt)

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
        known = self.topics() if partitions else {}
        new = {
            name: NewTopic(name, count, replication_factor, config=dict(config or {}))
            for name, count in partitions.items()
            if name not in known
        }

        def send(names: list[str], timeout_s: float) -> dict[str, Future[None]]:
            return self._client.create_topics([new[name] for name in names], request_timeout=timeout_s)

        return set(self._change_topics("create", list(new), send, {KafkaError.TOPIC_ALREADY_EXISTS}))

    def add_partitions(self, topic: str, count: int) -> None:
        """Have a topic so many partitions, unless it has them already."""

        def attempt(timeout_s: float) -> None:
            wanted = [NewPartitions(topic, count)]
            try:
                _answer(self._client.create_partitions(wanted, request_timeout=timeout_s)[topic], timeout_s)
            except KafkaException as raised:
                if error_of(raised).code() != KafkaError.INVALID_PARTITIONS:  # others have added them
                    raise

        self._ask(f"add partitions to the topic {topic!r}", attempt)

    def delete_topics(self, topics: Iterable[str]) -> None:
        """Delete topics, and what groups have committed in them; one that does not exist is passed over."""

        def send(names: list[str], timeout_s: float) -> dict[str, Future[None]]:
            return self._client.delete_topics(names, request_timeout=timeout_s)

        self._change_topics("delete", list(topics), send, NO_PARTITION)

    def _change_topics(
        self,
        verb: str,
        names: list[str],
        send: Callable[[list[str], float], dict[str, Future[None]]],
        is_so: Container[int],
    ) -> list[str]:
        """Returns those that we changed. All are sent in one request, and what has no answer again, alone: where it is
        so by then, that is by the request before."""
        futures = dict(send(names, self._questions.timeout_s)) if names else {}  # the client goes on with its own

        def attempt(name: str, timeout_s: float) -> bool:
            first = futures.pop(name, None)
            try:
                _answer(first or send([name], timeout_s)[name], timeout_s)
            except KafkaException as raised:
                if error_of(raised).code() not in is_so:
                    raise
                return first is None
            return True

        return [name for name in names if self._ask(f"{verb} the topic {name!r}", partial(attempt, name))]

    def log_ends(self, partitions: Iterable[Partition], *, read_committed: bool) -> dict[Partition, int | None]:
        """The log end offset of each partition (the next offset to be written); None for one that does not exist.

        With `read_committed`, the end of what a consumer with that isolation level may read: below the first record of
        a transaction that is open.
        """
        return _numbers(self.led_log_ends(partitions, read_committed=read_committed))

    def led_log_ends(
        self, partitions: Iterable[Partition], *, read_committed: bool
    ) -> dict[Partition, LedOffset | None]:
        """The same, each with the epoch of the leader that has answered."""
        level = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        specs = {name: OffsetSpec.latest() for name in partitions}  # type: ignore[no-untyped-call]
        return self._offsets("read the log ends", specs, level)

    def log_starts(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        """The log start offset of each partition (the first that can be read); None for one that does not exist."""
        specs = {name: OffsetSpec.earliest() for name in partitions}  # type: ignore[no-untyped-call]
        return _numbers(self._offsets("read the log starts", specs))

    def offsets_at(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """The first offset at or after a time (milliseconds since the epoch); None for a partition with no such record,
        and for one that does not exist.

        Of all records, whatever becomes of their transactions: with only the committed ones asked for, "none" would
        also be the answer where the first such record is in, or behind, a transaction that is open.
        """
        counts = self.topics() if times else {}
        asked = [TopicPartition(topic, one, time) for (topic, one), time in times.items() if one < counts.get(topic, 0)]
        # By a consumer: what the admin client gives for "none" it also gives where no broker answers.
        consumer = self._consumer_of(_NO_GROUP, {**self._settings, "isolation.level": "read_uncommitted"})

        def attempt(timeout_s: float) -> list[TopicPartition]:
            consumer.list_topics(timeout=timeout_s)  # it asks the leaders that it knows, and they may have moved
            answered = consumer.offsets_for_times(asked, timeout=timeout_s)
            for one in answered:
                if one.error is not None and one.error.code() not in NO_PARTITION:
                    raise KafkaException(one.error)
            return answered

        answered = self._ask("look for offsets by time", attempt) if asked else []
        found = {(one.topic, one.partition): one.offset for one in answered if one.error is None and one.offset >= 0}
        return dict.fromkeys(times) | found

    def _offsets(
        self,
        what: str,
        specs: Mapping[Partition, OffsetSpec],
        level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[Partition, LedOffset | None]:
        counts = self.topics() if specs else {}  # for topics that are all unknown, the client finds no leader, ever
        asked = {TopicPartition(*name): spec for name, spec in specs.items() if name[1] < counts.get(name[0], 0)}

        def attempt(timeout_s: float) -> dict[Partition, LedOffset | None]:
            futures = self._client.list_offsets(asked, isolation_level=level, request_timeout=timeout_s)
            try:
                return {(one.topic, one.partition): _offset(future, timeout_s) for one, future in futures.items()}
            except KafkaException as raised:
                if error_of(raised).code() == KafkaError.UNKNOWN_LEADER_EPOCH:
                    # The log was put back to an older copy. The client keeps the latest epoch that it has heard of, and
                    # asks with that for ever; a new one has heard of none.
                    self._questions.client = client_of(AdminClient, self._settings)
                raise

        return dict.fromkeys(specs) | (self._ask(what, attempt) if asked else {})

    def delete_records(self, before: Mapping[Partition, int]) -> dict[Partition, int]:
        """Delete what each partition has below an offset; returns where their logs start then. Raises `PeerError` when
        a broker refuses a partition; others may be deleted by then."""
        if not before:
            return {}
        wanted = [TopicPartition(*name, offset) for name, offset in before.items()]

        def attempt(timeout_s: float) -> dict[Partition, int]:
            futures = self._client.delete_records(wanted, request_timeout=timeout_s)
            return {
                (one.topic, one.partition): int(_answer(future, timeout_s).low_watermark)
                for one, future in futures.items()
            }

        return self._ask("delete records", attempt)

    # --- groups ---

    def groups(self) -> list[GroupListing]:
        """Every consumer group that the brokers know, by name. Raises `PeerError` when one of the brokers fails."""

        def attempt(timeout_s: float) -> Any:
            listing = _answer(self._group_client.list_consumer_groups(request_timeout=timeout_s), timeout_s)
            if listing.errors:
                raise KafkaException(listing.errors[0])
            return listing.valid

        valid = self._ask_group("list the groups", attempt)
        found = [GroupListing(one.group_id, state_name(one.state), str(one.type.name).lower()) for one in valid]
        return sorted(found, key=lambda one: one.group)

    def share_groups(self) -> dict[str, str]:
        """The state of each share group (KIP-932), by name; none where they cannot be asked for."""
        return dict(sorted(share_groups(self._kafka).items()))

    def describe_group(self, group: str) -> GroupDescription:
        """State, coordinator and members of a group; `dead`, without members, when it does not exist. Raises
        `RefusedError` where the coordinator does not tell this user."""
        _check_name(group)
        found = self._ask_group(f"describe the group {group!r}", partial(self._list_group, group))
        for one in found:
            if one.state not in ("", "Dead"):
                return described_by_list(one)
        if any(one.group == group and one.protocol == "consumer" for one in self.groups()):
            return self._describe_new_group(group)
        # A list of groups leaves out those that this user may not see: the coordinator tells.
        self._ask_coordinator(
            f"describe the group {group!r}", group, lambda asks, for_s: exact.committed(asks, ANY, for_s)
        )
        return no_group(group)

    def _list_group(self, group: str, timeout_s: float) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # its replacement aborts the process, see above
            found: list[Any] = self._group_client.list_groups(group, timeout=timeout_s)
        for one in found:
            if one.error is not None:
                raise KafkaException(one.error)
        return found

    def _describe_new_group(self, group: str) -> GroupDescription:
        """A group of KIP-848's protocol, for which the client has no other way."""

        def attempt(timeout_s: float) -> Any:
            found = self._group_client.describe_consumer_groups([group], request_timeout=timeout_s)
            return _answer(found[group], timeout_s)

        return described_by_admin(self._ask_group(f"describe the group {group!r}", attempt))

    def committed_offsets(self, group: str, topics: Iterable[str] | None = None) -> dict[Partition, CommittedOffset]:
        """What the group has committed, for every partition of these topics (None: of all; an entry that begins with
        `^` stands for those that it matches) that exist, by topic and partition."""
        _check_name(group)
        counts = self.topics()
        wanted = counts if topics is None else matching(topics, list(counts))
        asked = [(topic, one) for topic in wanted for one in range(counts.get(topic, 0))]
        if not asked:
            return {}

        def attempt(consumer: Consumer, timeout_s: float) -> list[exact.GroupOffset]:
            answered = exact.committed(consumer, asked, timeout_s)
            for one in answered:
                if one.error is not None and one.error.code() not in NO_PARTITION:
                    raise KafkaException(one.error)
            return answered

        answered = self._ask_coordinator(f"read the committed offsets of the group {group!r}", group, attempt)
        found = {
            (one.topic, one.partition): CommittedOffset(one.offset, one.metadata, one.leader_epoch)
            for one in answered
            if one.error is None and one.offset >= 0
        }
        return dict(sorted(found.items()))

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[Partition, int],
        metadata: Mapping[Partition, str] | None = None,
        leader_epochs: Mapping[Partition, int] | None = None,
    ) -> None:
        """Commit for a group without members, each with its metadata and leader epoch (default: none). Raises
        `PeerError` when the coordinator refuses a partition (for a group that has members, all of them); the others are
        committed then."""
        _check_name(group)
        texts, epochs = metadata or {}, leader_epochs or {}
        wanted = [_Offset(name, offset, texts.get(name, ""), epochs.get(name, -1)) for name, offset in offsets.items()]
        if not wanted:
            return

        def attempt(consumer: Consumer, timeout_s: float) -> None:
            answered = exact.commit_now(consumer, wanted, timeout_s)
            for error in (one.error for one in answered if one.error is not None):
                raise KafkaException(error)

        self._ask_coordinator(f"commit offsets of the group {group!r}", group, attempt)

    def delete_group(self, group: str) -> None:
        """Delete a group without members, and its offsets. Raises `PeerError` when it has members or is not there."""
        _check_name(group)

        def attempt(timeout_s: float) -> None:
            _answer(self._group_client.delete_consumer_groups([group], request_timeout=timeout_s)[group], timeout_s)

        self._ask_group(f"delete the group {group!r}", attempt)

    def delete_offsets(self, group: str, partitions: Iterable[Partition]) -> None:
        """Delete what a group has committed for these partitions. Raises `PeerError` when the coordinator refuses one
        (a member subscribes to its topic); the others are deleted then."""
        _check_name(group)
        wanted = list(partitions)
        if not wanted:
            return

        def attempt(consumer: Consumer, timeout_s: float) -> None:
            answered = exact.delete(consumer, group, wanted, timeout_s)
            for error in (one.error for one in answered if one.error is not None):
                raise KafkaException(error)

        self._ask_coordinator(f"delete offsets of the group {group!r}", group, attempt)

    def _ask_coordinator(self, what: str, group: str, attempt: Callable[[Consumer, float], T]) -> T:
        """Ask by a consumer of the group's. One that may not look for its coordinator would wait for it, and tells why
        as an event of its own."""
        consumer = self._consumer_of(group)

        def asked(timeout_s: float) -> T:
            try:
                return attempt(consumer, timeout_s)
            except KafkaException as raised:
                event = consumer.poll(0)
                error = None if event is None else event.error()
                if error is None or error.code() not in NOT_ALLOWED:
                    raise
                raise KafkaException(error) from raised

        answer = self._ask_group(what, asked)
        consumer.poll(0)  # serves its callbacks; it has no subscription, so no record comes
        return answer

    def _consumer_of(self, group: str, given: Mapping[str, object] | None = None) -> Consumer:
        """A consumer that asks the group's coordinator and never joins. Kept: only its first answer takes long.
        `given`: the settings of one that asks something else."""
        with self._consumers_lock:
            if group not in self._consumers:
                own = {"group.id": group, "enable.auto.commit": False}
                settings = MEMBER_DEFAULTS | dict(given or self._group_settings) | own
                self._consumers[group] = client_of(Consumer, settings)
            return self._consumers[group]


def _asker(kafka: Mapping[str, object], timeout_ms: int) -> tuple[dict[str, object], Questions]:
    """Who asks these servers, and the settings of its client. Raises `UsageError`."""
    dropped = CONSUMER_ONLY | PRODUCER_ONLY | TRACKING_SETTINGS.keys()
    settings: dict[str, object] = {"client.id": "keylane", "log_level": _LOG_CRITICAL, "logger": logger}
    # Its only connection may be to a node that hangs: that one is dropped while there is time to ask another one.
    settings["socket.timeout.ms"] = max(1_000, timeout_ms // 3)
    settings |= {name: value for name, value in kafka.items() if name not in dropped}
    last_error = LastError()
    settings |= {"error_cb": last_error.remember, "allow.auto.create.topics": False}  # who asks makes no topic
    client = client_of(AdminClient, settings)
    return settings, Questions(client, last_error, str(kafka[SERVERS]), timeout_ms / 1000)


def _answer(future: Future[Any], timeout_s: float) -> Any:
    """What the client's future holds; raises `KafkaException`."""
    try:
        return future.result(timeout_s + _GRACE_S)
    except FutureTimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer")) from None  # noqa: SLF001 - the client's name


def _id_of(future: Future[Any], timeout_s: float) -> str:
    """Empty for a topic that is not there, or of which the broker knows no id."""
    try:
        found = str(_answer(future, timeout_s).topic_id)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return ""
        raise
    return "" if found == NO_TOPIC_ID else found


def _numbers(offsets: Mapping[Partition, LedOffset | None]) -> dict[Partition, int | None]:
    return {name: None if one is None else one.offset for name, one in offsets.items()}


def _offset(future: Future[Any], timeout_s: float) -> LedOffset | None:
    try:
        found = _answer(future, timeout_s)
    except KafkaException as raised:
        if error_of(raised).code() in NO_PARTITION:
            return None
        raise
    if found.offset < 0:  # what the client makes of a broker that does not answer in time
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))  # noqa: SLF001 - the client's name
    return LedOffset(found.offset, -1 if found.leader_epoch is None else found.leader_epoch)


def _check_name(group: str) -> None:
    if not group:
        raise UsageError("the group's id is empty: give the group.id of a consumer group")
