"""`groups_of`: the groups that a request names, of whichever API.

Made without knowing the API, from what kio's classes tell of their own fields.
"""

from __future__ import annotations

from typing import Any

from keylane.wire.fields import fields_of

_NAMES = {"group_id", "group_ids", "groups", "groups_names", "key", "coordinator_keys"}
"""What requests call a group, or several."""
_GROUP = 0
"""The type of a coordinator's key that is a group's name; a key is of another type only where it has one."""


def names_groups(request_type: Any) -> bool:
    """Whether requests of this class can name one."""
    return any(field.name in _NAMES for field in fields_of(request_type))


def groups_of(request: Any) -> frozenset[str]:
    """The groups that kio's request names; of FindCoordinator those whose coordinator it looks for."""
    if getattr(request, "key_type", _GROUP) != _GROUP:
        return frozenset()
    found: set[str] = set()
    request_type: Any = type(request)
    for field in fields_of(request_type):
        if field.name in _NAMES:
            value = getattr(request, field.name)
            parts = (value or ()) if field.is_sequence else (value,)
            found.update(part if field.entity is None else part.group_id for part in parts)
    return frozenset(found)
