"""Requests to a group's coordinator over a connection of their own.

The idea: a coordinator answers what comes over one connection in its order. Behind librdkafka's request to join, which
is answered when the rebalance is over, nothing else is heard. What must not wait for that asks here.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from keylane.errors import PeerError
from keylane.kafka.faults import PASSING
from keylane.wire import codes
from keylane.wire.primitives import FieldError, FieldReader, array_length, string

if TYPE_CHECKING:
    from collections.abc import Mapping

ANSWER_S = 5.0
"""How long one question to a broker waits."""

_LEAVE_GROUP, _LEAVE_VERSION = 13, 3
"""Version 3 (Kafka 2.4) is the first that takes members out by their names."""


def ask_coordinator(kafka: Mapping[str, Any], group: str, key: int, version: int, request: bytes) -> bytes:
    """The answer. Raises `OSError` for none now, and `UsageError` for a login that librdkafka has and keylane has
    not."""
    from keylane.kafka.conditional import coordinator_of
    from keylane.kafka.link import Link, addresses_of
    from keylane.kafka.login import login_of

    login = login_of(kafka)
    problem = OSError("no address")
    for address in addresses_of(kafka):
        try:
            with closing(Link(address, login, ANSWER_S)) as bootstrap:
                coordinator = coordinator_of(bootstrap, group)
            if coordinator is None:
                raise OSError("the group has no coordinator at the moment")
            with closing(Link(coordinator, login, ANSWER_S)) as link:
                return link.ask(key, version, request)
        except OSError as error:
            problem = error
    raise problem


def take_out(kafka: Mapping[str, Any], group: str, member_id: str, instance: str | None = None) -> None:
    """Have the member leave its group; one that has gone is no error. Raises as `ask_coordinator`, and `PeerError` for
    a refusal."""
    request = string(group) + array_length(1) + string(member_id) + string(instance)
    reader = FieldReader(ask_coordinator(kafka, group, _LEAVE_GROUP, _LEAVE_VERSION, request))
    try:
        reader.int32()  # the throttle time
        check_code(reader.int16())  # a member that has gone meanwhile is told apart from that
    except FieldError as error:
        raise OSError(f"the coordinator answers what is no departure from a group: {error}") from error


def check_code(code: int) -> None:
    """Raises `OSError` where asking again may help, and `PeerError` where it does not."""
    if code != codes.NONE:
        text = f"the coordinator answers with Kafka's error code {code}"
        raise OSError(text) if code in PASSING else PeerError(text)
