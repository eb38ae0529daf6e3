"""What kio's classes tell of the fields of an entity, in the order of their bytes."""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Any, NamedTuple


class Field(NamedTuple):
    """One field of an entity."""

    name: str
    kafka_type: str | None
    """kio's name of Kafka's type, such as `int32`; None for an entity, or a sequence of them."""
    entity: Any
    """kio's class of it, or of the items."""
    is_sequence: bool
    is_nullable: bool
    has_default: bool
    is_tagged: bool


@functools.cache
def fields_of(entity_type: Any) -> tuple[Field, ...]:
    """All fields of one of kio's classes."""
    hints = typing.get_type_hints(entity_type)
    found = []
    for field in dataclasses.fields(entity_type):
        hint = hints[field.name]
        options = typing.get_args(hint) if typing.get_origin(hint) is not tuple else ()
        is_nullable = type(None) in options
        inner = next(one for one in options if one is not type(None)) if is_nullable else hint
        is_sequence = typing.get_origin(inner) is tuple
        kind = field.metadata.get("kafka_type")
        entity = None if kind is not None else typing.get_args(inner)[0] if is_sequence else inner
        has_default = field.default is not dataclasses.MISSING
        is_tagged = "tag" in field.metadata
        found.append(Field(field.name, kind, entity, is_sequence, is_nullable, has_default, is_tagged))
    return tuple(found)
