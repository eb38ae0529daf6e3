"""Which schema a request of an API and version has, loaded when it is first needed.

kio holds one module a message and version; importing all of them costs half a second, so only what a client sends is
imported. Header versions follow from the schema: flexible requests have header v2, and their responses header v1,
except ApiVersions, whose response always has header v0 (KIP-511: a client can read it whatever version it asked for).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import io
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from keylane.wire.bounds import bounds_checker
from keylane.wire.fields import fields_of
from keylane.wire.newer import NEWER
from keylane.wire.primitives import MAX_ITEMS, FieldReader, ItemCount, error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType


CORRELATION_ID_SIZE = 4


Entity = Any
"""What kio makes of a request or an answer: another class for each API and version."""


class ReadRequest(Protocol):
    """Makes an entity of bytes."""

    def __call__(self, frame: bytes, position: int, max_items: int = MAX_ITEMS) -> tuple[Any, int]:
        """The entity, and its size in bytes. Raises `kio.serial.errors.DecodeError`, `ValueError`, or
        `TooManyItemsError` where its arrays have more than `max_items` items together."""
        ...


class RequestSchema(NamedTuple):
    """How to read one version of a request."""

    read: ReadRequest
    is_flexible: bool
    """Whether the request header ends with tagged fields."""
    has_flexible_response_header: bool
    """Whether the response header ends with tagged fields."""


def _load(api: str, version: int, kind: str) -> ModuleType:
    if (api, version) in NEWER:
        return importlib.import_module(f"keylane.wire.newer.{api}_v{version}")
    # The package first, which imports both of its modules: before Python 3.13 two threads of which one imports a
    # package and the other a module in it are refused as a deadlock (python/cpython#83065).
    importlib.import_module(f"kio.schema.{api}.v{version}")
    return importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")


def _class_name(api: str, suffix: str) -> str:
    return "".join(part.capitalize() for part in api.split("_")) + suffix


@functools.cache
def request_module(api: str, version: int) -> ModuleType:
    """kio's module with the request class and its parts."""
    return _load(api, version, "request")


@functools.cache
def request_type(api: str, version: int) -> Any:
    """kio's request class, such as `request_type("offset_commit", 9)`."""
    return getattr(request_module(api, version), _class_name(api, "Request"))


@functools.cache
def response_module(api: str, version: int) -> ModuleType:
    """kio's module with the response class and its parts: `response_module("metadata", 12).MetadataResponseTopic`."""
    return _load(api, version, "response")


@functools.cache
def response_type(api: str, version: int) -> Any:
    """kio's response class, such as `response_type("offset_commit", 9)`."""
    return getattr(response_module(api, version), _class_name(api, "Response"))


@functools.cache
def request_schema(api: str, version: int) -> RequestSchema:
    """How to read a request. Raises `ModuleNotFoundError` for a version that kio does not know."""
    from kio.serial import entity_reader

    request = request_type(api, version)
    response_header = response_type(api, version).__header_schema__
    check, decode = bounds_checker(request), entity_reader(request)

    def read(frame: bytes, position: int, max_items: int = MAX_ITEMS) -> tuple[Any, int]:
        check(frame, position, ItemCount(max_items))
        return decode(frame, position)

    return RequestSchema(read, request.__flexible__, response_header.__flexible__)


def read_response(api: str, version: int, frame: bytes) -> tuple[Entity, int]:
    """kio's response entity of an answer's frame (without its size), and where its body begins in it. Raises
    `kio.serial.errors.DecodeError`."""
    from kio.serial import entity_reader

    response = response_type(api, version)
    start = CORRELATION_ID_SIZE
    if response.__header_schema__.__flexible__:
        reader = FieldReader(frame, start, is_flexible=True)
        reader.skip_tags()
        start = reader.at
    return entity_reader(response)(frame, start)[0], start


@functools.cache
def _field_names(entity_type: Any) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(entity_type))


def entity(entity_type: Any, /, **values: Any) -> Any:
    """An entity of one version from the values of all versions: those that this version does not have are left out."""
    names = _field_names(entity_type)
    return entity_type(**{name: value for name, value in values.items() if name in names})


@functools.cache
def _arrays_of(entity_type: Any) -> tuple[tuple[str, bool], ...]:
    """The arrays of an entity by name, and whether their items have arrays themselves."""
    return tuple(
        (field.name, field.entity is not None and bool(_arrays_of(field.entity)))
        for field in fields_of(entity_type)
        if field.is_sequence and not field.is_tagged
    )


def arrays_in(entity: Any) -> Iterator[Sequence[Any]]:
    """The arrays of an entity, but for those in its items."""
    entity_type: Any = type(entity)
    return (getattr(entity, name) or () for name, _ in _arrays_of(entity_type))


def count_items(entity: Any, most: int) -> int:
    """Items of all arrays of an entity; when there are more than `most`, some more than that."""
    count = 0
    entity_type: Any = type(entity)
    for name, have_arrays in _arrays_of(entity_type):
        items = getattr(entity, name) or ()
        count += len(items)
        if have_arrays:
            for item in items:
                if count > most:
                    return count
                count += count_items(item, most - count)
    return count


@functools.cache
def _texts_of(entity_type: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fields of an entity that are errors' texts, and its arrays of entities that have such."""
    fields = [field for field in fields_of(entity_type) if not field.is_tagged]
    texts = tuple(field.name for field in fields if field.name.endswith("error_message"))
    arrays = [field for field in fields if field.is_sequence and field.entity is not None]
    return texts, tuple(field.name for field in arrays if any(_texts_of(field.entity)))


def _with_cut_texts(entity: Any) -> Any:
    """The same entity, or one like it whose errors' texts fit into an answer."""
    entity_type: Any = type(entity)
    texts, arrays = _texts_of(entity_type)
    changed: dict[str, Any] = {}
    for name in texts:
        text = getattr(entity, name)
        if text is not None and (cut := error_text(text)) is not text:
            changed[name] = cut
    for name in arrays:
        items = getattr(entity, name) or ()
        cut_items = tuple(map(_with_cut_texts, items))
        if any(cut is not item for cut, item in zip(cut_items, items, strict=True)):
            changed[name] = cut_items
    return dataclasses.replace(entity, **changed) if changed else entity


_writers: dict[type, Callable[[io.BytesIO, Any], None]] = {}


def encode_response(response: Any) -> bytes:
    """The body of a response entity (kio's own, slow writer: for answers that are not hot)."""
    response_class = type(response)
    writer = _writers.get(response_class)
    if writer is None:
        from kio.serial import entity_writer

        writer = _writers[response_class] = entity_writer(response_class)
    out = io.BytesIO()
    writer(out, _with_cut_texts(response))
    return out.getvalue()
