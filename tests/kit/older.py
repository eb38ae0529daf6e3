"""What an older keylane left on disk (`tests/fixtures`): unpacked, and looked at through Kafka's protocol.

The idea: `look` asks the older broker when the fixture is written, and today's when it is opened, and must be told the
same. So it is clients' code, but for the metadata of commits, which confluent-kafka cannot be trusted with (ADR 7).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import archives
from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]

from keylane.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Sequence

FIXTURES = Path(__file__).parents[1] / "fixtures"
COMMIT = "ac175ed"
"""Of this repository: what wrote them, by `tests/fixtures/write.py`."""
SOURCE = "e9e2c20"
"""The commit whose code is kept (docs/adr/0082): the first with offset servers for members of each protocol."""
TIMEOUT_S = 30
DYNAMIC_TOPIC_CONFIG = 1
"""Kafka's number for a topic's own setting."""
Place = tuple[str, int]
WAITING = "ledger"
"""The group with offsets in a transaction that is open: nobody is told them before it ends."""


def unpack(name: str, folder: Path) -> Path:
    """A folder of the fixture, below `folder`."""
    archives.unpack(FIXTURES / COMMIT / f"{name}.tar.gz", folder)
    return folder / name


def unpack_source(folder: Path) -> Path:
    """The code of `SOURCE`, without demo and Spark, below `folder`; the path to import it from."""
    archives.unpack(FIXTURES / SOURCE / "source.tar.xz", folder / SOURCE)
    return folder / SOURCE / "src"


def written() -> dict[str, Any]:
    """What the fixture holds, as those who wrote it saw it."""
    found: dict[str, Any] = json.loads((FIXTURES / COMMIT / "written.json").read_text())
    return found


def look(servers: str) -> dict[str, Any]:
    """All that a client can ask of a broker's topics and groups, as JSON has it; of `WAITING` not the offsets."""
    admin = AdminClient({"bootstrap.servers": servers})
    topics = {name: one for name, one in admin.list_topics(timeout=TIMEOUT_S).topics.items() if name[:2] != "__"}
    places = [(name, index) for name, topic in sorted(topics.items()) for index in topic.partitions]
    spec: Any = OffsetSpec
    start, end = _offsets(admin, places, spec.earliest()), _offsets(admin, places, spec.latest())
    stable = _offsets(admin, places, spec.latest(), IsolationLevel.READ_COMMITTED)
    everything = records(servers, places, "read_uncommitted")
    shown = records(servers, places, "read_committed")
    seen: dict[str, Any] = {"topics": {}, "groups": {}}
    for name, topic in sorted(topics.items()):
        seen["topics"][name] = {
            "settings": _settings(admin, name),
            "partitions": [
                {
                    "start": start[name, index],
                    "end": end[name, index],
                    "stable": stable[name, index],
                    "all": everything[name, index],
                    "committed": [one[0] for one in shown[name, index]],
                }
                for index in sorted(topic.partitions)
            ],
        }
    listed = admin.list_consumer_groups().result(TIMEOUT_S).valid
    groups = sorted(one.group_id for one in listed)
    members = {name: one.result(TIMEOUT_S).members for name, one in admin.describe_consumer_groups(groups).items()}
    for group in groups:
        seen["groups"][group] = {
            "members": sorted(str(one.group_instance_id) for one in members[group]),
            "committed": {} if group == WAITING else committed(servers, group),
        }
    found: dict[str, Any] = json.loads(json.dumps(seen))
    return found


def committed(servers: str, group: str) -> dict[str, tuple[int, str]]:
    """Offset and metadata, by `topic-partition`."""
    found = Admin({"bootstrap.servers": servers}).committed_offsets(group)
    return {f"{topic}-{partition}": (one.offset, one.metadata) for (topic, partition), one in sorted(found.items())}


def records(servers: str, places: Sequence[Place], isolation: str) -> dict[Place, list[list[Any]]]:
    """Partitions from their starts to their ends."""
    reader = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
        }
    )
    found: dict[Place, list[list[Any]]] = {place: [] for place in places}
    open_ends = set(places)
    try:
        reader.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
        while open_ends:
            message = reader.poll(TIMEOUT_S)
            assert message is not None, f"{open_ends}: nothing in {TIMEOUT_S} s"
            place = (str(message.topic()), message.partition() or 0)
            if (error := message.error()) is None:
                found[place].append(_record(message))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                open_ends.discard(place)
        return found
    finally:
        reader.close()


def _record(message: Message) -> list[Any]:
    key, value = message.key(), message.value()
    headers = [[name, None if text is None else _text(text)] for name, text in _headers(message)]
    return [message.offset(), list(message.timestamp()), key and _text(key), value and _text(value), headers]


def _headers(message: Message) -> list[tuple[str, Any]]:
    headers: Any = message.headers()
    return list(headers or ())


def _text(data: Any) -> str:
    return bytes(data).decode()


def _settings(admin: AdminClient, topic: str) -> dict[str, str]:
    """The topic's own."""
    asked = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)])
    (entries,) = (one.result(TIMEOUT_S) for one in asked.values())
    return {one.name: one.value for one in entries.values() if one.source == DYNAMIC_TOPIC_CONFIG}


def _offsets(
    admin: AdminClient,
    places: Sequence[Place],
    spec: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[Place, int]:
    asked = admin.list_offsets({TopicPartition(*place): spec for place in places}, isolation_level=isolation)
    return {(one.topic, one.partition): answer.result(TIMEOUT_S).offset for one, answer in asked.items()}
