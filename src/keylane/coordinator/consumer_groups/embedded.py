"""The consumer protocol that is embedded in the classic group protocol: what members say in a JoinGroup, and are given
in a SyncGroup. A consumer group reads and writes it for its members of the classic protocol.

Later versions add fields at the end, so a newer one than the last that is known is read as that one.

Source: `ConsumerProtocolSubscription.json` and `ConsumerProtocolAssignment.json` of Apache Kafka's clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.formats import RecordFormatError
from keylane.wire.primitives import FieldError, FieldReader, array_length, int16, int32, string

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OWNED_VERSION, GENERATION_VERSION, RACK_VERSION = 1, 2, 3
"""Those that brought the field."""
MAX_VERSION = 3
_NO_USER_DATA = int32(-1)


class Subscription(NamedTuple):
    """What a member says of itself."""

    version: int
    topics: tuple[str, ...]
    owned: dict[str, frozenset[int]]
    """The partitions that it has, by topic."""
    rack_id: str | None


def read_subscription(data: bytes) -> Subscription:
    """Raises `RecordFormatError`."""
    reader = FieldReader(data)
    try:
        version = _read_version(reader)
        topics = tuple(reader.string() for _ in reader.items())
        reader.sized_bytes()  # the user data of other assignors
        owned = _read_partitions(reader) if version >= OWNED_VERSION else {}
        if version >= GENERATION_VERSION:
            reader.int32()
        rack_id = reader.nullable_string() if version >= RACK_VERSION else None
    except FieldError as error:
        raise RecordFormatError(f"a subscription of the consumer protocol: {error}") from error
    return Subscription(version, topics, owned, rack_id or None)


def read_assignment(data: bytes) -> dict[str, frozenset[int]]:
    """Partitions by topic; no bytes are no partitions. Raises `RecordFormatError`."""
    if not data:
        return {}
    reader = FieldReader(data)
    try:
        _read_version(reader)
        return _read_partitions(reader)
    except FieldError as error:
        raise RecordFormatError(f"an assignment of the consumer protocol: {error}") from error


def encode_assignment(version: int, partitions: Mapping[str, Iterable[int]]) -> bytes:
    """In the version of the member's subscription."""
    rows = [
        string(topic) + array_length(len(found)) + b"".join(map(int32, found))
        for topic, found in ((topic, sorted(ones)) for topic, ones in partitions.items())
    ]
    return int16(version) + array_length(len(rows)) + b"".join(rows) + _NO_USER_DATA


def _read_version(reader: FieldReader) -> int:
    version = reader.int16()
    if version < 0:
        raise FieldError(f"version {version}: 0 and above are read")
    return min(version, MAX_VERSION)


def _read_partitions(reader: FieldReader) -> dict[str, frozenset[int]]:
    rows = ((reader.string(), frozenset(reader.int32() for _ in reader.items())) for _ in reader.items())
    return dict(rows)
