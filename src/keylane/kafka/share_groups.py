"""The share groups of a cluster (KIP-932), which the client's own list leaves out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from keylane.errors import PeerError, UsageError
from keylane.kafka.open_transactions import TransactionsClient
from keylane.kafka.places import for_groups
from keylane.wire import transactions as api
from keylane.wire.primitives import EMPTY_TAGS, array_length, compact_array_length, compact_string

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from keylane.kafka.open_transactions import Address
    from keylane.wire.primitives import FieldReader

_ANY_STATE, _SHARE = compact_array_length(0), compact_array_length(1) + compact_string("share")
_NO_TOPICS = array_length(0) + b"\0"


def share_groups(kafka: Mapping[str, Any]) -> dict[str, str]:
    """State by group, in Kafka's words in lower case; none where no broker has share groups, or where a login is one
    that only librdkafka has."""
    try:
        with _Client(for_groups(kafka)) as client:
            return client.share_groups()
    except (PeerError, UsageError):
        return {}


class _Client(TransactionsClient):
    """Asks every broker. Thread safety: one thread."""

    def share_groups(self) -> dict[str, str]:
        brokers = self._of_any(api.METADATA, _NO_TOPICS, _read_brokers)
        found: dict[str, str] = {}
        for address in () if isinstance(brokers, int) else brokers:
            answer = self._ask(address, api.LIST_GROUPS, _ANY_STATE + _SHARE + EMPTY_TAGS, _read_groups)
            found |= {} if isinstance(answer, int) else answer
        return found


def _read_brokers(reader: FieldReader) -> list[Address]:
    reader.int32()
    found = []
    for _ in reader.items():
        reader.int32()
        found.append((reader.string(), reader.int32()))
        reader.nullable_string()
    return found


def _read_groups(reader: FieldReader) -> dict[str, str]:
    reader.int32()
    reader.int16()
    found = {}
    for _ in reader.items():
        group, _, state, _ = reader.string(), reader.string(), reader.string(), reader.string()
        reader.skip_tags()
        found[group] = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", state).lower()
    return found
