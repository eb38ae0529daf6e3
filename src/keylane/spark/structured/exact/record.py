"""The sink's record: what the driver decided last, as it stands in the sink's topic. And the names in Kafka.

Pure. The record is JSON, version 1; a newer version is refused, and not guessed at.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from keylane.errors import PeerError

VERSION = 1

NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
"""What a sink may be named."""


class Entry(NamedTuple):
    """The open transaction of one partition of a batch, and what is in it."""

    partition: int
    """Spark's, not Kafka's."""
    id: str
    """The transactional id."""
    producer_id: int
    epoch: int
    rows: int
    digest: int
    started_ms: int
    """When the transaction began, by the broker's clock."""


class SinkRecord(NamedTuple):
    """The last batch that was decided."""

    query: str
    """Spark's id of the query, which its checkpoint keeps."""
    batch: int
    entries: tuple[Entry, ...] = ()
    """Listed, and not known to be committed; none: the batch is done."""
    is_gapless: bool = True
    """Whether each batch leaves a record, one without rows too, so that the next one's number is one higher. Earlier
    versions left those out."""

    @property
    def is_done(self) -> bool:
        return not self.entries

    def to_json(self) -> bytes:
        said = {
            "version": VERSION,
            "query": self.query,
            "batch": self.batch,
            "entries": self.entries,
            "gapless": self.is_gapless,
        }
        return json.dumps(said, separators=(",", ":")).encode()

    @classmethod
    def of_json(cls, data: bytes) -> SinkRecord:
        """Raises `PeerError` for what is no record."""
        try:
            said = json.loads(data)
            if said["version"] != VERSION:
                raise PeerError(
                    f"the sink's record is of version {said['version']}, and this keylane reads {VERSION}: go on with "
                    "the version that wrote it, or a newer one"
                )
            entries = tuple(_entry(*one) for one in said["entries"])
            return cls(str(said["query"]), int(said["batch"]), entries, bool(said.get("gapless")))
        except (ValueError, KeyError, TypeError) as error:
            raise PeerError(f"the sink's topic holds something else than its record: {error}") from error


def _entry(partition: int, name: str, *numbers: int) -> Entry:
    producer_id, epoch, rows, digest, started_ms = map(int, numbers)
    return Entry(int(partition), str(name), producer_id, epoch, rows, digest, started_ms)


def topic_of(sink: str) -> str:
    """The topic of a sink's record."""
    return f"keylane-sink-{sink}"


def driver_id(sink: str) -> str:
    """The driver's transactional id."""
    return f"keylane-sink/{sink}/driver"


def task_prefix(sink: str) -> str:
    """How the transactional ids of a sink's tasks begin."""
    return f"keylane-sink/{sink}/task/"
