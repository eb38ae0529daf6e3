"""The topic beside an input topic in which its steps are kept: its name, what it has to be, and how it is made.

What is wanted, and why: nothing goes by age or by key, since an answer was paid for and is needed until its record is
complete; as many partitions as the input, since who owns one owns the other; as many replicas, since both are lost
alike.
"""

from __future__ import annotations

import hashlib
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.errors import PeerError, UsageError
from keylane.kafka.admin import Admin
from keylane.kafka.faults import NOT_ALLOWED
from keylane.kafka.fenced_log import NAMES, FencedLog, LogClient
from keylane.kafka.places import for_records
from keylane.kafka.questions import RefusedError
from keylane.pipeline import MAX_TOPIC_NAME
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from keylane.kafka.topics import TopicDescription

PREFIX = "__keylane-steps-"
"""Of an internal topic, which no pattern matches."""
DIGEST_CHARACTERS = 10
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
LEAST_BATCH_BYTES = 16_384
"""An answer goes in pieces, each with up to four kilobytes beside it."""
KNOWN_S = 10.0
"""How long it may take until all brokers know a topic that was just made, or its new partitions."""
AGAIN_S = 0.1
ANSWER_MS = 60_000
"""How long an assignment waits for a broker that restarts, as it may for a start."""


class StepTopic(NamedTuple):
    """What its owners go by."""

    name: str
    partitions: int
    max_batch_bytes: int
    topic_id: str
    """Empty where the brokers know none."""


def name_of(group: str, topic: str) -> str:
    """Of the topic with a group's steps for the records of another: one that Kafka takes, whatever the two are called.
    The digest tells apart what looks alike, and what Kafka takes for alike (`.` and `_`)."""
    digest = hashlib.sha256(f"{len(group)}:{group}{topic}".encode()).hexdigest()[:DIGEST_CHARACTERS]
    readable = re.sub(r"[^a-zA-Z0-9-]", "-", f"{group}-{topic}")
    return f"{PREFIX}{readable[: MAX_TOPIC_NAME - len(PREFIX) - len(digest) - 1]}-{digest}"


def faults(settings: Mapping[str, str]) -> list[str]:
    """What is wrong with a topic of these settings, each with the way out."""
    found = []
    policy = settings.get("cleanup.policy", "")
    if policy != "delete":
        found.append(f"cleanup.policy={policy}: set delete alone, or answers are taken for one another by their keys")
    limits = {name: settings.get(name, "-1") for name in ("retention.ms", "retention.bytes")}
    found += [
        f"{name}={value}: set -1, or answers that were paid for are deleted"
        for name, value in limits.items()
        if int(value) >= 0
    ]
    if (unclean := settings.get("unclean.leader.election.enable", "false")) != "false":
        found.append(f"unclean.leader.election.enable={unclean}: set false, or who lacks answers may lead")
    if (size := int(settings.get("max.message.bytes", str(LEAST_BATCH_BYTES)))) < LEAST_BATCH_BYTES:
        found.append(f"max.message.bytes={size}: set {LEAST_BATCH_BYTES} at least")
    return found


def prepare(admin: Admin, name: str, topic: str) -> StepTopic:
    """The topic `name` for the steps of `topic`, made if it is missing, with as many partitions at least. Raises
    `UsageError` for one that is not safe, and `PeerError`."""
    beside = _described(admin, topic, 1)
    count = len(beside.partitions)
    if name not in admin.topics([name]):
        in_sync = admin.topic_settings(topic).get("min.insync.replicas", "1")
        config = KEPT | {"min.insync.replicas": in_sync}
        admin.create_topics({name: count}, replication_factor=beside.replication_factor, config=config)
    found = _described(admin, name, 1)
    if len(found.partitions) < count:
        admin.add_partitions(name, count)
        found = _described(admin, name, count)
    settings = _settings(admin, name)
    if wrong := faults(settings):
        raise UsageError(f"topic {name!r} cannot keep steps of {topic!r}: {'; '.join(wrong)}")
    size = int(settings.get("max.message.bytes", "1048588"))
    return StepTopic(name, len(found.partitions), size, admin.topic_ids([name]).get(name, ""))


