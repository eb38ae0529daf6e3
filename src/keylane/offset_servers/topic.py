"""The topic that is the log of committed offsets: made if it is missing, refused by name if it is not safe.

What is wanted, and why (S1, docs/adr/0094): all of the newest commits stay (compacted, and nothing is deleted by age);
what was acknowledged outlives a node (three replicas, two of which have it, and nobody leads who lacks it); a start
reads little behind what is compacted (small segments).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from keylane.errors import PeerError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.kafka.admin import Admin
    from keylane.kafka.topics import TopicDescription

TOPIC = "__keylane_offsets"
PARTITIONS = 50
"""Kafka's own number of `__consumer_offsets`."""
REPLICAS = 3
SEGMENT_BYTES = 16_777_216
"""The newest segment is never compacted, and is read as it is: some 200,000 commits."""
MOST_SEGMENT_BYTES = 104_857_600
"""Kafka's own of `__consumer_offsets`."""
KNOWN_S = 10.0
"""How long it may take until all brokers know a topic that was just made."""
AGAIN_S = 0.2
COMPACTED = {"cleanup.policy": "compact"}
SAFE = COMPACTED | {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "segment.bytes": str(SEGMENT_BYTES),
    "compression.type": "producer",
}


class LogTopic(NamedTuple):
    """What a server goes by."""

    name: str
    partitions: int
    max_message_bytes: int
    delete_retention_ms: int


def faults(settings: Mapping[str, str], replicas: int, *, is_replicated: bool = True) -> list[str]:
    """What is wrong with a topic of these settings, each with the way out."""
    found = []
    policy = settings.get("cleanup.policy", "")
    if policy != "compact":
        found.append(f"cleanup.policy={policy}: set compact alone, or commits are deleted by age")
    if not is_replicated:
        return found
    if replicas < REPLICAS:
        found.append(f"it has {replicas} replicas: give it {REPLICAS}, or commits are lost with a node")
    in_sync = int(settings.get("min.insync.replicas", "1"))
    if in_sync < 2:
        found.append(f"min.insync.replicas={in_sync}: set 2, or what is acknowledged is on one node alone")
    unclean = settings.get("unclean.leader.election.enable", "false")
    if unclean != "false":
        found.append(f"unclean.leader.election.enable={unclean}: set false, or who lacks commits may lead")
    segment = int(settings.get("segment.bytes", "0"))
    if segment > MOST_SEGMENT_BYTES:
        found.append(f"segment.bytes={segment}: set {SEGMENT_BYTES}, or each start reads what is not compacted")
    return found


def prepare(admin: Admin, name: str, partitions: int | None, *, is_replicated: bool) -> LogTopic:
    """The topic as it is, made if it is missing. Raises `UsageError` for one that is not safe, and `PeerError`."""
    if name not in admin.topics([name]):
        admin.create_topics(
            {name: partitions or PARTITIONS},
            replication_factor=REPLICAS if is_replicated else 1,
            config=SAFE if is_replicated else COMPACTED,
        )
    found, settings = _described(admin, name)
    wrong = faults(settings, found.replication_factor, is_replicated=is_replicated)
    if wrong:
        raise UsageError(f"topic {name!r} cannot hold committed offsets: {'; '.join(wrong)}")
    count = len(found.partitions)
    if partitions not in (None, count):
        raise UsageError(
            f"topic {name!r} has {count} partitions, and --partitions says {partitions}: leave it out; the number can "
            "never be changed, since groups are divided by it"
        )
    return LogTopic(
        name, count, int(settings.get("max.message.bytes", "1048588")), int(settings["delete.retention.ms"])
    )


def _described(admin: Admin, name: str) -> tuple[TopicDescription, dict[str, str]]:
    """The topic, and its settings. Raises `PeerError`."""
    give_up_at = time.monotonic() + KNOWN_S
    while True:
        try:
            settings = admin.topic_settings(name)
            for one in admin.describe_topics():
                if one.name == name:
                    return one, settings
            raise PeerError(f"topic {name!r} is not there, though it was")
        except PeerError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(AGAIN_S)
