"""`error_answer`: the answer to a request of any API and version in which everything that can have an error has one.

Made without knowing the API, from what kio's classes tell of their own fields.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.wire.fields import fields_of
from keylane.wire.versions import response_type

if TYPE_CHECKING:
    from keylane.wire.fields import Field

_ERROR_FIELDS = {"error_code", "partition_error_code"}
_SAME = {
    "partition_index": ("partition", "index"),
    "key": ("coordinator_keys",),
}
"""Names in answers, and what requests call the same."""
PLAIN: dict[str, Any] = {
    "bool": False,
    "bytes": b"",
    "datetime_i64": datetime.datetime.fromtimestamp(0, datetime.UTC),
    "records": b"",
    "string": "",
    "timedelta_i32": datetime.timedelta(0),
    "timedelta_i64": datetime.timedelta(0),
    "uuid": None,
}
"""Empty values by kio's names of Kafka's types; numbers are -1, as Kafka's are where there is none."""


def error_answer(api: str, version: int, request: Any, code: int) -> Any:
    """kio's answer of this version to kio's request: the error at the top, or at each of its parts, or both."""
    return _refused(response_type(api, version), request, ErrorCode(code))


@functools.cache
def has_error(entity_type: Any) -> bool:
    """Whether there is a place for an error in it."""
    return any(
        field.name in _ERROR_FIELDS or (field.entity is not None and has_error(field.entity))
        for field in fields_of(entity_type)
    )


def _refused(answer_type: Any, asked: Any, code: ErrorCode) -> Any:
    """`asked` is the request, the part of it that this is the answer to, or a name or number that stands for it."""
    values: dict[str, Any] = {}
    for field in fields_of(answer_type):
        if field.name in _ERROR_FIELDS:
            values[field.name] = code
        elif field.entity is not None and field.is_sequence and has_error(field.entity):
            values[field.name] = tuple(_refused(field.entity, part, code) for part in _parts(asked))
        else:
            found, value = _told(field, asked)
            if found:
                values[field.name] = value
            elif not field.has_default:
                values[field.name] = _empty(field)
    return answer_type(**values)


def _is_entity(asked: Any) -> bool:
    return dataclasses.is_dataclass(asked)


def _parts(asked: Any) -> tuple[Any, ...]:
    """What a request, or a part of it, asks about: its first sequence."""
    asked_type: Any = type(asked)
    sequences = [field.name for field in fields_of(asked_type) if field.is_sequence] if _is_entity(asked) else []
    return getattr(asked, sequences[0]) or () if sequences else ()


def _told(field: Field, asked: Any) -> tuple[bool, Any]:
    """The value that the request has for this field of its answer."""
    if field.entity is not None or field.is_sequence or field.kafka_type is None:
        return False, None
    if _is_entity(asked):
        for name in (field.name, *_SAME.get(field.name, ())):
            if hasattr(asked, name):
                return True, getattr(asked, name)
        return False, None
    is_identity = field.name in ("name", "key", "group_id", "transactional_id", "partition_index")
    return is_identity, asked


def _empty(field: Field) -> Any:
    if field.is_sequence:
        return None if field.is_nullable else ()
    if field.is_nullable:
        return None
    if field.entity is not None:
        return field.entity(**{one.name: _empty(one) for one in fields_of(field.entity) if not one.has_default})
    if field.kafka_type == "error_code":
        return ErrorCode.none
    assert field.kafka_type is not None, field
    return PLAIN.get(field.kafka_type, -1)