class StepTopics:
    """The topics of a group's steps, of the topics that were prepared. Thread safety: any thread."""

    def __init__(self, kafka: Mapping[str, Any], group: str, name: str | None) -> None:
        """`name`: of the one topic of steps, where the pipeline gives it."""
        self._settings = for_records(kafka)
        self._admin = Admin(self._settings, timeout_ms=ANSWER_MS)
        self._group = group
        self._name = name
        self._known: dict[str, StepTopic] = {}

    def prepare(self, topic: str, partition: int) -> None:
        """Make sure of the topic for this one. Raises `UsageError` and `PeerError`."""
        known = self._known.get(topic)
        if known is None or partition >= known.partitions:
            self._known[topic] = prepare(self._admin, self._name or name_of(self._group, topic), topic)

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        return self._admin.topic_ids(topics)

    def max_batch_bytes(self, topic: str) -> int:
        return self._known[topic].max_batch_bytes

    def connect(self, name: tuple[str, int], call: Callable[[Callable[[], None]], None]) -> FencedLog:
        topic = self._known[name[0]].name
        return FencedLog(self._settings, topic, name[1], f"{topic}-{name[1]}", call)

    def begins(self, topics: Iterable[str]) -> Mapping[tuple[str, int], int]:
        """By partition of these topics, which are prepared: below which offset its log has nothing of use, where nobody
        may delete that. Raises `PeerError`."""
        found: dict[tuple[str, int], int] = {}
        for topic in topics:
            name = self._known[topic].name
            try:
                marks = self._admin.committed_offsets(name, [name])
            except RefusedError as error:
                if error.code not in NOT_ALLOWED:
                    raise
                continue  # who may not ask has marked nothing
            topic_id = self._admin.topic_ids([name]).get(name) if marks else None
            found |= {
                (topic, partition): mark.offset
                for (_, partition), mark in marks.items()
                if topic_id and mark.metadata == topic_id
            }
        return found

    def delete_below(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Who may not delete marks the offsets instead, as those of a group with the name of the topic of steps."""
        try:
            self._admin.delete_records({(self._known[topic].name, one): at for (topic, one), at in offsets.items()})
        except RefusedError as error:
            if error.code not in NOT_ALLOWED:
                raise
            for topic in {topic for topic, _ in offsets}:
                self._mark(self._known[topic], {one: at for (of, one), at in offsets.items() if of == topic})

    def _mark(self, topic: StepTopic, below: Mapping[int, int]) -> None:
        """With the topic's id: of one that is made anew under the name, nothing is true of it."""
        own = {(topic.name, partition): at for partition, at in below.items()}
        self._admin.commit_offsets(topic.name, own, dict.fromkeys(own, topic.topic_id))


def read_log(
    kafka: Mapping[str, Any], topic: str, partition: int, start: int, take: Callable[[bytes, int], int]
) -> None:
    """All that a partition has from this offset on. `take` gets batches, and the offset from which on they are wanted,
    and returns the next one. Raises `PeerError`, and what `take` raises."""
    position, give_up_at = start, time.monotonic() + KNOWN_S
    with LogClient(for_records(kafka)) as client:
        while True:
            found = client.fetch(topic, partition, position)
            error = found if isinstance(found, int) else found.error
            if not isinstance(found, int) and found.error == codes.NONE:
                reached = take(found.records, position)
                if reached >= found.high_watermark:
                    return
                give_up_at = give_up_at if reached == position else time.monotonic() + KNOWN_S
                position = reached
            if time.monotonic() > give_up_at:
                name = NAMES.get(error, str(error))
                raise PeerError(f"topic {topic!r}, partition {partition} cannot be read from {position} on: {name}")


def _described(admin: Admin, name: str, partitions: int) -> TopicDescription:
    """The topic once it has so many. Raises `PeerError`."""
    give_up_at = time.monotonic() + KNOWN_S
    while True:
        for one in admin.describe_topics():
            if one.name == name and len(one.partitions) >= partitions:
                return one
        if time.monotonic() > give_up_at:
            raise PeerError(f"topic {name!r} is not there, or has fewer partitions than {partitions}")
        time.sleep(AGAIN_S)


def _settings(admin: Admin, name: str) -> dict[str, str]:
    """Raises `PeerError`."""
    give_up_at = time.monotonic() + KNOWN_S
    while True:
        try:
            return admin.topic_settings(name)
        except PeerError:  # not every broker knows a topic that was just made
            if time.monotonic() > give_up_at:
                raise
            time.sleep(AGAIN_S)
