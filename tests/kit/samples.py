"""`sample_request`: a plausible request of any API and version, to be mutated, or to see what a broker makes of it.

Made without knowing the API, from what kio's classes tell of their own fields.
"""

from __future__ import annotations

import datetime
import uuid
from typing import Any

from kio.schema.errors import ErrorCode

from keylane.testing.answers import PLAIN
from keylane.wire.fields import fields_of
from keylane.wire.versions import request_type


def sample_request(api: str, version: int, **values: Any) -> Any:
    """A request with one of everything: `values` by the names of fields, wherever they stand (None only where it
    may be), else "sample" and 0."""
    return _sample(request_type(api, version), values)


def _sample(entity_type: Any, values: dict[str, Any]) -> Any:
    made = {}
    for field in fields_of(entity_type):
        if field.name in values and (field.is_nullable or values[field.name] is not None):
            value = values[field.name]
        elif field.entity is not None:
            value = _sample(field.entity, values)
        else:
            assert field.kafka_type is not None, field
            value = _SAMPLES.get(field.kafka_type, 0)
        made[field.name] = (value,) if field.is_sequence and not isinstance(value, tuple) else value
    return entity_type(**made)


_SAMPLES: dict[str, Any] = PLAIN | {
    "bytes": b"sample",
    "error_code": ErrorCode.none,
    "string": "sample",
    "timedelta_i32": datetime.timedelta(seconds=10),
    "timedelta_i64": datetime.timedelta(seconds=10),
    "uuid": uuid.UUID(int=7),
}
