"""What is shown of a record: sizes and names always, its key, value and headers when somebody asks for them."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from keylane.consumer.decoding import made_of
from keylane.foreign_errors import line_of, printable, short_class_of
from keylane.telling import kind_of

if TYPE_CHECKING:
    from keylane.desk import Report
    from keylane.pipeline import Pipeline
    from keylane.records import Record

    Headers = list[tuple[str, bytes | None]]


EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which Python's dates have. A producer may write any time."""


def time_text(timestamp_ms: int) -> str:
    """ISO 8601, in UTC, of milliseconds since the epoch; the number itself, where no calendar has such a day."""
    if not EARLIEST_MS <= timestamp_ms <= LATEST_MS:
        return f"{timestamp_ms} ms"
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


def sizes(record: Record, headers: Headers) -> Report:
    """Lengths of key and value in bytes (None: there is none), and the headers' names."""
    return {
        "key_bytes": _size(record.raw_key),
        "value_bytes": _size(record.raw_value),
        "header_names": [name for name, _ in headers],
    }


def _size(data: bytes | None) -> int | None:
    return None if data is None else len(data)


def payload(record: Record, topic: str, headers: Headers, pipeline: Pipeline | None) -> Report:
    """Key, value and headers, as the pipeline's deserializers make them for a record of `topic`, or as they are."""
    shown: Report = {}
    for field, raw, deserializer in (
        ("key", record.raw_key, pipeline and pipeline.key_deserializer),
        ("value", record.raw_value, pipeline and pipeline.value_deserializer),
    ):
        try:
            made = made_of(deserializer, raw, topic, field, lambda: headers)
        except Exception as error:  # why the record failed, perhaps: its bytes are shown then
            made = raw
            shown[f"{field}_error"] = line_of(error)
        shown[field] = plain(made)
    return shown | {"headers": [[name, plain(value)] for name, value in headers]}


def plain(made: object) -> object:
    """What JSON can say of it."""
    if isinstance(made, bytes):
        try:
            return made.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(made).decode()}
    try:
        json.dumps(made)
    except (TypeError, ValueError, RecursionError):
        return _shown(made)
    return made


def _shown(made: object) -> str:
    """Its repr, which is the user's own: it may raise, or have no bytes."""
    try:
        return printable(repr(made))
    except Exception as error:
        return f"({kind_of(made)}, whose repr raises {short_class_of(error)})"
