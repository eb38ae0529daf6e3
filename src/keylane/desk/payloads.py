"""What is shown of a record: sizes and names always, its key, value and headers when somebody asks for them."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from keylane.consumer.decoding import made_of

if TYPE_CHECKING:
    from keylane.desk import Report
    from keylane.pipeline import Pipeline
    from keylane.records import Record

    Headers = list[tuple[str, bytes | None]]


def time_text(timestamp_ms: int) -> str:
    """ISO 8601, in UTC, of milliseconds since the epoch."""
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
            made = made_of(deserializer, raw, topic, field, headers)
        except Exception as error:  # why the record failed, perhaps: its bytes are shown then
            made = raw
            shown[f"{field}_error"] = f"{type(error).__name__}: {error}"
        shown[field] = _plain(made)
    return shown | {"headers": [[name, _plain(value)] for name, value in headers]}


def _plain(made: object) -> object:
    """What JSON can say of it."""
    if isinstance(made, bytes):
        try:
            return made.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(made).decode()}
    try:
        json.dumps(made)
    except (TypeError, ValueError):
        return repr(made)
    return made
