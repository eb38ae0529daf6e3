"""JSON that others may write (in topics of operations, in the users file): read by functions that raise nothing but
their own refusal. Pure.

Members, operators and strangers write it. A value that is not what its reader expects is passed over, whatever it
holds: numbers without end, text that has no bytes, a depth that no program follows, fields of other types.
"""

from __future__ import annotations

import json
import math
import types
from dataclasses import is_dataclass
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

from keylane.errors import UsageError

MAX_BYTES = 8 * 1024 * 1024
"""Of one value: a report of a thousand lanes has less."""

LARGEST = 2**63 - 1
"""Of whole numbers: Kafka has none beyond."""


def read_object(value: bytes) -> dict[str, Any]:
    """An object of JSON, without NaN, infinity, numbers that Kafka does not have, and text that is not Unicode. Raises
    `UsageError` for anything else; what it holds is not shown, as nobody has vouched for it."""
    try:
        if len(value) > MAX_BYTES:
            raise ValueError("too long")
        said = json.loads(value, parse_float=_finite, parse_int=_whole, parse_constant=_finite)
        json.dumps(said, ensure_ascii=False).encode()
    except Exception:  # ValueError, RecursionError, MemoryError: all say that it is no such object
        said = None
    if not isinstance(said, dict):
        raise UsageError("it is no object of JSON that keylane writes")
    return said


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _whole(text: str) -> int:
    number = int(text)
    if abs(number) > LARGEST:
        raise ValueError("beyond Kafka's numbers")
    return number


def has_shape(value: Any, hint: Any) -> bool:
    """Whether a value of JSON is of this type: a `TypedDict`, a `NamedTuple` as its `_asdict` has it, a list, a union,
    a literal, or a plain type. A dictionary may have more than its type says; whole numbers are numbers too."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return True
    if origin in (NotRequired, Required):
        return has_shape(value, parts[0])
    if origin in (Union, types.UnionType):
        return any(has_shape(value, one) for one in parts)
    if origin is Literal:
        return value in parts
    if origin in (list, tuple) and not (origin is tuple and Ellipsis not in parts):
        return isinstance(value, list) and all(has_shape(one, parts[0]) for one in value)
    if origin is tuple:
        pairs = zip(value, parts, strict=False) if isinstance(value, list) and len(value) == len(parts) else ()
        return isinstance(value, list) and len(value) == len(parts) and all(has_shape(*pair) for pair in pairs)
    if origin is dict:
        return isinstance(value, dict) and all(has_shape(one, parts[1]) for one in value.values())
    if is_typeddict(hint) or hasattr(hint, "_fields") or is_dataclass(hint):
        return isinstance(value, dict) and _has_fields(value, hint)
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _has_fields(value: dict[str, Any], kind: Any) -> bool:
    hints = get_type_hints(kind, include_extras=True)
    # `__required_keys__` does not see what is not required where annotations are text.
    return all(
        has_shape(value[name], hint) if name in value else get_origin(hint) is NotRequired
        for name, hint in hints.items()
    )
